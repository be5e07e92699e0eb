"""Run files written into a folder of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config import checks
from grpo.config.load import load
from grpo.config.settings import Settings, read_settings

NEEDED = re.compile(r"run\.toml(:\d+)? (name|model\.source|output\.root|data): (is missing|no training data)")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write ``run.toml`` into the working directory of the test; returns its relative path, as a user types it."""
    monkeypatch.chdir(tmp_path)

    def do(text: str) -> Path:
        Path("run.toml").write_text(text)
        return Path("run.toml")

    return do


@pytest.fixture
def problems(write: Callable[[str], Path]) -> Callable[..., list[str]]:
    """Return the problems that schema and rules find in a text, those about what every file needs aside."""

    def do(text: str, *overrides: str) -> list[str]:
        settings, found = read_settings(load(write(text), overrides))
        lines = [str(problem) for problem in found + checks.check(settings)]
        return [line for line in lines if not NEEDED.match(line)]

    return do


@pytest.fixture
def settings(write: Callable[[str], Path]) -> Callable[..., Settings]:
    """Return the settings of a text that has no schema problems."""

    def do(text: str, *overrides: str) -> Settings:
        found, problems = read_settings(load(write(text), overrides))
        assert problems == []
        return found

    return do
