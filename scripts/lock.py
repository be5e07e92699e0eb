"""Pin what is installed: write ``requirements/lock.txt`` and ``runtime.lock.json`` from this Python's environment.

    .venv/bin/python scripts/lock.py            write both
    .venv/bin/python scripts/lock.py --check    exit 1 if either differs from what is installed

``requirements/lock.txt`` holds an exact version of everything that ``grpo[local,dev]`` needs, what builds it included.
``runtime.lock.json`` says which of them each part of the product needs; receipts are compared with it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
RUNTIME_LOCK = ROOT / "runtime.lock.json"
HEADER = "# Exact versions of everything that grpo[local,dev] needs. Written by scripts/lock.py; do not edit.\n"


def closure(requirements: list[str]) -> dict[str, str]:
    """Return canonical name to public version of the requirements and of all that they need, as installed here.

    Raises:
        metadata.PackageNotFoundError: something is not installed.
    """
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(Requirement(text), frozenset[str]()) for text in requirements]
    while todo:
        requirement, extras_of_parent = todo.pop()
        environments = [{"extra": extra} for extra in extras_of_parent or ("",)]
        if requirement.marker and not any(requirement.marker.evaluate(environment) for environment in environments):
            continue
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        # A local tag such as +cpu names a build, which other machines may not be offered.
        versions[name] = metadata.version(name).partition("+")[0]
        todo += [(Requirement(text), extras | {""}) for text in metadata.requires(name) or ()]
    return dict(sorted(versions.items()))


def parts(pyproject: Path) -> dict[str, dict[str, str]]:
    """Return the pinned packages of the launcher, of each extra, and of the build."""
    declared = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    launcher = declared["project"]["dependencies"]
    extras = declared["project"]["optional-dependencies"]
    # hatchling needs editables for an editable install, and declares it only then.
    build = [*declared["build-system"]["requires"], "editables"]
    return {
        "launcher": closure(launcher),
        **{name: closure(launcher + extras[name]) for name in ("local", "dev")},
        "build": closure(build),
    }


def lock_text(pinned: dict[str, dict[str, str]]) -> str:
    """Return ``requirements/lock.txt``."""
    merged = {name: version for part in pinned.values() for name, version in part.items()}
    return HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(merged.items()))


def runtime_lock_text(pinned: dict[str, dict[str, str]], pyproject: Path) -> str:
    """Return ``runtime.lock.json``: of each part, what it declares and what it is pinned to."""
    declared = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lock = {"schema_version": 1, "python": declared["requires-python"], "packages": pinned}
    return json.dumps(lock, indent=2) + "\n"


def main() -> int:
    """Write or check both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is stale")
    check = parser.parse_args().check
    pyproject = ROOT / "pyproject.toml"
    pinned = parts(pyproject)
    stale = 0
    for path, text in ((LOCK, lock_text(pinned)), (RUNTIME_LOCK, runtime_lock_text(pinned, pyproject))):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run scripts/lock.py", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
