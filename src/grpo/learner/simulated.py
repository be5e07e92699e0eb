"""A learner without a model: counts policy versions and takes as long as its assumptions say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import RunFailed
from grpo.plan.job import SimulationSpec
from grpo.types import StepMetrics, TrainBatch, TrainSample

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class SimulatedWeights:
    """Weights that are only a version."""

    version: int

    def buckets(self, max_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """There are no tensors."""
        return iter(())

    def write(self, path: Path) -> None:
        """Write the version."""
        path.mkdir(parents=True)
        (path / "simulated.json").write_text(json.dumps({"version": self.version}) + "\n")


class SimulatedLearner:
    """The Learner protocol over :class:`~grpo.plan.job.SimulationSpec`.

    Args:
        fail_at: raise instead of making this policy version.
        hang_at: never finish the step that would make this policy version.

    Attributes:
        batches: sample ids of every step, in order; what a test holds against the ledger.
    """

    def __init__(self, spec: SimulationSpec, *, fail_at: int | None = None, hang_at: int | None = None) -> None:
        self._spec = spec
        self._fail_at = fail_at
        self._hang_at = hang_at
        self._version = 0
        self.busy_s = 0.0
        self.batches: list[tuple[str, ...]] = []

    @property
    def version(self) -> int:
        """Steps made."""
        return self._version

    async def start(self) -> None:
        """Take as long as loading takes."""
        await asyncio.sleep(self._spec.load_s)

    async def step(self, batch: TrainBatch) -> StepMetrics:
        """Wait as long as the batch's tokens take."""
        if batch.step != self._version + 1:
            raise AssertionError(f"step {batch.step} after version {self._version}")
        if batch.step == self._fail_at:
            raise RuntimeError("the simulated learner failed")
        if batch.step == self._hang_at:
            await asyncio.get_running_loop().create_future()
        tokens = sum(len(sample.tokens) for sample in batch.samples)
        seconds = self._spec.train_base_s + tokens / self._spec.train_tokens_per_s
        await asyncio.sleep(seconds)
        self._version = batch.step
        self.busy_s += seconds
        self.batches.append(tuple(sample.sample_id for sample in batch.samples))
        return StepMetrics(
            version=self._version,
            loss=0.0,
            policy_loss=0.0,
            entropy=0.0,
            kl=0.0,
            grad_norm=0.0,
            learning_rate=0.0,
            clip_low_fraction=0.0,
            clip_high_fraction=0.0,
            tis_mean=1.0,
            tis_max=1.0,
            tis_capped_fraction=0.0,
            logprob_diff_mean=0.0,
            logprob_diff_max=0.0,
            samples=len(batch.samples),
            loss_tokens=sum(sample.response_length for sample in batch.samples if sample.counts),
            tokens=tokens,
            micro_batches=1,
            seconds=seconds,
        )

    async def score(self, samples: Sequence[TrainSample]) -> tuple[tuple[float, ...], ...]:
        """Return the behavior log-probabilities: engine and learner agree exactly here."""
        return tuple(sample.behavior_logprobs for sample in samples)

    async def weights(self, *, snapshot: bool = False) -> SimulatedWeights:
        """Return the version."""
        return SimulatedWeights(self._version)

    async def capture(self) -> SimulatedWeights:
        """Return the version."""
        return SimulatedWeights(self._version)

    async def load(self, path: Path) -> None:
        """Read the version."""
        self._version = json.loads((path / "simulated.json").read_text())["version"]

    async def export_hf(self, path: Path) -> None:
        """There is nothing to export."""
        raise RunFailed("a simulated run has no model to export", fix="Set output.export_hf = false.")

    async def close(self) -> None:
        """There is nothing to free."""
