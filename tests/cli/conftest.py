"""The command line, called in this process."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from grpo.cli.main import main
from support.models import make_model


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]

RUN = """\
# a comment
schema_version = 1
name = "plain"
[model]
source = "model"
[output]
root = "out"
[inference]
rollout_batch_size = 2
samples_per_prompt = 2
max_response_length = 4
max_context_length = 64
[training]
num_rollouts = 1
filter_zero_std_groups = false
[[data.tasks]]
task = "addition"
train_count = 8
"""


@pytest.fixture
def grpo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run one command line."""

    def do(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["grpo", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Done(stop.value.code, captured.out, captured.err)

    return do


@pytest.fixture(scope="session")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama with its tokenizer."""
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def folder(a_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of the test, with a model in ``model`` and a run file ``run.toml``."""
    shutil.copytree(a_model, tmp_path / "model")
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path
