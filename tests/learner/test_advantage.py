"""Group-relative advantages."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.learner.advantage import advantages


def test_an_advantage_is_the_reward_less_the_group_mean() -> None:
    assert advantages([1.0, 0.0, 0.0, 1.0], [True] * 4, std=False) == [0.5, -0.5, -0.5, 0.5]


def test_with_std_it_is_divided_by_the_sample_standard_deviation() -> None:
    # Of 1, 0, 0, 1: squared deviations add up to 1, over 4 - 1.
    scale = math.sqrt(1 / 3) + 1e-6
    assert advantages([1.0, 0.0, 0.0, 1.0], [True] * 4, std=True) == [
        0.5 / scale,
        -0.5 / scale,
        -0.5 / scale,
        0.5 / scale,
    ]


def test_responses_that_do_not_count_get_zero_and_leave_the_baseline() -> None:
    rewards = [1.0, None, 0.0, 0.5, 9.0]
    counts = [True, False, True, True, False]
    assert advantages(rewards, counts, std=False) == [0.5, 0.0, -0.5, 0.0, 0.0]
    assert advantages(rewards, counts, std=True) == [0.5 / (0.5 + 1e-6), 0.0, -0.5 / (0.5 + 1e-6), 0.0, 0.0]


@pytest.mark.parametrize("std", [False, True])
def test_equal_rewards_give_exact_zeros_even_where_their_mean_rounds(std: bool) -> None:
    assert sum([0.1] * 3) / 3 != 0.1
    assert advantages([0.1] * 3, [True] * 3, std=std) == [0.0, 0.0, 0.0]
    assert advantages([0.7], [True], std=std) == [0.0]
    assert advantages([None, 3.0], [False, False], std=std) == [0.0, 0.0]
    assert advantages([], [], std=std) == []


def test_a_counting_response_without_a_reward_is_an_error() -> None:
    with pytest.raises(ValueError, match="a response that counts has no reward"):
        advantages([1.0, None], [True, True], std=False)
    with pytest.raises(ValueError):
        advantages([1.0], [True, True], std=False)


@given(st.lists(st.tuples(st.floats(-10, 10), st.booleans()), max_size=12), st.booleans())
def test_the_advantages_of_a_group_add_up_to_zero_and_keep_the_order_of_rewards(
    group: list[tuple[float, bool]], std: bool
) -> None:
    rewards, counts = [reward for reward, _ in group], [counted for _, counted in group]
    result = advantages(rewards, counts, std=std)
    assert abs(math.fsum(result)) <= 1e-9
    counting = sorted((r, a) for r, a, counted in zip(rewards, result, counts, strict=True) if counted)
    assert [a for _, a in counting] == sorted(a for _, a in counting)


def test_the_controller_can_use_it_without_torch() -> None:
    code = "import grpo.learner.advantage, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
