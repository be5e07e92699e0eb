"""Whether a run may write where it is told to. Looks only; touches nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from grpo.config import derive
from grpo.config.findings import Advice
from grpo.config.settings import Settings
from grpo.errors import UserError
from grpo.plan.paths import RunPaths


def output_problems(settings: Settings) -> Iterator[UserError]:
    """Yield what is wrong with ``output.root`` and the export folder of a run on this machine."""
    if derive.launch_backend(settings).value != "local":
        return  # the folder is on machines that cannot be seen from here
    root = settings.path("output.root")
    if root is None:
        return
    where = settings.where("output.root")
    if problem := _not_writable(root):
        yield UserError(problem, where=where, fix="Name a fresh folder.")
    elif used := _used(root):
        yield Advice(used[0], where=where, fix=used[1])
    export = settings.path("output.hf_dir")
    if export is None or not settings.value("output.export_hf"):
        return
    where = settings.where("output.hf_dir")
    if problem := _not_writable(export):
        yield UserError(problem, where=where, fix="Name a fresh folder.")
    elif _entries(export) and not RunPaths(root).job.exists():  # an unfinished run may have filled it itself
        yield UserError(f"{export} is not empty", where=where, fix="Name a fresh folder.")


def _not_writable(folder: Path) -> str:
    """Return why a folder cannot be made or written, or nothing."""
    try:
        for there in (folder, *folder.parents):
            if not there.exists() and not there.is_symlink():
                continue
            if not there.is_dir():
                return f"{there} is a file, not a folder"
            return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written"
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror})"
    return ""


def _used(root: Path) -> tuple[str, str] | None:
    """Return what a folder already holds, and what that means for a run; None for a fresh one."""
    paths, fresh = RunPaths(root), "Name a fresh folder for a new run."
    if paths.result.exists():
        return f"{root} holds a complete run", fresh
    if paths.job.exists():
        return f"{root} holds an unfinished run", "grpo run goes on with it if the job is the same."
    return (f"{root} is not empty", fresh) if _entries(root) else None


def _entries(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError:
        return False
