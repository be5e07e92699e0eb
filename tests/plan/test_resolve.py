"""From a run file to a job: every value, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import ConfigErrors
from grpo.plan.job import JobSpec
from grpo.plan.resolve import Plan, plan

Write = Callable[..., Path]

LOW_LEVEL = """\
name = "low"
[data]
prompt_data = "train.jsonl"
[output]
root = "/out"
[core]
max_policy_lag = 2
max_sequence_length = 128
activation_checkpointing = false
[miles]
hf_checkpoint = "model"
lr = 1e-5
num_rollout = 7
n_samples_per_prompt = 4
rollout_max_response_len = 32
custom_reward_post_process_path = "open_instruct.miles.rewards.truncation.exclude_truncated"
"""


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every value of a job, as provenance names it."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and path == "data.tasks" and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{index}")
    else:
        yield path


def test_every_value_of_the_job_has_an_origin(write: Write) -> None:
    resolved = plan(write())
    assert set(resolved.provenance) == set(leaves(resolved.job.model_dump(mode="json")))
    for path, origin in resolved.provenance.items():
        assert bool(origin.place) == (origin.kind in ("file", "set")), path
        assert bool(origin.arithmetic) >= (origin.kind == "derived"), path


def test_the_job_survives_json(write: Write) -> None:
    job = plan(write()).job
    assert JobSpec.from_json(job.to_json()) == job
    assert JobSpec.from_json(job.to_json()).to_json() == job.to_json()
    assert JobSpec.from_json(job.to_json()).sha256() == job.sha256()


def test_equal_files_give_equal_jobs_and_any_change_another_hash(write: Write) -> None:
    first = plan(write()).job
    assert plan(write()).job == first
    assert plan(write(), ["data.seed=18"]).job.sha256() != first.sha256()


def test_paths_are_relative_to_the_file_or_on_the_command_line_to_the_working_directory(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert plan(Path("../run.toml")).job.output.root == f"{folder}/out"
    job = plan(Path("../run.toml"), ['output.root="out"', "output.export_hf=true", 'output.hf_dir="../hf"']).job
    assert job.output.root == f"{folder}/elsewhere/out"
    assert job.output.hf_dir == f"{folder}/hf"
    assert job.model.source == f"{folder}/model"


def test_nothing_is_expanded_in_a_path(write: Write, folder: Path) -> None:
    assert plan(write(), ['output.root="~/$HOME"']).job.output.root == f"{folder}/~/$HOME"


def test_a_low_level_file_resolves_with_its_own_defaults(write: Write, folder: Path) -> None:
    (folder / "train.jsonl").write_text(json.dumps({"prompt": "1+1=", "ground_truth": "2", "verifier": "integer"}))
    resolved = plan(write("", LOW_LEVEL))
    job = resolved.job
    assert job.model.source == f"{folder}/model"
    assert job.data.prompt_data == f"{folder}/train.jsonl"
    assert (job.batch.num_rollouts, job.batch.samples_per_prompt) == (7, 4)
    assert (job.batch.max_response_length, job.batch.max_context_length) == (32, 128)
    assert job.optimizer.learning_rate == 1e-5
    assert not job.learner.activation_recompute
    assert job.objective.advantage_std
    assert job.filter.exclude_truncated
    # Low-level: barrier by default, and asynchronous because of the lag: (floor(2 / 1) + 1) x 8 groups.
    assert (job.sync.asynchronous, job.sync.publication_mode, job.sync.max_policy_lag) == (True, "barrier", 2)
    assert job.sync.max_groups_in_system == 24
    assert resolved.provenance["optimizer.learning_rate"].as_json() == {
        "kind": "file",
        "key": "miles.lr",
        "place": "run.toml:12",
    }


def test_problems_of_schema_rules_and_files_come_together(write: Write, folder: Path) -> None:
    path = write(
        '[[data.tasks]]\ntask = "nope"\ntrain_count = 1\n[training]\nnum_rollout = 3\n[optimizer]\neps_clip = 2\n'
    )
    with pytest.raises(ConfigErrors) as error:
        plan(path, ["inference.samples_per_prompt=1"])
    assert [problem.where for problem in error.value.problems] == [
        "run.toml:13 training.num_rollout",
        "run.toml:15 optimizer.eps_clip",
        "--set inference.samples_per_prompt",
        "run.toml:10 data.tasks[0].task",
    ]


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["cpu", "dev", "node", "three-node"])
def test_the_plan_of_an_example_is_the_golden_one(name: str) -> None:
    resolved = plan(ROOT / "configs" / "examples" / f"{name}.toml")
    assert as_golden(resolved) == (ROOT / "tests" / "golden" / f"plan-{name}.json").read_text()


def as_golden(resolved: Plan) -> str:
    """Return the JSON of a plan with the path of the checkout cut off."""
    return json.dumps(resolved.as_json(), indent=2).replace(f"{ROOT}/", "") + "\n"
