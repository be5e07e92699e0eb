"""Micro-batches: what is in them, and that packed neighbours do not see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.errors import RunFailed, UserError
from grpo.learner.model import load_policy, response_logprobs
from grpo.learner.packing import MicroBatch, first_fit_decreasing, micro_batches
from grpo.learner.rank import LearnerRank
from grpo.plan.job import LearnerSpec
from grpo.types import TrainSample
from support.jobs import make_job
from support.plain_objective import random_samples

CPU = torch.device("cpu")


def spec(**fields: object) -> LearnerSpec:
    return make_job(Path("unused"), learner=fields).learner


def cut(samples: Sequence[TrainSample], **fields: object) -> list[MicroBatch]:
    return list(micro_batches(samples, spec(**fields), lambda sample: sample.advantage / 10))


SHORT = TrainSample("short", (5, 6, 7), 2, (-0.5,), 1.0)
LONG = TrainSample("long", (10, 11, 12, 13, 14), 2, (-1.0, -2.0, -3.0), 2.0, counts=False)
MIDDLE = TrainSample("middle", (20, 21, 22, 23), 1, (-4.0, -5.0, -6.0), -3.0)


def test_padded_rows_are_sorted_by_length_and_cut_by_micro_batch_size() -> None:
    first, second = cut([SHORT, LONG, MIDDLE], micro_batch_size=2)
    assert (first.indices, second.indices) == ((1, 2), (0,))
    assert first.input_ids.tolist() == [[10, 11, 12, 13, 14], [20, 21, 22, 23, 0]]
    assert first.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert first.predictors.tolist() == [1, 2, 3, 5, 6, 7]
    assert first.targets.tolist() == [12, 13, 14, 21, 22, 23]
    assert first.lengths.tolist() == [3, 3]
    assert first.counts.tolist() == [False, False, False, True, True, True]
    assert first.weights.tolist() == pytest.approx([0.2, 0.2, 0.2, -0.3, -0.3, -0.3])
    assert first.advantages.tolist() == [2.0, 2.0, 2.0, -3.0, -3.0, -3.0]
    assert first.behavior_logprobs.tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    assert first.old_logprobs is None
    assert (first.tokens, second.tokens) == (9, 3)
    assert second.input_ids.tolist() == [[5, 6, 7]]


def test_packed_rows_restart_positions_and_end_in_one_padding_document() -> None:
    old = [replace(sample, old_logprobs=sample.behavior_logprobs) for sample in (SHORT, LONG, MIDDLE)]
    (batch,) = cut(old, sequence_packing=True, packing_max_tokens=8, micro_batch_size=9)
    assert batch.indices == (1, 0, 2)
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 14, 5, 6, 7], [20, 21, 22, 23, 0, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert batch.predictors.tolist() == [1, 2, 3, 6, 8, 9, 10]
    assert batch.targets.tolist() == [12, 13, 14, 7, 21, 22, 23]
    assert batch.old_logprobs is not None
    assert batch.old_logprobs.tolist() == [-1.0, -2.0, -3.0, -0.5, -4.0, -5.0, -6.0]
    (wide,) = cut([LONG, MIDDLE, LONG, SHORT], sequence_packing=True, packing_max_tokens=10, micro_batch_size=9)
    assert wide.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4], [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]


def test_a_micro_batch_size_of_zero_or_less_is_refused() -> None:
    for size in (0, -1):
        with pytest.raises(UserError, match=r"^trainer\.micro_batch_size: micro_batch_size is"):
            cut([SHORT], micro_batch_size=size)


def test_a_sample_longer_than_a_pack_is_an_error_that_names_it() -> None:
    with pytest.raises(RunFailed) as caught:
        cut([SHORT, LONG], sequence_packing=True, packing_max_tokens=4)
    assert str(caught.value) == (
        "trainer.packing_max_tokens: sample long has 5 tokens, a pack holds 4. Raise it to at least the context length."
    )


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        (replace(SHORT, behavior_logprobs=()), "sample short has 1 response tokens but 0 behavior log-probabilities"),
        (replace(SHORT, old_logprobs=(1.0, 2.0)), "sample short has 1 response tokens but 2 old log-probabilities"),
        (replace(SHORT, prompt_length=0), "sample short has 3 tokens and a prompt of 0"),
        (replace(LONG, old_logprobs=(-1.0,) * 3), "1 of 2 samples of a step have old_logprobs; all or none must"),
    ],
)
def test_a_malformed_sample_is_an_error_that_names_it(sample: TrainSample, problem: str) -> None:
    with pytest.raises(RunFailed) as caught:
        cut([sample, MIDDLE])
    assert str(caught.value) == problem


@given(st.lists(st.integers(1, 30), max_size=60))
def test_first_fit_decreasing_packs_everything_once_and_leaves_no_pack_that_another_could_take(
    lengths: list[int],
) -> None:
    packs = first_fit_decreasing(lengths, 30)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    sizes = [sum(lengths[index] for index in pack) for pack in packs]
    assert all(size <= 30 for size in sizes)
    assert all(a + b > 30 for i, a in enumerate(sizes) for b in sizes[i + 1 :])
    assert packs == first_fit_decreasing(lengths, 30)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_sample_scores_the_same_alone_and_packed_and_does_not_see_its_neighbours(
    tmp_path: Path, family: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(family)
    packing = dict(sequence_packing=True, packing_max_tokens=64, micro_batch_size=2)
    rank = LearnerRank(make_job(tmp_path, model=folder, learner=packing), device=CPU)
    alone = LearnerRank(make_job(tmp_path, model=folder, learner=dict(micro_batch_size=1)), device=CPU)
    samples = random_samples(12, seed=3)
    scores = rank.score(samples)
    for packed, single in zip(scores, alone.score(samples), strict=True):
        assert packed == pytest.approx(single, abs=1e-5)
    for changed in range(12):
        other = replace(samples[changed], tokens=tuple((token + 11) % 40 for token in samples[changed].tokens))
        again = rank.score([*samples[:changed], other, *samples[changed + 1 :]])
        assert [again[i] == scores[i] for i in range(12)] == [i != changed for i in range(12)]


def test_without_the_restarts_of_positions_neighbours_would_be_seen(llama: Path) -> None:
    model = load_policy(llama, torch.float32, CPU)
    (batch,) = cut(random_samples(4, seed=4), sequence_packing=True, packing_max_tokens=100)
    joined = replace(batch, position_ids=torch.arange(batch.input_ids.shape[1])[None])
    isolated, seen = (response_logprobs(model, each, 1.0)[0] for each in (batch, joined))
    assert (isolated - seen).abs().max() > 0.01


def test_only_positions_that_predict_a_response_token_reach_the_output_head(llama: Path) -> None:
    model = load_policy(llama, torch.float32, CPU)
    samples = random_samples(5, seed=5)
    shapes: list[torch.Size] = []
    head = model.get_output_embeddings()
    assert head is not None
    hook = head.register_forward_hook(lambda _m, _i, output: shapes.append(output.shape))
    (batch,) = cut(samples, micro_batch_size=5)
    response_logprobs(model, batch, 1.0)
    hook.remove()
    assert shapes == [(sum(sample.response_length for sample in samples), 40)]
