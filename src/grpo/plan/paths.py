"""Every path of a run, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from grpo.errors import UserError

BUILTIN_PREFIX = "builtin:"


@dataclass(frozen=True)
class RunPaths:
    """The files and folders under ``output.root``."""

    root: Path

    @property
    def config(self) -> Path:
        """The TOML file as the user gave it."""
        return self.root / "run.toml"

    @property
    def job(self) -> Path:
        """The resolved job."""
        return self.root / "job.json"

    @property
    def receipt(self) -> Path:
        """What is needed to repeat or audit the run."""
        return self.root / "receipt.json"

    @property
    def metrics(self) -> Path:
        """One JSON row a collection or evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        """Audit trail: every transition of every group."""
        return self.root / "ledger.jsonl"

    @property
    def rollouts(self) -> Path:
        """Captured groups."""
        return self.root / "rollouts"

    @property
    def lock(self) -> Path:
        """Locked by the process that trains."""
        return self.root / ".lock"

    @property
    def captured(self) -> Path:
        """The file of captured groups."""
        return self.rollouts / "groups.jsonl"

    @property
    def growing(self) -> tuple[Path, ...]:
        """The files that a run appends to, and that a resumed run cuts back to its checkpoint."""
        return self.metrics, self.ledger, self.captured

    @property
    def checkpoints(self) -> Path:
        """Committed checkpoints, one folder each."""
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        """Logs, one file a role and rank."""
        return self.root / "logs"

    @property
    def result(self) -> Path:
        """Written last: the run's result. Its presence means that the run is complete."""
        return self.root / "result.json"


def builtin_models() -> tuple[str, ...]:
    """Names of the policies that ship with the package."""
    folder = Path(str(files("grpo"))) / "assets"
    return tuple(sorted(path.name for path in folder.iterdir() if (path / "config.json").exists()))


def shape_file(source: str) -> Path:
    """Return the ``config.json`` that ``model.plan_config`` means: a path, or ``builtin:NAME``; it may not exist.

    Raises:
        UserError: there is no built-in shape of that name.
    """
    if not source.startswith(BUILTIN_PREFIX):
        return Path(source)
    folder = Path(str(files("grpo"))) / "assets" / "shapes"
    names = sorted(path.stem for path in folder.glob("*.json"))
    name = source.removeprefix(BUILTIN_PREFIX)
    if name not in names:
        raise UserError(f"no built-in shape {name!r}", fix=f"The built-in shapes are: {', '.join(names)}.")
    return folder / f"{name}.json"


def model_dir(source: str) -> Path:
    """Return the folder of a model source: a path, or ``builtin:NAME``. Does not check that it holds a model."""
    if not source.startswith(BUILTIN_PREFIX):
        return Path(source)
    name = source.removeprefix(BUILTIN_PREFIX)
    if name not in builtin_models():
        raise UserError(f"no built-in model {name!r}", fix=f"The built-in models are: {', '.join(builtin_models())}.")
    return Path(str(files("grpo"))) / "assets" / name


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a loss of power."""
    aside = path.with_name(f".partial-{path.name}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
