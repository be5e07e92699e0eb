"""The trainer: take a collection, build batches, step, publish, evaluate, report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from grpo.learner.protocol import Learner
from grpo.obs.observer import Observer
from grpo.obs.rows import StepRow, StepTiming, collection_stats
from grpo.plan.job import JobSpec
from grpo.rewards.samples import train_samples
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
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        rollouts: Rollouts,
        learner: Learner,
        publication: Publication,
        weights_still: asyncio.Lock,
        evaluator: Evaluator | None,
        ledger: Ledger,
        waits: Waits,
        observer: Observer,
    ) -> None:
        self._job = job
        self._rollouts = rollouts
        self._learner = learner
        self._publication = publication
        # Held by a publication and by an evaluation: an evaluation sees one exact version.
        self._weights_still = weights_still
        self._evaluator = evaluator
        self._ledger = ledger
        self._waits = waits
        self._observer = observer
        self._clock = StepClock(asyncio.get_running_loop().time)
        self.scores: list[EvalScore] = []

    async def run(self) -> None:
        """Train every collection.

        Waits in turn for a full collection, the learner, the engines' update, and, unless the run is asynchronous, the
        evaluation.
        """
        evaluation = self._job.evaluation
        async with asyncio.TaskGroup() as side:
            for collection in range(1, self._job.batch.num_rollouts + 1):
                await self._collection(collection)
                last = collection == self._job.batch.num_rollouts
                due = evaluation.interval and collection % evaluation.interval == 0 and not last
                if due or (last and evaluation.final):
                    if self._job.sync.asynchronous:
                        # Takes the lock before the next publication can: tasks start in the order of their creation.
                        side.create_task(self.evaluate(self._learner.version), name="evaluation")
                        await asyncio.sleep(0)
                    else:
                        await self.evaluate(self._learner.version)
                self._rollouts.release()

    async def evaluate(self, version: int) -> None:
        """Evaluate ``version``; waits for a publication under way, and holds up the next one."""
        if self._evaluator is None:
            return
        async with self._weights_still:
            await self._publication.settle()
            for score in await self._evaluator.run(version):
                self.scores.append(score)
                self._observer.evaluation(score)

    async def _collection(self, collection: int) -> None:
        self._clock.waiting()
        taken = await self._rollouts.take()
        batches = await self._batches(taken)
        rows: list[StepMetrics] = []
        self._clock.stepping()
        for batch in batches:
            with self._waits.doing("trainer", f"optimizer step {batch.step} of {len(batch.samples)} samples"):
                rows.append(await self._learner.step(batch))
            self._waits.notify()
        self._clock.publishing()
        async with self._weights_still:
            await self._publication.publish(
                self._learner.version, lambda snapshot: self._learner.weights(snapshot=snapshot)
            )
            if not self._job.sync.asynchronous:
                await self._publication.settle()
        self._waits.notify()
        self._clock.done(self._rollouts.tokens_generated)
        self._report(collection, taken, rows)

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

    def _report(self, collection: int, taken: Taken, rows: Sequence[StepMetrics]) -> None:
        stats = collection_stats(taken.seen, taken.lags)
        outcomes = Counter(taken.outcomes)
        outcomes["trained"] = len(taken.groups)
        for metrics in rows:
            self._observer.step(
                StepRow(
                    step=metrics.version,
                    collection=collection,
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
