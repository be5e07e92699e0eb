"""Begin a run from a checkpoint of another: its weights, optimizer, data cursor, ledger and history so far."""

from __future__ import annotations

import shutil
from pathlib import Path

from grpo.errors import UserError
from grpo.plan.paths import RunPaths
from grpo.runtime.checkpoints import read_checkpoint


def fork(source: Path, paths: RunPaths) -> None:
    """Copy the checkpoint folder ``source``, and its run's files up to its moment, into a run that has no checkpoint.

    The checkpoint gets its name last, so that a copy that was cut short is made again. The source is not touched.

    Raises:
        UserError: the checkpoint is not whole, or its run's files are gone.
    """
    if (source / "checkpoints").is_dir():
        steps = ", ".join(sorted(path.name for path in (source / "checkpoints").glob("step-*"))) or "none"
        raise UserError("is a run, not a checkpoint", where=str(source), fix=f"Name one of checkpoints/: {steps}.")
    if not source.is_dir():
        raise UserError("there is no such checkpoint", where=str(source), fix="Name a checkpoints/step-NNNNNN folder.")
    checkpoint = read_checkpoint(source)
    origin = RunPaths(source.resolve().parents[1])
    for file in paths.growing:
        name = str(file.relative_to(paths.root))
        length = checkpoint.controller["files"].get(name, 0)
        if length:
            _copy_start(origin.root / name, file, length)
    aside = paths.checkpoints / f".partial-{source.name}"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside)
    aside.rename(paths.checkpoints / source.name)


def _copy_start(source: Path, target: Path, length: int) -> None:
    if not source.is_file() or source.stat().st_size < length:
        raise UserError("is gone or shorter than it was at the checkpoint", where=str(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, target.open("wb") as writer:
        left = length
        while left and (chunk := reader.read(min(left, 1 << 20))):
            writer.write(chunk)
            left -= len(chunk)
