from collections import Counter
from itertools import islice, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.data.permutation import Permutation
from grpo.data.source import PromptSource, SourceState
from grpo.errors import UserError
from grpo.types import Prompt


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p/{index}", (index,), str(index), "1", "integer", "p") for index in range(count)]


@given(st.integers(1, 3000), st.integers(), st.integers(0, 5))
def test_a_permutation_takes_every_value_exactly_once(size: int, seed: int, epoch: int) -> None:
    permutation = Permutation(size, seed, epoch)
    assert sorted(permutation[index] for index in range(size)) == list(range(size))
    with pytest.raises(IndexError):
        permutation[size]


@pytest.mark.parametrize("size", [3, 4])
def test_every_order_of_a_few_elements_is_about_equally_likely(size: int) -> None:
    orders = Counter(tuple(Permutation(size, seed)) for seed in range(4800))
    expected = 4800 / len(list(permutations(range(size))))
    chi_square = sum((orders[order] - expected) ** 2 / expected for order in permutations(range(size)))
    # The 99.9 % points of chi-square with 5 and 23 degrees of freedom; the seeds are fixed, so this never flickers.
    assert chi_square < {3: 20.5, 4: 49.7}[size]


def test_neighbours_do_not_stay_neighbours() -> None:
    size = 10_000
    order = list(Permutation(size, 1))
    steps = Counter((b - a) % size for a, b in pairwise(order))
    assert max(steps.values()) <= 8  # Poisson with mean 1: more has probability 0.01 over all 10,000 steps


def test_the_order_of_a_seed_is_pinned_so_that_every_platform_draws_the_same() -> None:
    assert [list(Permutation(7, 3, epoch)) for epoch in (0, 1)] == [[0, 1, 5, 2, 6, 3, 4], [0, 1, 6, 4, 3, 5, 2]]
    million = Permutation(1_000_000, 3, 0)
    assert [million[index] for index in range(5)] == [738290, 670855, 799638, 315098, 815986]


@given(st.integers(1, 40), st.integers(), st.booleans())
def test_each_epoch_draws_every_prompt_exactly_once(count: int, seed: int, shuffle: bool) -> None:
    data = prompts(count)
    source = PromptSource(data, seed=seed, shuffle=shuffle)
    for _ in range(3):
        epoch = list(islice(source, count))
        assert sorted(prompt.tokens for prompt in epoch) == [prompt.tokens for prompt in data]


def test_without_shuffling_every_epoch_is_in_the_order_of_the_file() -> None:
    data = prompts(3)
    assert list(islice(PromptSource(data, seed=1, shuffle=False), 7)) == [*data, *data, data[0]]


def test_with_shuffling_epochs_and_seeds_differ_and_a_seed_repeats() -> None:
    def draw(seed: int) -> list[Prompt]:
        return list(islice(PromptSource(prompts(50), seed=seed, shuffle=True), 100))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1)[:50] != draw(1)[50:]
    assert draw(1)[:50] != prompts(50)


@given(st.integers(1, 12), st.integers(0, 40), st.booleans())
def test_a_restored_source_goes_on_where_the_other_stopped(count: int, drawn: int, shuffle: bool) -> None:
    source = PromptSource(prompts(count), seed=5, shuffle=shuffle)
    for _ in range(drawn):
        source.next()
    state = source.state()
    assert state == SourceState(epoch=drawn // count, position=drawn % count)
    other = PromptSource(prompts(count), seed=5, shuffle=shuffle)
    other.next()
    other.restore(state)
    assert list(islice(other, 25)) == list(islice(source, 25))


def test_a_cursor_that_the_data_cannot_have_is_an_error() -> None:
    source = PromptSource(prompts(3), seed=0, shuffle=True)
    with pytest.raises(UserError) as caught:
        source.restore(SourceState(2, 3))
    assert str(caught.value) == (
        "the checkpoint stopped at prompt 3 of epoch 2, but the data now has 3 prompts. "
        "Resume with the data that the run was started with."
    )
    assert source.state() == SourceState(0, 0)


def test_no_prompts_is_an_error() -> None:
    with pytest.raises(UserError, match=r"^there are no training prompts$"):
        PromptSource([], seed=0, shuffle=True)
