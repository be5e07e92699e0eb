"""A learner of one rank in the controller's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from grpo.errors import RunFailed
from grpo.learner.checkpoint import CapturedState
from grpo.learner.rank import LearnerRank
from grpo.plan.job import JobSpec
from grpo.types import StepMetrics, TrainBatch, TrainSample
from grpo.weights.in_process import InProcessWeights

T = TypeVar("T")


class LocalLearner:
    """The Learner protocol over one :class:`LearnerRank`.

    All compute runs in one thread of its own, so that the event loop, and an engine in this process, live on while it
    steps. Each method waits for the calls before it and then for its own work. A caller that is cancelled stops
    waiting; the work that it began runs to its end.
    """

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._rank: LearnerRank | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")
        self._closed = False

    @property
    def version(self) -> int:
        """Optimizer steps applied; 0 before :meth:`start`."""
        return self._rank.version if self._rank else 0

    async def start(self) -> None:
        """Load the starting weights, as version 0."""
        self._rank = await self._run(lambda: LearnerRank(self._job))

    async def step(self, batch: TrainBatch) -> StepMetrics:
        """Apply one optimizer step."""
        return await self._run(lambda: self._started().step(batch))

    async def score(self, samples: Sequence[TrainSample]) -> tuple[tuple[float, ...], ...]:
        """Return the current (R,) log-probabilities of each response, in nats, in the order given."""
        return await self._run(lambda: self._started().score(samples))

    async def weights(self, *, snapshot: bool = False) -> InProcessWeights:
        """Return the current weights, which alias the model unless ``snapshot``; waits for a step that is running."""

        def take() -> InProcessWeights:
            rank = self._started()
            return InProcessWeights(rank.version, rank.model, snapshot=snapshot)

        return await self._run(take)

    async def capture(self) -> CapturedState:
        """Return a copy of the state of now; waits for a step that is running."""
        return await self._run(lambda: self._started().capture())

    async def load(self, path: Path) -> None:
        """Restore a checkpoint, the version included; after :meth:`start`."""
        await self._run(lambda: self._started().load(path))

    async def export_hf(self, path: Path) -> None:
        """Write a Hugging Face folder that plain transformers loads."""
        await self._run(lambda: self._started().export_hf(path))

    async def close(self) -> None:
        """Wait for work that has begun, then free the memory. May be called twice."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        self._rank = None

    def _started(self) -> LearnerRank:
        if self._rank is None:
            raise RunFailed("the learner was not started")
        return self._rank

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise RunFailed("the learner is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
