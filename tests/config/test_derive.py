"""Every derived number, against its formula worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grpo.config import derive
from grpo.config.settings import Settings

Read = Callable[..., Settings]

ASYNC = "[async]\nfully_async = true\n"
CASES: list[tuple[Callable[[Settings], Any], str, Any]] = [
    (derive.global_batch_size, "[inference]\nrollout_batch_size = 6\nsamples_per_prompt = 4", 24),
    (derive.steps_per_collection, "[inference]\nrollout_batch_size = 6\nglobal_batch_size = 16", 3),
    (derive.max_response_length, "[inference]\nmax_context_length = 101", 50),
    (derive.max_response_length, "", 3072),
    (derive.max_response_length, "[core]\n", 4096),
    (derive.max_response_length, "[miles]\nrollout_max_prompt_len = 192", 8000),
    (derive.eval_max_response_length, "[inference]\nmax_response_length = 7", 7),
    (derive.max_prompt_length, "[inference]\nmax_context_length = 64\nmax_response_length = 8", 56),
    (derive.max_prompt_length, "[inference]\nmax_context_length = 64\neval_max_response_length = 40", 24),
    (derive.asynchronous, "", False),
    (derive.asynchronous, ASYNC, True),
    (derive.asynchronous, "[core]\nmax_policy_lag = 1", True),
    (derive.asynchronous, "[core]\n", False),
    (derive.max_policy_lag, ASYNC, 6),
    (derive.max_policy_lag, ASYNC + "max_weight_staleness = 3", 3),
    (derive.max_policy_lag, "[training]\n", 0),
    (derive.max_policy_lag, "[core]\n", 0),
    (derive.publication_mode, ASYNC, "refresh"),
    (derive.publication_mode, "[training]\n", "barrier"),
    (derive.publication_mode, "[core]\nmax_policy_lag = 1", "barrier"),
    (derive.placement_mode, "", "disaggregated"),
    (derive.correction, "", "tis"),
    (derive.correction, "[miles]\nuse_tis = false", "none"),
    (derive.advantage_std, "[training]\n", False),
    (derive.advantage_std, "[core]\n", True),
    (derive.advantage_std, "[miles]\ndisable_grpo_std_normalization = true", False),
    (derive.advantage_std, "[training]\n[miles]\ndisable_grpo_std_normalization = false", True),
    # (floor(6 / 1) + 1) x 8, and with two steps a collection (floor(6 / 2) + 1) x 8
    (derive.max_groups_in_system, ASYNC, 56),
    (derive.max_groups_in_system, ASYNC + "[inference]\nglobal_batch_size = 32", 32),
    (derive.max_groups_in_system, ASYNC + "max_weight_staleness = 0", 8),
    (derive.max_groups_in_system, "[training]\n", 8),
    # ceil(161 / 8) groups; never below one collection; never above what the lag allows
    (derive.max_groups_in_system, ASYNC + "async_max_concurrent_samples = 161", 21),
    (derive.max_groups_in_system, ASYNC + "async_max_concurrent_samples = 1", 8),
    (derive.max_groups_in_system, ASYNC + "async_max_concurrent_samples = 9999", 56),
    (derive.buffer_groups, "", 16),
    (derive.buffer_groups, "[async]\nasync_data_buffer_capacity_factor = 1.3", 10),
    (derive.buffer_groups, "[async]\nasync_data_buffer_capacity_factor = 0.5", 8),
    (derive.starvation_groups, "[inference]\nrollout_batch_size = 3", 60),
    (derive.engine_count, "", 1),
    (derive.engine_count, "[inference]\ngpus = 1", 1),
    (derive.learner_ranks, "[trainer]\ngpus = 0", 1),
    (derive.eval_initial, "", False),
    (derive.eval_interval, "", 0),
    (derive.eval_final, "", False),
    (lambda settings: derive.seed(settings, "miles.seed"), "[data]\nseed = 5", 5),
    (lambda settings: derive.seed(settings, "miles.seed"), "[data]\nseed = 5\n[miles]\nseed = 6", 6),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "text", "value"), CASES)
def test_a_derived_value_is_what_its_formula_says(settings: Read, formula: Callable, text: str, value: Any) -> None:
    found = formula(settings(text))
    assert found.value == value and type(found.value) is type(value)


def test_evaluation_follows_the_held_out_data_and_what_was_asked(settings: Read) -> None:
    held_out = "[[data.tasks]]\ntask = 'addition'\ntrain_count = 1\neval_count = 1\n"
    plain = settings(held_out)
    assert [derive.eval_initial(plain).value, derive.eval_interval(plain).value] == [True, 20]
    asked = settings(
        held_out + "[training]\nskip_eval_before_train = true\n[evaluation]\ninterval = 3\nfinal = false\n"
    )
    assert [f(asked).value for f in (derive.eval_initial, derive.eval_interval, derive.eval_final)] == [False, 3, False]


def test_a_derived_value_shows_its_arithmetic_and_inputs(settings: Read) -> None:
    found = derive.max_groups_in_system(settings(ASYNC + "async_max_concurrent_samples = 161"))
    assert found.as_json() == {
        "kind": "derived",
        "key": "async.async_max_concurrent_samples",
        "arithmetic": "min((floor(6 lag / 1 steps) + 1) x 8 groups = 56, max(8, ceil(161 responses / 8)) = 21) = 21",
        "inputs": [
            "async.max_weight_staleness",
            "inference.global_batch_size",
            "inference.rollout_batch_size",
            "async.async_max_concurrent_samples",
        ],
    }
