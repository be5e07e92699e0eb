"""Sampling of the local engine, against distributions written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.engine.local.sampling import SamplingRows, UniformStream, sample, truncate
from grpo.types import SamplingParams

PROBS = (0.15, 0.4, 0.05, 0.3, 0.1)


def sample_one(uniform: float, **params: float) -> tuple[int, float]:
    rows = SamplingRows.of([SamplingParams(max_tokens=1, **params)], len(PROBS))  # type: ignore[arg-type]
    tokens, logprobs = sample(torch.tensor([PROBS]).log(), rows, torch.tensor([uniform], dtype=torch.float64))
    return int(tokens[0]), float(logprobs[0])


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.149, 0), (0.151, 1), (0.549, 1), (0.551, 2), (0.61, 3), (0.91, 4)]
)
def test_a_token_is_where_the_uniform_number_falls_in_the_cumulative_distribution(uniform: float, token: int) -> None:
    assert sample_one(uniform) == (token, pytest.approx(math.log(PROBS[token]), abs=1e-6))


def test_the_largest_uniform_number_gives_the_last_token_that_has_probability() -> None:
    largest = math.nextafter(1.0, 0.0)
    assert sample_one(largest)[0] == 4
    assert sample_one(largest, top_k=2)[0] == 3


def test_temperature_is_in_the_logprob_and_greedy_has_that_of_temperature_1() -> None:
    scaled = torch.tensor(PROBS).log().div(0.5).log_softmax(-1)
    assert sample_one(0.99, temperature=0.5) == (4, pytest.approx(float(scaled[4]), abs=1e-6))
    assert sample_one(0.99, temperature=0.0) == (1, pytest.approx(math.log(0.4), abs=1e-6))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.69}, {1, 3}),
        ({"top_p": 0.71}, {0, 1, 3}),
        ({"top_p": 0.3}, {1}),
        # Of the two that top-k keeps, the first has 4/7 of the mass.
        ({"top_k": 2, "top_p": 0.55}, {1}),
        ({"top_k": 2, "top_p": 0.6}, {1, 3}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
    ],
)
def test_truncation_keeps_exactly_the_most_probable_tokens_and_the_whole_logprob(params, expected) -> None:
    samples = {sample_one(step / 1000, **params) for step in range(1000)}
    assert {token for token, _ in samples} == expected
    assert all(logprob == pytest.approx(math.log(PROBS[token]), abs=1e-6) for token, logprob in samples)


def test_truncated_probabilities_keep_their_places() -> None:
    kept = truncate(torch.tensor([PROBS]), torch.tensor([[2]]), torch.tensor([[1.0]]))
    assert torch.equal(kept, torch.tensor([[0.0, 0.4, 0.0, 0.3, 0.0]]))


def test_rows_of_a_batch_do_not_disturb_each_other() -> None:
    params = [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=1, top_k=1),
        SamplingParams(max_tokens=1, temperature=2.0, top_p=0.5),
    ]
    logits = torch.tensor([PROBS] * 4).log()
    tokens, logprobs = sample(logits, SamplingRows.of(params, 5), torch.full((4,), 0.95, dtype=torch.float64))
    assert tokens.tolist() == [4, 1, 1, 3]
    expected = [
        float((row / t).log_softmax(-1)[i]) for row, t, i in zip(logits, (1, 1, 1, 2), (4, 1, 1, 3), strict=True)
    ]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_streams_repeat_by_seed_and_differ_between_seeds() -> None:
    def draws(seed: int) -> list[float]:
        stream = UniformStream(seed)
        return [stream.draw() for _ in range(200)]

    assert draws(7) == draws(7)
    assert len(set(draws(7))) == 200
    assert not set(draws(7)) & set(draws(8))
    assert all(0 <= number < 1 for number in draws(-1))
