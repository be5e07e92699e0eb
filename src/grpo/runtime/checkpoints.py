"""Checkpoints of a run: ``checkpoints/step-NNNNNN/``, each written aside, checksummed, and moved into place when whole.

::

    step-000040/
        learner/          sharded, torch.distributed.checkpoint
        controller.json   version, collection, data cursor, ledger, evaluations, lengths of the run's files
        COMMITTED         size and SHA-256 of every file above; written last

A folder without a valid ``COMMITTED`` is never picked up. What is written is flushed to the disk before the folder gets
its name, so that a machine that loses power leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.crash import crash_point
from grpo.errors import RunFailed, UserError
from grpo.learner.protocol import Learner, LearnerState
from grpo.plan.job import CheckpointSpec
from grpo.plan.paths import RunPaths

CONTROLLER_STATE = "controller.json"
LEARNER_STATE = "learner"
MARKER = "COMMITTED"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, its files checked.

    Attributes:
        controller: what :meth:`Checkpoints.save` was given, and ``files``: the length in bytes of each of the run's
            growing files at that moment.
    """

    path: Path
    version: int
    controller: Mapping[str, Any]

    @property
    def learner(self) -> Path:
        """The learner's folder."""
        return self.path / LEARNER_STATE


class Checkpoints:
    """Writes checkpoints and removes those that the user does not want to keep.

    A save holds the trainer up only while the learner copies its state; the writing overlaps training, unless
    ``overlap`` is off. One save is under way at a time.

    Args:
        steps_per_collection: ``keep_every`` counts collections.
        warn: told of a save that failed; the checkpoints before it are untouched.
    """

    def __init__(
        self, paths: RunPaths, spec: CheckpointSpec, *, steps_per_collection: int, warn: Callable[[str], None]
    ) -> None:
        self._paths = paths
        self._spec = spec
        self._keep_every = spec.keep_every * steps_per_collection
        self._warn = warn
        self._writing: asyncio.Task[None] | None = None
        self.newest = -1  # the policy version of the newest checkpoint that is committed or under way

    def due(self, collection: int, *, last: bool) -> bool:
        """Whether a checkpoint is due after ``collection`` (from 1)."""
        if not self._spec.save:
            return False
        return last or (self._spec.interval > 0 and collection % self._spec.interval == 0)

    def mark(self, controller: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``controller`` with the lengths of the run's growing files: a moment that a run can go back to.

        Args:
            controller: JSON values that say where data, ledger and evaluations are now.
        """
        files = {str(path.relative_to(self._paths.root)): _size(path) for path in self._paths.growing}
        return {**controller, "files": files}

    async def save(self, learner: Learner, mark: Mapping[str, Any]) -> None:
        """Begin to write a checkpoint of the learner's version, unless there is one.

        Waits for the save before it and for the learner's copy.

        Args:
            mark: a moment at which the learner had the version that it has now.
        """
        if learner.version == self.newest:
            return
        state = {**mark, "version": learner.version}
        crash_point("save.begin")
        await self.wait()
        captured = await learner.capture()
        crash_point("save.captured")
        self.newest = state["version"]
        final = self._paths.checkpoints / f"step-{self.newest:06d}"
        self._writing = asyncio.create_task(asyncio.to_thread(self._write, final, captured, state), name="checkpoint")
        if not self._spec.overlap:
            await self.wait()

    async def wait(self, *, must: bool = False) -> None:
        """Wait for the save under way; one that failed is warned of, or raised where there ``must`` be a checkpoint."""
        if self._writing is None:
            return
        task, self._writing = self._writing, None
        try:
            await task
        except RunFailed as error:
            self.newest = -1
            if must:
                raise
            self._warn(f"{error} Training goes on.")

    def _write(self, final: Path, captured: LearnerState, state: Mapping[str, Any]) -> None:
        aside = final.with_name(f".partial-{final.name}-{os.getpid()}")
        try:
            aside.mkdir(parents=True)
            crash_point("save.folder")
            captured.write(aside / LEARNER_STATE)
            crash_point("save.learner")
            (aside / CONTROLLER_STATE).write_text(json.dumps(state, sort_keys=True) + "\n")
            crash_point("save.controller")
            manifest = {name: _fingerprint(aside / name) for name in _files(aside)}
            (aside / MARKER).write_text(_sealed(manifest))
            crash_point("save.marker")
            for name in [*_files(aside), MARKER]:
                _flush(aside / name)
            crash_point("save.flushed")
            aside.rename(final)
            crash_point("save.renamed")
            _flush(final.parent)
            self._prune()
            crash_point("save.pruned")
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)  # ours, unfinished, and on a full disk in the way
            raise RunFailed(
                f"the checkpoint could not be written ({error.strerror or error})",
                where=str(final),
                fix="Free space on that disk; earlier checkpoints are untouched.",
            ) from error

    def _prune(self) -> None:
        """Remove all but the newest ``keep_last`` and those of every ``keep_every`` collections."""
        if not self._spec.keep_last:
            return
        committed = sorted(path.parent for path in self._paths.checkpoints.glob(f"step-*/{MARKER}"))
        for folder in committed[: -self._spec.keep_last]:
            step = int(folder.name.removeprefix("step-"))
            if not self._keep_every or step % self._keep_every:
                shutil.rmtree(folder)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check every file of it.

    Raises:
        UserError: it is not committed, or a file is missing, cut or changed; names the file.
    """
    try:
        text = (path / MARKER).read_text()
        manifest: dict[str, list[Any]] = json.loads(text.splitlines()[0])
        if _sealed(manifest) != text:
            raise ValueError("changed after it was written")
    except (OSError, ValueError, IndexError, TypeError):
        raise UserError(f"has no valid {MARKER} file, so it was never committed whole", where=str(path)) from None
    for name in sorted({*manifest, *_files(path)}):
        if name not in manifest:
            raise UserError("does not belong to the checkpoint", where=str(path / name))
        if not (path / name).is_file():
            raise UserError("is missing", where=str(path / name))
        if _fingerprint(path / name) != manifest[name]:
            raise UserError("was changed or cut after it was written", where=str(path / name))
    controller = json.loads((path / CONTROLLER_STATE).read_text())
    return Checkpoint(path, controller["version"], controller)


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest checkpoint that is whole; None if there was never one.

    A damaged one is named to ``warn``, and the one before it is taken.

    Raises:
        UserError: there are checkpoints, but none is whole.
    """
    found = sorted(folder.glob("step-*"), reverse=True)
    for path in found:
        try:
            return read_checkpoint(path)
        except UserError as error:
            warn(f"not resuming from {path.name}: {error}")
    if found:
        raise UserError(
            f"none of the {len(found)} checkpoints is whole",
            where=str(folder),
            fix="Restore one from a backup, or start a new run with another output.root.",
        )
    return None


def _files(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != MARKER)


def _sealed(manifest: Mapping[str, Any]) -> str:
    """Return the text of the marker: the manifest on one line, and on the next a hash of that line."""
    line = json.dumps(manifest, sort_keys=True)
    return f"{line}\n{hashlib.sha256(line.encode()).hexdigest()}\n"


def _fingerprint(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
