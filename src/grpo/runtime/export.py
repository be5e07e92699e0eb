"""A Hugging Face folder from any committed checkpoint of a run, without GPUs."""

from __future__ import annotations

from pathlib import Path

import torch

from grpo.errors import UserError
from grpo.learner.rank import LearnerRank
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.runtime.checkpoints import Checkpoint, newest_checkpoint, read_checkpoint


def export(run: Path, *, step: int | None = None, out: Path | None = None) -> Path:
    """Write the policy of a run's checkpoint as a Hugging Face folder and return it.

    Args:
        run: the run's ``output.root``.
        step: policy version; the newest whole checkpoint if not given.
        out: a new folder; ``export-hf-step-NNNNNN`` in the run if not given.

    Raises:
        UserError: there is no such run or checkpoint, it is damaged, or ``out`` is used.
    """
    paths = RunPaths(run)
    if not paths.job.is_file():
        raise UserError("holds no run", where=str(run), fix="Name the output.root of a run.")
    job = JobSpec.read(paths.job)
    checkpoint = _find(paths, step)
    folder = out or paths.root / f"export-hf-{checkpoint.path.name}"
    if folder.exists():
        raise UserError("exists already", where=str(folder), fix="Name another folder with --out.")
    rank = LearnerRank(job, device=torch.device("cpu"))
    rank.load(checkpoint.learner)
    rank.export_hf(folder)
    return folder


def _find(paths: RunPaths, step: int | None) -> Checkpoint:
    saved = sorted(int(path.name.removeprefix("step-")) for path in paths.checkpoints.glob("step-*"))
    if step is None:
        newest = newest_checkpoint(paths.checkpoints, lambda text: None)
        if newest is None:
            raise UserError("holds no checkpoint", where=str(paths.checkpoints))
        return newest
    if step not in saved:
        there = ", ".join(map(str, saved)) or "none"
        raise UserError(f"there is no checkpoint of step {step}", where=str(paths.checkpoints), fix=f"Steps: {there}.")
    return read_checkpoint(paths.checkpoints / f"step-{step:06d}")
