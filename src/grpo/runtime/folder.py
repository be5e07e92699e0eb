"""A run's folder, as a process that trains takes hold of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from grpo.errors import UserError
from grpo.plan.paths import RunPaths
from grpo.runtime.checkpoints import Checkpoint


@contextmanager
def only_process(paths: RunPaths) -> Iterator[None]:
    """Hold the folder's lock, which the system releases whenever and however the process ends.

    Raises:
        UserError: another process holds it, or the run is complete.
    """
    paths.root.mkdir(parents=True, exist_ok=True)
    with paths.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another process is training this run", where=str(paths.root), fix="Wait for it, or stop it first."
            ) from None
        if paths.result.exists():
            raise UserError("the run is complete", where=str(paths.root), fix="Start a new one in a fresh folder.")
        yield


def cut_back(paths: RunPaths, checkpoint: Checkpoint | None) -> None:
    """Cut the growing files to their lengths at ``checkpoint``: what came after it will be written again.

    Without a checkpoint the run begins anew, and so do the files. Raises UserError if a file is shorter than it was.
    """
    lengths = checkpoint.controller["files"] if checkpoint else {}
    for path in paths.growing:
        if not path.exists() and not lengths.get(str(path.relative_to(paths.root))):
            continue
        length = lengths.get(str(path.relative_to(paths.root)), 0)
        if not path.exists() or path.stat().st_size < length:
            raise UserError(
                f"is shorter than it was at the checkpoint of version {checkpoint.version if checkpoint else 0}",
                where=str(path),
                fix="It was cut or replaced after the run stopped; restore it, or start a new run.",
            )
        os.truncate(path, length)
