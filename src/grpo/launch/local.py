"""Run on this machine: prepare ``output.root``, then train in this process."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from grpo.errors import UserError
from grpo.launch.receipt import make_receipt, write_receipt
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.plan.resolve import Plan
from grpo.types import RunResult


def run(plan: Plan, command: Sequence[str], *, json_output: bool = False) -> RunResult:
    """Prepare the output folder and train to the end.

    Args:
        command: the command line, for the receipt.
        json_output: keep stdout free for the final JSON object.

    Raises:
        UserError: the output folder is used or cannot be written.
        RunFailed: the run started and failed.
    """
    prepare(plan, command)
    return train(plan.job, json_output=json_output)


def train(job: JobSpec, *, json_output: bool = False) -> RunResult:
    """Train a resolved job in this process; what a node executes."""
    # The only door from the launcher half to the runtime half; opened late, because torch takes seconds to import.
    from grpo.runtime import entry

    return entry.train(job, json_output=json_output)


def prepare(plan: Plan, command: Sequence[str]) -> RunPaths:
    """Write ``run.toml``, ``job.json`` and ``receipt.json`` into a fresh output folder.

    Nothing that exists is changed: a folder that holds anything is refused.
    """
    paths = RunPaths(Path(plan.job.output.root))
    where = str(plan.provenance["output.root"].place) + " output.root"
    try:
        _refuse_used(paths, plan, where)
        paths.root.mkdir(parents=True, exist_ok=True)
        try:
            # Whoever creates this file owns the folder; a second run that starts at the same time is refused.
            with paths.config.open("xb") as file:
                file.write(plan.raw.text)
        except FileExistsError:
            raise _used(f"{_shown(paths.root)} was taken by another run just now", plan, paths, where) from None
        with paths.job.open("x", encoding="utf-8") as file:
            file.write(plan.job.to_json())
        write_receipt(paths.receipt, make_receipt(plan, command))
    except OSError as error:
        raise UserError(f"{_shown(paths.root)} cannot be written ({error.strerror})", where=where) from error
    return paths


def _refuse_used(paths: RunPaths, plan: Plan, where: str) -> None:
    root = paths.root
    if not root.exists() and not root.is_symlink():
        return
    if not root.is_dir():
        raise UserError(f"{_shown(root)} is a file, not a folder", where=where, fix="Name a fresh folder.")
    if not any(root.iterdir()):
        return
    if paths.complete.exists():
        what = f"{_shown(root)} holds a complete run"
    elif paths.job.exists():
        what = f"{_shown(root)} holds an unfinished run, and resuming is not built yet"
    else:
        what = f"{_shown(root)} is not empty"
    raise _used(what, plan, paths, where)


def _used(what: str, plan: Plan, paths: RunPaths, where: str) -> UserError:
    return UserError(what, where=where, fix=f"Start a new one: {fresh_command(plan, paths.root)}")


def fresh_command(plan: Plan, root: Path) -> str:
    """Return the command that starts the same run in the first free folder next to ``root``: ``runs/cpu-2``."""
    number = 2
    while (free := root.with_name(f"{root.name}-{number}")).exists():
        number += 1
    kept = [override for override in plan.raw.overrides if not override.strip().startswith("output.root")]
    escaped = _shown(free).replace("\\", "\\\\").replace('"', '\\"')
    words = ["grpo", "run", plan.raw.name]
    for override in [*kept, f'output.root="{escaped}"']:
        words += ["--set", override]
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    # output.root='"runs/cpu-2"' reads better than the whole word in quotes.
    key, equals, value = word.partition("=")
    if equals and shlex.quote(key) == key:
        return f"{key}={shlex.quote(value)}"
    return shlex.quote(word)


def _shown(path: Path) -> str:
    """Return a path as a user would type it: relative to the working directory if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
