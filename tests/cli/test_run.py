"""grpo run on this machine: what it writes before it trains, and what it refuses."""

from __future__ import annotations

import fcntl
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
from grpo.plan.resolve import plan
from grpo.runtime.folder import only_process

Cli = Callable[..., tuple[int, str, str]]


def test_a_fresh_root_gets_the_file_the_job_and_the_receipt(folder: Path) -> None:
    resolved = plan(Path("run.toml"), ["data.seed=3"])
    paths = prepare(resolved, ["grpo", "run", "run.toml", "--set", "data.seed=3"])
    assert sorted(path.name for path in paths.root.iterdir()) == ["job.json", "receipt.json", "run.toml"]
    assert paths.config.read_bytes() == (folder / "run.toml").read_bytes()
    assert JobSpec.read(paths.job) == resolved.job
    receipt = json.loads(paths.receipt.read_text())
    (attempt,) = receipt["attempts"]
    assert attempt["command"] == ["grpo", "run", "run.toml", "--set", "data.seed=3"]
    assert receipt["config"] == {
        "path": f"{folder}/run.toml",
        "sha256": resolved.raw.sha256,
        "overrides": ["data.seed=3"],
    }
    assert attempt["job_sha256"] == resolved.job.sha256()
    assert receipt["python"] == platform.python_version()
    assert receipt["packages"]["pydantic"] == metadata.version("pydantic")
    assert attempt["working_directory"] == str(folder)
    assert set(attempt) == {"started", "command", "working_directory", "user", "host", "job_sha256"}
    assert set(receipt) == {
        *("schema_version", "name", "attempts", "config", "grpo", "python", "platform", "packages"),
    }


def test_an_empty_folder_is_a_fresh_root(folder: Path) -> None:
    (folder / "out").mkdir()
    prepare(plan(Path("run.toml")), [])
    assert (folder / "out" / "job.json").exists()


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (["notes.txt"], "out is not empty"),
        (["run.toml"], "out is not empty"),
        (["job.json"], "out/job.json is not a job of this version of grpo"),
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
    assert str(error.value) == (f"--set output.root: {folder}/run.toml is a file, not a folder. Name a fresh folder.")
    with pytest.raises(UserError) as error:
        prepare(plan(Path("run.toml"), ['output.root="run.toml/x"']), [])
    assert str(error.value) == (f"--set output.root: {folder}/run.toml is a file, not a folder. Name a fresh folder.")


def test_an_unfinished_run_goes_on_and_its_receipt_gets_an_attempt(folder: Path) -> None:
    paths = prepare(plan(Path("run.toml")), ["grpo", "run", "run.toml"])
    again = plan(Path("run.toml"), ["training.num_rollouts=7"])  # more of the same
    assert prepare(again, ["grpo", "run", "run.toml", "--set", "training.num_rollouts=7"]) == paths
    assert paths.job.read_text() == again.job.to_json()
    attempts = json.loads(paths.receipt.read_text())["attempts"]
    assert [attempt["command"][3:] for attempt in attempts] == [[], ["--set", "training.num_rollouts=7"]]


def test_an_unfinished_run_of_another_job_is_refused_with_the_difference(folder: Path) -> None:
    paths = prepare(plan(Path("run.toml")), [])
    before = paths.job.read_text()
    with pytest.raises(UserError) as error:
        prepare(plan(Path("run.toml"), ["optimizer.learning_rate=1.0", "data.seed=3"]), [])
    assert "out holds an unfinished run of another job (data.seed: " in str(error.value)
    assert "optimizer.learning_rate: " in str(error.value)
    assert "optimizer.learning_rate: 1e-06 -> 1.0" in str(error.value)
    assert paths.job.read_text() == before


def test_a_run_killed_before_its_job_was_written_begins_again(folder: Path) -> None:
    resolved = plan(Path("run.toml"))
    paths = prepare(resolved, [])
    paths.job.unlink()
    prepare(resolved, [])
    assert paths.job.read_text() == resolved.job.to_json()


def test_of_two_processes_in_one_folder_the_second_is_refused(folder: Path) -> None:
    paths = prepare(plan(Path("run.toml")), [])
    with paths.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is training this run"), only_process(paths):
            raise AssertionError("not reached")


def test_a_run_trains_and_its_last_line_is_json(grpo: Cli, folder: Path) -> None:
    code, out, err = grpo("run", "run.toml", "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["steps"], result["output_root"]) == ("complete", 1, f"{folder}/out")
    assert {"run.toml", "job.json", "receipt.json", "metrics.jsonl"} <= {
        path.name for path in (folder / "out").iterdir()
    }


LOW_LEVEL = """\
name = "low"
[core]
max_policy_lag = 1
max_sequence_length = 64
filter_zero_std_groups = false
[miles]
hf_checkpoint = "model"
prompt_data = "train.jsonl"
save = "out"
num_rollout = 2
rollout_batch_size = 2
n_samples_per_prompt = 2
rollout_max_response_len = 4
"""


def test_a_file_of_core_and_miles_alone_plans_validates_and_trains(grpo: Cli, folder: Path) -> None:
    rows = [{"prompt": f"{a}+1=", "ground_truth": str(a + 1), "verifier": "integer"} for a in range(8)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "low.toml").write_text(LOW_LEVEL)
    job = plan(Path("low.toml")).job
    assert (job.sync.asynchronous, job.sync.publication_mode, job.sync.max_policy_lag) == (True, "barrier", 1)
    assert (job.objective.advantage_std, job.objective.router_aux_weight, job.objective.router_z_weight) == (
        True,
        0.01,
        1e-5,
    )
    assert grpo("validate", "low.toml")[:2] == (0, "low.toml: no problems found\n")
    code, out, err = grpo("run", "low.toml", "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["steps"], result["output_root"]) == ("complete", 2, f"{folder}/out")


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


def test_a_run_whose_folder_was_renamed_goes_on(folder: Path) -> None:
    prepare(plan(Path("run.toml")), [])
    (folder / "out").rename(folder / "moved")
    again = plan(Path("run.toml"), ['output.root="moved"'])
    assert prepare(again, []).root == folder / "moved"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ([], "fresh"),
        (["notes.txt"], "used: a run would be refused"),
        (["job.json"], "holds an unfinished run: it would go on"),
        (["job.json", "result.json"], "holds a complete run: another one would be refused"),
    ],
)
def test_plan_says_what_a_run_would_do_with_the_folder(grpo: Cli, folder: Path, files: list[str], state: str) -> None:
    (folder / "out").mkdir()
    for name in files:
        (folder / "out" / name).touch()
    code, out, _ = grpo("plan", "run.toml")
    assert code == 0
    assert f"out ({state})" in out


def test_a_run_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    plain = plan(Path("run.toml")).job
    (folder / "run.toml").write_bytes(b"\xef\xbb\xbf" + (folder / "run.toml").read_bytes())
    marked = plan(Path("run.toml")).job
    assert marked.model_copy(update={"config_sha256": plain.config_sha256}) == plain
