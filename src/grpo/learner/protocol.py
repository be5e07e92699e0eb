"""What the controller asks of a learner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from grpo.types import StepMetrics, TrainBatch, TrainSample
from grpo.weights.protocol import WeightSource


class LearnerState(Protocol):
    """A learner's state at one version, apart from the learner."""

    def write(self, path: Path) -> None:
        """Write it into the new folder ``path``; blocks, on any thread. Raises OSError or RunFailed."""
        ...


class Learner(Protocol):
    """The sharded training job, seen as one."""

    @property
    def version(self) -> int:
        """Policy version: optimizer steps applied."""
        ...

    async def start(self) -> None:
        """Load the starting weights."""
        ...

    async def step(self, batch: TrainBatch) -> StepMetrics:
        """Apply one optimizer step over all ranks; waits for the slowest rank."""
        ...

    async def score(self, samples: Sequence[TrainSample]) -> tuple[tuple[float, ...], ...]:
        """Return the current (R,) log-probabilities of each sample's response, in nats, in the order given.

        Asked once a collection when it takes several optimizer steps, to fill ``TrainSample.old_logprobs``.
        """
        ...

    async def weights(self, *, snapshot: bool = False) -> WeightSource:
        """Return the current weights; with ``snapshot`` an immutable copy that later steps do not touch."""
        ...

    async def capture(self) -> LearnerState:
        """Return a copy of model, optimizer, schedule and random state, which later steps do not touch."""
        ...

    async def load(self, path: Path) -> None:
        """Restore what a captured state wrote, the version included."""
        ...

    async def export_hf(self, path: Path) -> None:
        """Write a Hugging Face folder (weights, config, tokenizer) that plain transformers loads."""
        ...

    async def close(self) -> None:
        """Free the memory. May be called twice."""
        ...
