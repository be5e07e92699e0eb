"""grpo run on this machine: what it writes before it trains, and what it refuses."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from grpo.errors import UserError
from grpo.launch.local import prepare
from grpo.launch.receipt import git_state, package_versions
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.plan.resolve import plan

Cli = Callable[..., tuple[int, str, str]]


def test_a_fresh_root_gets_the_file_the_job_and_the_receipt(folder: Path) -> None:
    resolved = plan(Path("run.toml"), ["data.seed=3"])
    paths = prepare(resolved, ["grpo", "run", "run.toml", "--set", "data.seed=3"])
    assert sorted(path.name for path in paths.root.iterdir()) == ["job.json", "receipt.json", "run.toml"]
    assert paths.config.read_bytes() == (folder / "run.toml").read_bytes()
    assert JobSpec.read(paths.job) == resolved.job
    receipt = json.loads(paths.receipt.read_text())
    assert receipt["command"] == ["grpo", "run", "run.toml", "--set", "data.seed=3"]
    assert receipt["config"] == {
        "path": f"{folder}/run.toml",
        "sha256": resolved.raw.sha256,
        "overrides": ["data.seed=3"],
    }
    assert receipt["job_sha256"] == resolved.job.sha256()
    assert receipt["python"] == platform.python_version()
    assert receipt["packages"]["pydantic"] == metadata.version("pydantic")
    assert receipt["working_directory"] == str(folder)
    assert set(receipt) == {
        *("schema_version", "name", "created", "command", "working_directory", "user", "host", "config"),
        *("job_sha256", "grpo", "python", "platform", "packages"),
    }


def test_an_empty_folder_is_a_fresh_root(folder: Path) -> None:
    (folder / "out").mkdir()
    prepare(plan(Path("run.toml")), [])
    assert (folder / "out" / "job.json").exists()


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (["notes.txt"], "out is not empty"),
        (["job.json"], "out holds an unfinished run, and resuming is not built yet"),
        (["job.json", "result.json"], "out holds a complete run"),
    ],
)
def test_a_used_root_is_refused_with_the_command_for_a_new_one(
    grpo: Cli, folder: Path, files: list[str], what: str
) -> None:
    (folder / "out").mkdir()
    for name in files:
        (folder / "out" / name).write_text("mine")
    (folder / "out-2").mkdir()
    assert grpo("run", "run.toml", "--set", "data.seed=3") == (
        2,
        "",
        f"error: run.toml:7 output.root: {what}. Start a new one: grpo run run.toml --set data.seed=3 --set "
        "output.root='\"out-3\"'\n",
    )
    assert {path.name: path.read_text() for path in (folder / "out").iterdir()} == dict.fromkeys(files, "mine")


def test_the_command_for_a_new_run_works_as_it_is(folder: Path) -> None:
    import shlex

    (folder / "out").mkdir()
    (folder / "out" / "x").touch()
    resolved = plan(Path("run.toml"), ['output.root="out"', "data.seed=4"])
    with pytest.raises(UserError) as error:
        prepare(resolved, [])
    command = shlex.split(error.value.fix.removeprefix("Start a new one: "))
    assert command == ["grpo", "run", "run.toml", "--set", "data.seed=4", "--set", 'output.root="out-2"']
    again = plan(Path(command[2]), command[4::2])
    assert again.job.output.root == f"{folder}/out-2"
    assert again.job.data.seed == 4


def test_a_root_that_is_a_file_or_cannot_be_made_is_refused(folder: Path) -> None:
    with pytest.raises(UserError) as error:
        prepare(plan(Path("run.toml"), ['output.root="run.toml"']), [])
    assert str(error.value) == "--set output.root: run.toml is a file, not a folder. Name a fresh folder."
    with pytest.raises(UserError) as error:
        prepare(plan(Path("run.toml"), ['output.root="run.toml/x"']), [])
    assert str(error.value) == "--set output.root: run.toml/x cannot be written (Not a directory)"


def test_of_two_runs_that_start_at_once_one_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = plan(Path("run.toml"))
    monkeypatch.setattr("grpo.launch.local._refuse_used", lambda *_: RunPaths(folder / "out").config.parent.mkdir())
    monkeypatch.setattr(Path, "mkdir", _mkdir_and_lose_the_race(Path.mkdir))
    with pytest.raises(UserError, match="out was taken by another run just now"):
        prepare(resolved, [])


def _mkdir_and_lose_the_race(mkdir: Callable[..., None]) -> Callable[..., None]:
    def do(self: Path, *args: object, **kwargs: object) -> None:
        mkdir(self, *args, **kwargs)
        (self / "run.toml").touch()

    return do


def test_a_run_trains_and_its_last_line_is_json(grpo: Cli, folder: Path) -> None:
    code, out, err = grpo("run", "run.toml", "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["steps"], result["output_root"]) == ("complete", 1, f"{folder}/out")
    assert {"run.toml", "job.json", "receipt.json", "metrics.jsonl"} <= {
        path.name for path in (folder / "out").iterdir()
    }


def test_git_state_is_that_of_the_code_and_none_outside_git(tmp_path: Path) -> None:
    import subprocess

    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "a.txt").write_text("1")
    for arguments in (["init", "-q"], ["add", "a.txt"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    revision = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert git_state(tmp_path) == {"revision": revision, "dirty": False}
    (tmp_path / "a.txt").write_text("2")
    assert git_state(tmp_path) == {"revision": revision, "dirty": True}


def test_package_versions_leave_development_tools_out() -> None:
    assert {"pydantic", "typer", "torch", "transformers"} <= set(package_versions())
    assert not {"pytest", "ruff", "hypothesis"} & set(package_versions())
