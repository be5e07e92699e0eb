"""What is needed to repeat or audit a run: the receipt."""

from __future__ import annotations

import getpass
import json
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from grpo import __version__
from grpo.plan.resolve import Plan

GIT_TIMEOUT_S = 10.0


def make_receipt(plan: Plan, command: Sequence[str]) -> dict[str, Any]:
    """Return the receipt of a run that is about to start.

    Args:
        command: the command line, program first.
    """
    return {
        "schema_version": 1,
        "name": plan.job.name,
        "attempts": [_attempt(plan, command)],
        "config": {
            "path": str(plan.raw.path),
            "sha256": plan.raw.sha256,
            "overrides": list(plan.raw.overrides),
        },
        "grpo": {"version": __version__, "git": git_state(Path(__file__).parent)},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
    }


def add_attempt(receipt: str, plan: Plan, command: Sequence[str]) -> dict[str, Any]:
    """Return the receipt in the text ``receipt`` with one more attempt to finish the run."""
    known = json.loads(receipt)
    return {**known, "attempts": [*known["attempts"], _attempt(plan, command)]}


def receipt_text(receipt: dict[str, Any]) -> bytes:
    """Return the content of ``receipt.json``."""
    return (json.dumps(receipt, indent=2, sort_keys=True) + "\n").encode()


def _attempt(plan: Plan, command: Sequence[str]) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "working_directory": str(Path.cwd()),
        "user": _user(),
        "host": socket.gethostname(),
        "job_sha256": plan.job.sha256(),
    }


def package_versions() -> dict[str, str]:
    """Return the installed version of every package that grpo declares, development tools aside."""
    try:
        requirements = metadata.requires("grpo") or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return {}
    versions: dict[str, str] = {}
    for requirement in requirements:
        if re.search(r"extra\s*==\s*['\"]dev['\"]", requirement):
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return dict(sorted(versions.items()))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return revision and whether anything is uncommitted, if git tracks the files of ``folder``; else None."""
    if not _git(folder, "ls-files", "--", "."):
        return None
    revision = _git(folder, "rev-parse", "HEAD")
    return {"revision": revision, "dirty": bool(_git(folder, "status", "--porcelain"))} if revision else None


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            # Without --no-optional-locks, status would write into the user's repository.
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for the user id, as in some containers
        return ""


def command_line() -> list[str]:
    """Return the command line of this process, with the program as a user types it."""
    return ["grpo", *sys.argv[1:]]
