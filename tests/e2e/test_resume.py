"""A run that is killed anywhere resumes with the same command, and ends as if it had not been."""

from __future__ import annotations

import hashlib
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo.errors import UserError
from grpo.obs.jsonl import read_rows
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.runtime import entry
from grpo.runtime.export import export
from support.jobs import make_job
from support.zygote import Zygote


def job_of(folder: Path, *, lag: int = 0, mode: str = "barrier") -> Path:
    """Write the job.json of a small run that saves after every collection; return its path."""
    groups = 4
    job = make_job(
        folder,
        batch=dict(num_rollouts=5, rollout_batch_size=groups, samples_per_prompt=4, global_batch_size=16),
        data=dict(tasks=(dict(task="addition", train_count=50, eval_count=16),)),
        evaluation=dict(initial=True, interval=2, final=True),
        output=dict(export_hf=True, rollout_sample_rate=1.0),
        checkpoint=dict(save=True, interval=1, keep_last=2),
        learner=dict(cpu_threads=1),
        sync=dict(
            asynchronous=lag > 0,
            publication_mode=mode,
            max_policy_lag=lag,
            max_groups_in_system=(lag + 1) * groups,
            buffer_groups=2 * groups,
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.json"
    path.write_text(job.to_json())
    return path


def root_of(job: Path) -> RunPaths:
    return RunPaths(Path(JobSpec.read(job).output.root))


def rows_without_times(paths: RunPaths) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "time"} for row in read_rows(paths.metrics)]


def check_books(paths: RunPaths) -> list[str]:
    """Audit ledger and rollouts of a complete run; return the ids of the prompts that were drawn, in order."""
    transitions = read_rows(paths.ledger)
    state: dict[tuple[int, int], str] = {}
    ends: dict[int, dict[str, Any]] = {}
    prompts: dict[int, str] = {}
    for row in transitions:
        key = (row["group_id"], row["attempt"])
        assert state.get(key, "pending") == row["before"], row
        state[key] = row["after"]
        ends[row["group_id"]] = row
        assert prompts.setdefault(row["group_id"], row["prompt_id"]) == row["prompt_id"]
    live = {"pending", "in_flight", "graded", "buffered"}
    assert not [key for key, last in state.items() if last in live]
    assert sorted(prompts) == list(range(len(prompts)))
    trained = Counter(row["group_id"] for row in transitions if row["after"] == "trained")
    assert set(trained.values()) == {1}
    # Independently: what the captured rollouts say was trained.
    captured = Counter(row["group_id"] for row in read_rows(paths.captured) if row["outcome"] == "trained")
    assert captured == trained
    # No prompt is drawn twice in an epoch of 50.
    drawn = [prompts[group] for group in sorted(prompts)]
    for start in range(0, len(drawn), 50):
        epoch = drawn[start : start + 50]
        assert len(set(epoch)) == len(epoch)
    steps = [row["step"] for row in read_rows(paths.metrics) if row["kind"] == "step"]
    assert steps == list(range(1, 6))
    return drawn


def weights_hash(paths: RunPaths) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(paths.root / "export-hf" / "model.safetensors").items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


def finish(zygote: Zygote, job: Path) -> RunPaths:
    """Run a job to its end."""
    code, errors = zygote.train(job)
    assert code == 0, errors
    return root_of(job)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> RunPaths:
    return finish(zygote, job_of(tmp_path_factory.mktemp("whole")))


def check_equal(paths: RunPaths, whole: RunPaths) -> None:
    check_books(paths)
    assert json.dumps(rows_without_times(paths)) == json.dumps(rows_without_times(whole))
    assert paths.ledger.read_bytes() == whole.ledger.read_bytes()
    assert weights_hash(paths) == weights_hash(whole)


