"""Which checkpoints a run leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import UserError
from grpo.learner.simulated import SimulatedLearner
from grpo.plan.job import CheckpointSpec, SimulationSpec
from grpo.plan.paths import RunPaths
from grpo.runtime import entry
from grpo.runtime.checkpoints import Checkpoints, newest_checkpoint, read_checkpoint
from grpo.runtime.ledger import Ledger, State
from support.jobs import make_job


def checkpoints(tmp_path: Path, warnings: list[str] | None = None, steps: int = 1, **fields: Any) -> Checkpoints:
    spec = CheckpointSpec(**{"save": True, "interval": 0, "keep_last": 0, "keep_every": 0, **fields})
    warn = (warnings if warnings is not None else []).append
    return Checkpoints(RunPaths(tmp_path), spec, steps_per_collection=steps, warn=warn)


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def write(store: Checkpoints, *versions: int) -> None:
    learner = SimulatedLearner(SimulationSpec())
    for version in versions:
        learner._version = version
        await store.save(learner, store.mark({"collections": version}))
    await store.wait(must=True)


@pytest.mark.parametrize(
    ("interval", "expected"), [(0, [5]), (2, [2, 4, 5]), (1, [1, 2, 3, 4, 5])], ids=["final", "every 2", "every 1"]
)
def test_checkpoints_are_due_at_the_interval_and_at_the_end(tmp_path: Path, interval: int, expected: list[int]) -> None:
    store = checkpoints(tmp_path, interval=interval)
    assert [c for c in range(1, 6) if store.due(c, last=c == 5)] == expected


def test_only_the_newest_and_every_so_many_are_kept(tmp_path: Path) -> None:
    asyncio.run(write(checkpoints(tmp_path, keep_last=2, keep_every=2, steps=2), *range(2, 16, 2)))
    assert saved(tmp_path / "checkpoints") == ["step-000004", "step-000008", "step-000012", "step-000014"]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_save_that_fails_is_warned_of_and_leaves_the_last_one(tmp_path: Path, overlap: bool) -> None:
    warnings: list[str] = []
    store = checkpoints(tmp_path, warnings, keep_last=1, overlap=overlap)
    blocked = tmp_path / "checkpoints" / "step-000002"
    blocked.mkdir(parents=True)
    (blocked / "mine").write_text("a user's")

    learner_at_2 = SimulatedLearner(SimulationSpec())
    learner_at_2._version = 2

    async def run_and_fail() -> None:
        await write(store, 1)
        await store.save(learner_at_2, store.mark({}))
        await store.wait()

    asyncio.run(run_and_fail())
    assert len(warnings) == 1
    assert "the checkpoint could not be written" in warnings[0]
    assert "Training goes on." in warnings[0]
    assert saved(tmp_path / "checkpoints") == ["step-000001", "step-000002"]  # and nothing half-written
    assert (blocked / "mine").read_text() == "a user's"
    assert read_checkpoint(tmp_path / "checkpoints" / "step-000001").version == 1


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:-1])
    else:
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


FILES = ["COMMITTED", "controller.json", "learner/simulated.json"]


@pytest.mark.parametrize("how", ["deleted", "cut", "flipped"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_taken(
    tmp_path: Path, name: str, how: str
) -> None:
    asyncio.run(write(checkpoints(tmp_path), 1, 2))
    folder = tmp_path / "checkpoints"
    assert read_checkpoint(folder / "step-000002").version == 2
    damage(folder / "step-000002" / name, how)
    warnings: list[str] = []
    taken = newest_checkpoint(folder, warnings.append)
    assert taken is not None
    assert taken.version == 1
    assert len(warnings) == 1
    assert warnings[0].startswith("not resuming from step-000002: ")
    assert name in warnings[0]


def test_without_a_whole_checkpoint_it_stops_with_what_to_do(tmp_path: Path) -> None:
    asyncio.run(write(checkpoints(tmp_path), 1))
    folder = tmp_path / "checkpoints"
    damage(folder / "step-000001" / "COMMITTED", "deleted")
    with pytest.raises(UserError) as error:
        newest_checkpoint(folder, lambda text: None)
    assert str(error.value) == (
        f"{folder}: none of the 1 checkpoints is whole. Restore one from a backup, or start a new run with another "
        "output.root."
    )


def test_there_is_nothing_to_resume_in_a_fresh_folder(tmp_path: Path) -> None:
    (tmp_path / ".partial-step-000001-77").mkdir()
    assert newest_checkpoint(tmp_path, lambda text: None) is None


def test_a_run_saves_learner_ledger_and_cursor_together(tmp_path: Path) -> None:
    job = make_job(tmp_path, checkpoint=dict(save=True, interval=2, keep_last=0))
    entry.train(job, json_output=True)
    folder = Path(job.output.root) / "checkpoints"
    assert saved(folder) == ["step-000002", "step-000004"]
    checkpoint = read_checkpoint(folder / "step-000002")
    assert checkpoint.version == checkpoint.controller["collections"] == 2
    assert [score["version"] for score in checkpoint.controller["evaluations"]] == [0]
    ledger = Ledger()
    ledger.load(checkpoint.controller["ledger"])
    assert ledger.ended[State.TRAINED] == 2 * job.batch.rollout_batch_size
    assert checkpoint.controller["cursor"] == {"epoch": ledger.drawn // 64, "position": ledger.drawn % 64}
    assert saved(checkpoint.learner) == [".metadata", "__0_0.distcp"]
