"""Run on this machine: prepare ``output.root``, then train in this process.

The only door from the launcher half to the runtime half. It is opened late, because torch takes seconds to import.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import UserError
from grpo.launch.receipt import add_attempt, make_receipt, receipt_text
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths, write_whole
from grpo.plan.resolve import Plan
from grpo.plan.resume import differences
from grpo.types import RunResult

if TYPE_CHECKING:
    from grpo.runtime.rehearsal import Comparison


def run(plan: Plan, command: Sequence[str], *, json_output: bool = False, fork_from: Path | None = None) -> RunResult:
    """Prepare the output folder and train to the end.

    Args:
        command: the command line, for the receipt.
        json_output: keep stdout free for the final JSON object.
        fork_from: a checkpoint folder of another run, to begin from.

    Raises:
        UserError: the output folder is used or cannot be written.
        RunFailed: the run started and failed.
    """
    prepare(plan, command)
    return train(plan.job, json_output=json_output, fork_from=fork_from)


def export(run: Path, *, step: int | None, out: Path | None) -> Path:
    """Write a checkpoint's policy as a Hugging Face folder; see :func:`grpo.runtime.export.export`."""
    from grpo.runtime import export as exporting

    return exporting.export(run, step=step, out=out)


def train(job: JobSpec, *, json_output: bool = False, fork_from: Path | None = None) -> RunResult:
    """Train a resolved job in this process; what a node executes. A simulated one is rehearsed, without torch."""
    if job.engine.backend == "simulated":
        from grpo.runtime import rehearsal

        return rehearsal.rehearse(job, json_output=json_output)
    from grpo.runtime import entry

    return entry.train(job, json_output=json_output, fork_from=fork_from)


def simulate_modes(job: JobSpec) -> Comparison:
    """Rehearse a job in every publication mode; see :func:`grpo.runtime.rehearsal.compare_modes`."""
    from grpo.runtime import rehearsal

    return rehearsal.compare_modes(job)


def prepare(plan: Plan, command: Sequence[str]) -> RunPaths:
    """Write ``run.toml``, ``receipt.json`` and ``job.json`` into a fresh folder, or check that a run goes on there.

    Nothing that exists is removed: a folder that holds anything else, a complete run, or a run of another job is
    refused. An unfinished run of the same job is resumed; its receipt gets one more attempt.
    """
    paths = RunPaths(Path(plan.job.output.root))
    where = str(plan.provenance["output.root"].place) + " output.root"
    try:
        _refuse_used(paths, plan, where)
        paths.root.mkdir(parents=True, exist_ok=True)
        if paths.job.exists():
            _resume(paths, plan, command, where)
            return paths
        # The job comes last: with it, the folder holds a run; without, the same command begins again.
        write_whole(paths.config, plan.raw.text)
        write_whole(paths.receipt, receipt_text(make_receipt(plan, command)))
        write_whole(paths.job, plan.job.to_json().encode())
    except OSError as error:
        raise UserError(f"{_shown(paths.root)} cannot be written ({error.strerror})", where=where) from error
    return paths


def _resume(paths: RunPaths, plan: Plan, command: Sequence[str], where: str) -> None:
    """Record one more attempt, and the job with what may change in it."""
    try:
        recorded = JobSpec.read(paths.job)
    except ValueError:
        raise _used(f"{_shown(paths.job)} is not a job of this version of grpo", plan, paths, where) from None
    changed = differences(recorded, plan.job)
    if changed:
        raise _used(
            f"{_shown(paths.root)} holds an unfinished run of another job ({'; '.join(changed)})", plan, paths, where
        )
    write_whole(paths.job, plan.job.to_json().encode())
    write_whole(paths.receipt, receipt_text(add_attempt(paths.receipt.read_text(), plan, command)))


def _refuse_used(paths: RunPaths, plan: Plan, where: str) -> None:
    root = paths.root
    if not root.exists() and not root.is_symlink():
        return
    if not root.is_dir():
        raise UserError(f"{_shown(root)} is a file, not a folder", where=where, fix="Name a fresh folder.")
    if paths.result.exists():
        raise _used(f"{_shown(root)} holds a complete run", plan, paths, where)
    if paths.job.exists():
        return
    # A run that was killed before its job was written left these at most, and nobody else's run.toml is like ours.
    begun = {path.name for path in root.iterdir()} - {paths.lock.name, f".partial-{paths.job.name}"}
    ours = {paths.config.name, paths.receipt.name} if _same(paths.config, plan.raw.text) else set()
    if begun - ours:
        raise _used(f"{_shown(root)} is not empty", plan, paths, where)


def _same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


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