POINTS = [
    "run.begin",
    "run.opened",
    "run.started",
    "evaluation.begin",
    "evaluation.answered:20",
    "group.admitted",
    "group.admitted:7",
    "group.graded:3",
    "group.buffered:4",
    "step.taken",
    "step.taken:5",
    "step.done",
    "step.done:3",
    "publication.begin",
    "publication.loaded:2",
    "step.published:2",
    "step.reported",
    "step.reported:5",
    "save.begin:2",
    "save.captured:2",
    "save.folder:2",
    "save.learner:2",
    "save.controller:2",
    "save.marker:2",
    "save.flushed:2",
    "save.renamed",
    "save.renamed:5",
    "save.pruned:3",
    "export.begin",
    "export.aside",
    "run.done",
]
FAST = {"step.done:3", "save.marker:2", "save.renamed:5", "group.graded:3"}


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in FAST else [pytest.mark.slow]) for point in POINTS]
)
def test_a_run_killed_at_a_named_point_resumes_and_ends_the_same(
    tmp_path: Path, point: str, uninterrupted: RunPaths, zygote: Zygote
) -> None:
    job = job_of(tmp_path)
    code, errors = zygote.train(job, crash_at=point)
    assert code == -signal.SIGKILL, f"{point} was never passed\n{errors}"
    check_equal(finish(zygote, job), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
@pytest.mark.parametrize("point", ["group.buffered:6", "step.done:2", "publication.loaded:3", "save.marker:3"])
def test_an_asynchronous_run_killed_at_a_named_point_draws_the_same_prompts(
    tmp_path: Path, mode: str, point: str, zygote: Zygote
) -> None:
    whole = check_books(finish(zygote, job_of(tmp_path / "whole", lag=2, mode=mode)))
    job = job_of(tmp_path / "killed", lag=2, mode=mode)
    code, errors = zygote.train(job, crash_at=point)
    assert code == -signal.SIGKILL, f"{point} was never passed\n{errors}"
    drawn = check_books(finish(zygote, job))
    shorter = min(len(whole), len(drawn))
    assert drawn[:shorter] == whole[:shorter]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_runs_killed_at_random_times_again_and_again_end_the_same(
    tmp_path: Path, seed: int, uninterrupted: RunPaths, zygote: Zygote
) -> None:
    """Ten kills a run, ten runs: a hundred in all. A killed run that makes no progress is given more time."""
    rng = random.Random(seed)
    job = job_of(tmp_path)
    kills, patience = 0, 1.0
    while kills < 10:
        code, errors = zygote.train(job, signal_after=(signal.SIGKILL, rng.uniform(0.05, patience)))
        if code == 0:
            break
        assert code == -signal.SIGKILL, errors
        kills += 1
        patience += 0.25
    check_equal(root_of(job) if code == 0 else finish(zygote, job), uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_the_run_with_a_checkpoint_and_exit_code_75(
    tmp_path: Path, number: int, uninterrupted: RunPaths, zygote: Zygote
) -> None:
    job = job_of(tmp_path)
    # From the first evaluation on, the run handles signals.
    code, errors = zygote.train(job, signal_after=(number, 0.2), once=root_of(job).metrics)
    assert code == 75, errors
    assert f"{signal.Signals(number).name}: stopping after this step; again to end at once" in errors
    assert "with a committed checkpoint. Resume with the same command." in errors
    check_equal(finish(zygote, job), uninterrupted)


def test_a_fork_goes_on_from_a_checkpoint_with_its_history_and_leaves_the_source_alone(
    tmp_path: Path, uninterrupted: RunPaths
) -> None:
    source = uninterrupted.checkpoints / "step-000004"
    before = {path: path.read_bytes() for path in uninterrupted.root.rglob("*") if path.is_file()}
    job = JobSpec.read(job_of(tmp_path))
    forked = job.model_copy(
        update={
            "output": job.output.model_copy(update={"root": str(tmp_path / "fork"), "hf_dir": str(tmp_path / "hf")}),
            "optimizer": job.optimizer.model_copy(update={"learning_rate": 0.0}),
        }
    )
    entry.train(forked, json_output=True, fork_from=source)
    paths = RunPaths(tmp_path / "fork")
    check_books(paths)
    rows, original = rows_without_times(paths), rows_without_times(uninterrupted)
    assert rows[:-2] == original[:-2]
    assert rows[-2]["learner"]["learning_rate"] == 0.0
    assert {path: path.read_bytes() for path in uninterrupted.root.rglob("*") if path.is_file()} == before


def test_any_checkpoint_can_be_exported(tmp_path: Path) -> None:
    job = JobSpec.read(job_of(tmp_path))
    entry.train(job, json_output=True)
    paths = RunPaths(Path(job.output.root))
    paths.job.write_text(job.to_json())
    newest = export(paths.root)
    assert newest == paths.root / "export-hf-step-000005"
    trained = load_file(paths.root / "export-hf" / "model.safetensors")
    exported = load_file(newest / "model.safetensors")
    assert sorted(exported) == sorted(trained)
    assert all(torch.equal(exported[name], trained[name]) for name in trained)
    earlier = load_file(export(paths.root, step=4, out=tmp_path / "four") / "model.safetensors")
    assert any(not torch.equal(earlier[name], trained[name]) for name in trained)
    with pytest.raises(UserError) as error:
        export(paths.root, step=3)
    assert str(error.value) == f"{paths.checkpoints}: there is no checkpoint of step 3. Steps: 4, 5."


def test_a_run_told_to_end_before_where_it_is_does_not_become_complete(
    tmp_path: Path, uninterrupted: RunPaths, zygote: Zygote
) -> None:
    job = job_of(tmp_path)
    assert zygote.train(job, crash_at="step.published:4")[0] == -signal.SIGKILL
    shorter = JobSpec.read(job)
    shorter = shorter.model_copy(update={"batch": shorter.batch.model_copy(update={"num_rollouts": 2})})
    with pytest.raises(UserError) as error:
        entry.train(shorter, json_output=True)
    paths = root_of(job)
    assert str(error.value) == (
        f"{paths.checkpoints}/step-000003: 3 collections are trained already, and training.num_rollouts is 2. "
        "Set it to 3 to end the run here, or to more to go on."
    )
    assert not paths.result.exists()
    check_equal(finish(zygote, job), uninterrupted)
