"""A real tiny model folder, and run files that name it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.models import make_model


@pytest.fixture(scope="session")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama with its tokenizer."""
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def folder(a_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of the test, with a copy of the model in ``model``."""
    shutil.copytree(a_model, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


PLAIN = """\
schema_version = 1
name = "plain"
[model]
source = "model"
[output]
root = "out"
[inference]
max_context_length = 64
"""
TASK = '[[data.tasks]]\ntask = "addition"\ntrain_count = 64\n'


@pytest.fixture
def write(folder: Path) -> Callable[..., Path]:
    """Write ``run.toml``: a plain run with more text at its end."""

    def do(more: str = TASK, text: str = PLAIN) -> Path:
        Path("run.toml").write_text(text + more)
        return Path("run.toml")

    return do
