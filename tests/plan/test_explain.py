"""Where a value came from, and how two jobs differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.errors import UserError
from grpo.plan.explain import all_keys, difference, difference_lines, explain
from grpo.plan.resolve import plan

Write = Callable[..., Path]


def test_every_value_of_a_job_can_be_explained_by_its_path_and_by_its_key(write: Write) -> None:
    resolved = plan(write())
    for path, origin in resolved.provenance.items():
        assert path in [each.path for each in explain(resolved, path)]
        if origin.key in all_keys():
            found = explain(resolved, origin.key)
            assert path in [each.path for each in found]
            assert all(each.lines() and each.as_json() for each in found)


def test_what_the_command_line_and_another_name_replaced_is_shown(write: Write) -> None:
    path = write('[[data.tasks]]\ntask = "addition"\ntrain_count = 64\n[training]\nnum_rollouts = 7\n')
    (found,) = explain(plan(path, ["miles.num_rollout=9"]), "num_rollouts")
    assert found.lines()[:4] == [
        "batch.num_rollouts = 9 collections",
        "  from       --set miles.num_rollout",
        "  instead of training.num_rollouts = 7 (run.toml:13)",
        "  instead of miles.num_rollout = 100 (default)",
    ]


def test_a_derived_value_shows_its_arithmetic_and_where_its_inputs_came_from(write: Write) -> None:
    path = write('[[data.tasks]]\ntask = "addition"\ntrain_count = 64\n[async]\nfully_async = true\n')
    resolved = plan(path, ["inference.rollout_batch_size=4"])
    found = next(each for each in explain(resolved, "sync.max_groups_in_system"))
    assert found.lines()[:5] == [
        "sync.max_groups_in_system = 28",
        "  from       derived: (floor(6 lag / 1 steps) + 1) x 4 groups = 28",
        "  because    async.max_weight_staleness = 6 (derived: default of an asynchronous run = 6 steps)",
        "  because    inference.global_batch_size = 32 (derived: 4 groups x 8 samples = 32 responses)",
        "  because    inference.rollout_batch_size = 4 (--set inference.rollout_batch_size)",
    ]


def test_a_key_that_does_not_exist_names_the_near_one(write: Write) -> None:
    resolved = plan(write())
    for key, fix in (
        ("inference.sample_per_prompt", "Did you mean inference.samples_per_prompt?"),
        ("max_policy_lagg", "Did you mean core.max_policy_lag?"),
        ("xyzzy", ""),
    ):
        with pytest.raises(UserError) as error:
            explain(resolved, key)
        assert (error.value.what, error.value.fix) == (f"there is no key {key!r}", fix)
    with pytest.raises(UserError, match=r"core\.expert_publication has no value of its own in the job"):
        explain(resolved, "core.expert_publication")


def test_jobs_differ_in_exactly_the_values_that_differ(write: Write) -> None:
    path = write()
    ours, theirs = plan(path), plan(path, ["optimizer.learning_rate=1e-5", "async.fully_async=true"])
    rows = difference(ours, theirs)
    flat = {row["path"]: (row["ours"]["value"], row["theirs"]["value"]) for row in rows}
    assert flat == {
        "optimizer.learning_rate": (1e-6, 1e-5),
        "sync.asynchronous": (False, True),
        "sync.publication_mode": ("barrier", "refresh"),
        "sync.max_policy_lag": (0, 6),
        "sync.max_groups_in_system": (8, 56),
    }
    lines = difference_lines(rows, ("a.toml", "b.toml"))
    assert lines[:3] == [
        "optimizer.learning_rate",
        "  - a.toml: 1e-06  (default of optimizer.learning_rate)",
        "  + b.toml: 1e-05  (--set optimizer.learning_rate)",
    ]
    assert difference(ours, plan(path)) == []
