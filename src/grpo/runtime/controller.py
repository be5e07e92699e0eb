"""The controller: owns the loop of a run, from starting engines to the exported model.

::

    PromptSource -> Rollouts (admission, engines, grading, filter) -> Buffer -> Trainer -> Learner.step
                        ^                                                          |
                        +-------------------- Publication <------------------------+

It never knows which engine or learner it drives; :mod:`grpo.runtime.entry` chooses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grpo.crash import crash_point
from grpo.data.source import PromptSource
from grpo.engine.fleet import Fleet
from grpo.engine.protocol import Engine
from grpo.errors import GrpoError, RunFailed, describe
from grpo.learner.protocol import Learner
from grpo.obs.observer import Observer
from grpo.obs.rows import PipelineStatus
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.rewards.grader import Grades
from grpo.runtime.checkpoints import Checkpoint, Checkpoints
from grpo.runtime.evaluation import Evaluator
from grpo.runtime.garbage import collected_rarely
from grpo.runtime.ledger import Ledger, State, Transition
from grpo.runtime.rollouts import Rollouts
from grpo.runtime.sampler import Sampler
from grpo.runtime.supervisor import Supervisor
from grpo.runtime.trainer import Trainer
from grpo.runtime.watchdog import Watchdog
from grpo.types import EvalScore, Prompt, RunResult
from grpo.waits import Waits
from grpo.weights.modes import make_publication
from grpo.weights.publication import update


class Controller:
    """One run.

    Args:
        make_engine: returns an engine of that name, not started.
        learner: not started.
        evals: held-out prompts by set; may be empty.
        decode: token ids to the text that verifiers read.
        stop_token_ids: end a response.
        on_transition: hears every transition of the ledger.
        status_interval_s: how often the observer hears of the pipeline.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        make_engine: Callable[[str], Engine],
        learner: Learner,
        source: PromptSource,
        evals: Mapping[str, Sequence[Prompt]],
        grader: Grades,
        observer: Observer,
        decode: Callable[[tuple[int, ...]], str],
        stop_token_ids: tuple[int, ...],
        on_transition: Callable[[Transition], None] = lambda transition: None,
        status_interval_s: float = 0.25,
    ) -> None:
        self._job = job
        self._status_interval_s = status_interval_s
        self._learner = learner
        self._source = source
        self._observer = observer
        self.waits = Waits()
        self.ledger = Ledger(on_transition)
        self.fleet = Fleet([make_engine(f"engine-{index}") for index in range(job.engine.count)], self.waits)
        self._publication = make_publication(job.sync, self.fleet)
        self._supervisor = Supervisor(
            job.engine,
            fleet=self.fleet,
            learner=learner,
            make_engine=make_engine,
            publication=self._publication,
            update_timeout_s=job.sync.update_timeout_s,
            observer=observer,
        )
        self.sampler = Sampler(
            fleet=self.fleet,
            grader=grader,
            decode=decode,
            newest=lambda: learner.version,
            timeout_s=job.sync.request_timeout_s,
        )
        self.rollouts = Rollouts(
            job,
            fleet=self.fleet,
            sampler=self.sampler,
            source=source,
            ledger=self.ledger,
            waits=self.waits,
            observer=observer,
            policy_version=lambda: learner.version,
            stop_token_ids=stop_token_ids,
        )
        evaluator = Evaluator(
            job,
            evals,
            fleet=self.fleet,
            sampler=self.sampler,
            waits=self.waits,
            stop_token_ids=stop_token_ids,
        )
        self._checkpoints = Checkpoints(
            RunPaths(Path(job.output.root)),
            job.checkpoint,
            steps_per_collection=job.batch.steps_per_collection,
            warn=observer.warning,
        )
        self.trainer = Trainer(
            job,
            rollouts=self.rollouts,
            learner=learner,
            publication=self._publication,
            evaluator=evaluator if evals else None,
            checkpoints=self._checkpoints,
            ledger=self.ledger,
            waits=self.waits,
            observer=observer,
        )

    async def run(self, resume: Checkpoint | None = None) -> RunResult:
        """Run to the end, from a checkpoint if there is one; closes engines and learner however it ends.

        Waits for the trainer. A task that dies fails the run at once with its own error.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._observer.started(self._job)
        try:
            await self._start(resume)
            crash_point("run.started")
            with collected_rarely():
                await self._train()
            await self._export(resumed=resume is not None)
            steps = self._learner.version
        finally:
            await self._close()
        result = RunResult(
            status="complete",
            steps=steps,
            seconds=loop.time() - start,
            eval_before=mean_accuracy(self.trainer.scores, 0),
            eval_after=mean_accuracy(self.trainer.scores, steps),
            output_root=self._job.output.root,
        )
        self._observer.finished(result)
        return result

    def stop(self) -> None:
        """End the run after the collection under way, with a checkpoint; :meth:`run` then raises Interrupted."""
        self.trainer.stopping.set()
        self.waits.notify()

    async def _start(self, resume: Checkpoint | None) -> None:
        """Wait for the learner's and every engine's starting weights, one after the other.

        Not side by side: loading a model patches transformers for its duration, and two loads in one process undo each
        other's patches.
        """
        with self.waits.doing("controller", "the learner to start"):
            await self._learner.start()
        for replica in self.fleet.replicas:
            with self.waits.doing("controller", f"{replica.name} to start"):
                await replica.engine.start(0)
        if resume is not None:
            await self._restore(resume)
        self.fleet.open_gates()

    async def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; waits for the learner to load it and for the engines to load its version."""
        with self.waits.doing("controller", f"the checkpoint of version {checkpoint.version}"):
            await self._learner.load(checkpoint.learner)
        self.rollouts.restore(checkpoint.controller, self._source.by_id())
        self.trainer.restore(checkpoint.controller)
        self._checkpoints.newest = checkpoint.version
        self._publication.version = checkpoint.version
        if checkpoint.version:
            weights = await self._learner.weights(snapshot=True)
            await update(self.fleet, self.fleet.replicas, weights, self._job.sync.update_timeout_s)

    async def _train(self) -> None:
        """Run every loop beside each other until the trainer is done, then cancel the others.

        The first evaluation comes before the first group, but the loops that tend to engines run beside it already.
        """
        watchdog = Watchdog(self.waits, self.fleet, self.sampler, self._job.sync.watchdog_s)
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self._publication.run(), name="publication"),
                group.create_task(self._supervisor.run(), name="supervisor"),
                group.create_task(watchdog.run(), name="watchdog"),
                group.create_task(self._report_status(), name="status"),
            ]
            if self._job.evaluation.initial and not self.trainer.scores:
                await self.trainer.evaluate(self._learner.version)
            self.trainer.mark()
            loops.append(group.create_task(self.rollouts.run(), name="rollouts"))
            trainer = group.create_task(self.trainer.run(), name="trainer")
            await trainer
            for task in loops:
                task.cancel()

    async def _export(self, *, resumed: bool) -> None:
        """Write the trained model as a Hugging Face folder; waits for the learner."""
        folder = Path(self._job.output.hf_dir)
        if not self._job.output.export_hf or (resumed and folder.exists()):  # it gets its name when it is whole
            return
        crash_point("export.begin")
        with self.waits.doing("controller", "the exported model"):
            await self._learner.export_hf(folder)

    async def _close(self) -> None:
        """Close everything, also when one of them fails to close: the first error of the run is what counts."""
        for part in (*(replica.engine for replica in self.fleet.replicas), self._learner):
            with suppress(Exception):
                await part.close()

    async def _report_status(self) -> None:
        """Tell the observer of the pipeline now and then; waits for time only."""
        loop = asyncio.get_running_loop()
        then, tokens = loop.time(), 0
        rate = 0.0
        while True:
            await asyncio.sleep(self._status_interval_s)
            now = loop.time()
            if now - then >= 1.0:
                rate = (self.rollouts.tokens_generated - tokens) / (now - then)
                then, tokens = now, self.rollouts.tokens_generated
            waits = self.waits.table()
            self._observer.pipeline(
                PipelineStatus(
                    policy_version=self._learner.version,
                    engine_version=self.fleet.version,
                    in_flight=self.ledger.count(State.IN_FLIGHT),
                    graded=self.ledger.count(State.GRADED),
                    buffered=self.ledger.count(State.BUFFERED),
                    trained=self.ledger.ended.get(State.TRAINED, 0),
                    total_steps=self._job.batch.total_steps,
                    tokens_per_second=rate,
                    waiting="; ".join(f"{wait.who}: {wait.what}" for wait in waits),
                )
            )


def mean_accuracy(scores: Sequence[EvalScore], version: int) -> float | None:
    """Return the prompt-weighted mean accuracy of the evaluations of one version; None if there are none."""
    chosen = [score for score in scores if score.version == version]
    if not chosen:
        return None
    return sum(score.accuracy * score.prompts for score in chosen) / sum(score.prompts for score in chosen)


def first_error(error: BaseException) -> BaseException:
    """Return the error that a tree of exception groups began with: a user's or a run's error before any other."""
    leaves: list[BaseException] = []

    def walk(node: BaseException) -> None:
        if isinstance(node, BaseExceptionGroup):
            for child in node.exceptions:
                walk(child)
        else:
            leaves.append(node)

    walk(error)
    return next((leaf for leaf in leaves if isinstance(leaf, GrpoError)), leaves[0])


def as_run_error(error: BaseException) -> BaseException:
    """Return ``error`` as what the command line shows; anything unforeseen becomes RunFailed with its cause chained."""
    leaf = first_error(error)
    if isinstance(leaf, (GrpoError, KeyboardInterrupt, asyncio.CancelledError)):
        return leaf
    failed = RunFailed(f"{describe(leaf)}", fix="Run again with --debug for the traceback.")
    failed.__cause__ = leaf
    return failed
