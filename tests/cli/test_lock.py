"""The locks agree with each other, with what is declared and with what is installed."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_both_locks_pin_the_same_versions() -> None:
    lock = json.loads((ROOT / "runtime.lock.json").read_text())
    assert {name: version for part in lock["packages"].values() for name, version in part.items()} == pins()
    assert lock["python"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]


def test_every_declared_package_is_pinned_inside_its_range() -> None:
    lock = json.loads((ROOT / "runtime.lock.json").read_text())["packages"]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    parts = {"launcher": project["dependencies"], "build": declared["build-system"]["requires"]}
    parts |= {name: project["optional-dependencies"][name] for name in ("local", "dev")}
    for part, requirements in parts.items():
        for requirement in map(Requirement, requirements):
            assert requirement.specifier.contains(lock[part][canonicalize_name(requirement.name)]), requirement


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {name: metadata.version(name).partition("+")[0] for name in pins()}
    assert installed == pins()


def test_a_build_tag_is_not_pinned() -> None:
    assert not any("+" in version for version in pins().values())
