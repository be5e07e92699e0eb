"""The trainer: take a collection, build batches, step, publish, evaluate, report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from grpo.crash import crash_point
from grpo.errors import Interrupted, RunFailed
from grpo.learner.protocol import Learner
from grpo.obs.observer import Observer
from grpo.obs.rows import StepRow, StepTiming, collection_stats
from grpo.plan.job import JobSpec
from grpo.rewards.samples import train_samples
from grpo.runtime.checkpoints import Checkpoints
from grpo.runtime.evaluation import Evaluator
from grpo.runtime.ledger import Ledger, State
from grpo.runtime.rollouts import Rollouts, Taken
from grpo.types import EvalScore, StepMetrics, TrainBatch, TrainSample
from grpo.waits import Waits
from grpo.weights.publication import Publication


class Trainer:
    """The loop that turns groups into policy versions.

    Attributes:
        scores: every evaluation made so far, in order.
        collections: trained so far.
        stopping: set to end the run after the collection under way, with a checkpoint.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        rollouts: Rollouts,
        learner: Learner,
        publication: Publication,
        evaluator: Evaluator | None,
        checkpoints: Checkpoints,
        ledger: Ledger,
        waits: Waits,
        observer: Observer,
    ) -> None:
        self._job = job
        self._rollouts = rollouts
        self._learner = learner
        self._publication = publication
        # Held by a publication and by an evaluation: an evaluation sees one exact version.
        self._weights_still = asyncio.Lock()
        self._evaluator = evaluator
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._waits = waits
        self._observer = observer
        self._clock = StepClock(asyncio.get_running_loop().time)
        self.scores: list[EvalScore] = []
        self._evaluation: asyncio.Task[None] | None = None
        self._mark: dict[str, Any] = {}
        self.collections = 0
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Train every collection.

        Waits in turn for a full collection, the learner, the engines' update, and, unless the run is asynchronous, the
        evaluation.
        """
        async with asyncio.TaskGroup() as side:
            while self.collections < self._job.batch.num_rollouts:
                if not await self._collection():
                    await self._stop()
                last = self.collections == self._job.batch.num_rollouts
                if self._evaluation_due(last):
                    await self._begin_evaluation(side)
                due = self._checkpoints.due(self.collections, last=last)
                if due:
                    await self._evaluated()  # its scores belong to the checkpoint
                self.mark()
                if due:
                    await self._checkpoint()
                self._rollouts.release()
        await self._checkpoints.wait(must=True)

    async def _begin_evaluation(self, side: asyncio.TaskGroup) -> None:
        """Evaluate the version of now; an asynchronous run trains on meanwhile. Waits for the evaluation before it."""
        await self._evaluated()
        self._evaluation = side.create_task(self.evaluate(self._learner.version), name="evaluation")
        if self._job.sync.asynchronous:
            await asyncio.sleep(0)  # let it take the lock before the next publication can
        else:
            await self._evaluated()

    async def _evaluated(self) -> None:
        """Wait for the evaluation under way."""
        if self._evaluation is not None:
            task, self._evaluation = self._evaluation, None
            await task

    def _evaluation_due(self, last: bool) -> bool:
        evaluation = self._job.evaluation
        if last:
            return evaluation.final
        return evaluation.interval > 0 and self.collections % evaluation.interval == 0

    async def _stop(self) -> None:
        """Commit a checkpoint of the last whole collection and end the run; waits for the checkpoint to be written."""
        if not self._job.checkpoint.save:
            raise RunFailed("stopped on a signal; training.save_checkpoints is false, so nothing was saved")
        if self._job.sync.asynchronous:
            # What is in flight is regenerated in any case, and an evaluation may have ended since the last moment
            # noted. A synchronous run goes back to it, and repeats exactly what it was doing.
            await self._evaluated()
            self.mark()
        await self._checkpoint()
        await self._checkpoints.wait(must=True)
        raise Interrupted(
            f"stopped on a signal after step {self._learner.version}, with a committed checkpoint",
            fix="Resume with the same command.",
        )

    async def evaluate(self, version: int) -> None:
        """Evaluate ``version``; waits for a publication under way, and holds up the next one."""
        if self._evaluator is None:
            return
        async with self._weights_still:
            await self._publication.settle()
            for score in await self._evaluator.run(version):
                self.scores.append(score)
                self._observer.evaluation(score)

    def mark(self) -> None:
        """Note the moment between two collections: where a stopped run goes on."""
        self._mark = self._checkpoints.mark({**self._rollouts.state(), **self.state()})

    async def _checkpoint(self) -> None:
        """Begin to save the learner and the moment noted last; waits for the learner's copy."""
        with self._waits.doing("trainer", f"a checkpoint of version {self._learner.version}"):
            await self._checkpoints.save(self._learner, self._mark)
        self._waits.notify()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to know of the trainer, as JSON values."""
        return {"collections": self.collections, "evaluations": [asdict(score) for score in self.scores]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.collections = state["collections"]
        self.scores = [EvalScore(**score) for score in state["evaluations"]]

    async def _collection(self) -> bool:
        """Train one collection; False, with nothing changed, if the run is to stop instead.

        Waits for a full collection, the learner, and the engines' update.
        """
        self._clock.waiting()
        taken = await self._rollouts.take(self.stopping.is_set)
        if taken is None:
            return False
        crash_point("step.taken")
        batches = await self._batches(taken)
        rows: list[StepMetrics] = []
        self._clock.stepping()
        for batch in batches:
            with self._waits.doing("trainer", f"optimizer step {batch.step} of {len(batch.samples)} samples"):
                rows.append(await self._learner.step(batch))
            self._waits.notify()
        crash_point("step.done")
        self._clock.publishing()
        crash_point("publication.begin")
        async with self._weights_still:
            await self._publication.publish(
                self._learner.version, lambda snapshot: self._learner.weights(snapshot=snapshot)
            )
            crash_point("publication.loaded")
            if not self._job.sync.asynchronous:
                await self._publication.settle()
        self._waits.notify()
        self._clock.done(self._rollouts.tokens_generated)
        self.collections += 1
        crash_point("step.published")
        self._report(taken, rows)
        crash_point("step.reported")
        return True

    async def _batches(self, taken: Taken) -> list[TrainBatch]:
        """Split a collection into its optimizer steps, whole groups each."""
        steps = self._job.batch.steps_per_collection
        samples = [
            sample for group in taken.groups for sample in train_samples(group, self._job.filter, self._job.objective)
        ]
        if steps > 1:
            # PPO's old policy is the one before the collection's first step, for all of its steps.
            with self._waits.doing("trainer", f"log-probabilities of {len(samples)} samples before the update"):
                old = await self._learner.score(samples)
            samples = [replace(sample, old_logprobs=row) for sample, row in zip(samples, old, strict=True)]
        size = self._job.batch.global_batch_size
        first = self._learner.version + 1
        return [TrainBatch(first + step, tuple(_chunk(samples, step, size))) for step in range(steps)]

    def _report(self, taken: Taken, rows: Sequence[StepMetrics]) -> None:
        # Rewards of all that was graded since the last row, dropped groups too: the filter must not flatter them. A row
        # of an asynchronous run in whose time nothing was graded describes what it trained.
        stats = collection_stats(taken.seen or taken.groups, taken.lags)
        outcomes = Counter(taken.outcomes)
        outcomes["trained"] = len(taken.groups)
        for metrics in rows:
            self._observer.step(
                StepRow(
                    step=metrics.version,
                    collection=self.collections,
                    learner=metrics,
                    rollouts=stats,
                    # Counted once: the sum over rows is the sum over groups.
                    outcomes=outcomes if metrics is rows[0] else {},
                    admitted=self._ledger.admitted,
                    in_flight=self._ledger.count(State.IN_FLIGHT),
                    buffered=self._ledger.count(State.BUFFERED),
                    time=self._clock.timing(metrics, len(rows)),
                )
            )


class StepClock:
    """Measures where the time of a collection goes, in seconds of the loop's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._start = self._last = self._wait = self._step = self._publish = self._end = now()
        self._tokens = self._tokens_before = 0

    def waiting(self) -> None:
        """The trainer begins to wait for groups."""
        self._last = self._end
        self._wait = self._now()

    def stepping(self) -> None:
        """The learner begins."""
        self._step = self._now()

    def publishing(self) -> None:
        """The publication begins."""
        self._publish = self._now()

    def done(self, tokens: int) -> None:
        """The collection is trained and published; ``tokens`` response tokens were generated since the run began."""
        self._end = self._now()
        self._tokens_before, self._tokens = self._tokens, tokens

    def timing(self, metrics: StepMetrics, steps: int) -> StepTiming:
        """Return the share of one of ``steps`` optimizer steps."""
        interval = max(self._end - self._last, 1e-9)
        return StepTiming(
            elapsed_s=self._end - self._start,
            interval_s=interval / steps,
            step_s=metrics.seconds,
            wait_s=(self._step - self._wait) / steps,
            publish_s=(self._end - self._publish) / steps,
            generated_tokens_per_s=(self._tokens - self._tokens_before) / interval,
            trained_tokens_per_s=metrics.tokens / max(metrics.seconds, 1e-9),
        )


def _chunk(samples: Sequence[TrainSample], index: int, size: int) -> Sequence[TrainSample]:
    return samples[index * size : (index + 1) * size]
