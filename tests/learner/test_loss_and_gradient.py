"""The optimised step against the formulas written out plainly, however the step is cut into micro-batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo.learner.objective import StepCounts
from grpo.learner.rank import LearnerRank
from grpo.plan.job import JobSpec
from grpo.types import TrainBatch, TrainSample
from support.jobs import make_job
from support.plain_objective import near_policy, plain_loss, random_samples

CPU = torch.device("cpu")
ALL = 10**9
LAYOUTS = {
    "micro-batch 1": dict(micro_batch_size=1),
    "micro-batch 3": dict(micro_batch_size=3),
    "all": dict(micro_batch_size=ALL),
    "packed, one pack": dict(micro_batch_size=1, sequence_packing=True, packing_max_tokens=40),
    "packed, two packs": dict(micro_batch_size=2, sequence_packing=True, packing_max_tokens=32),
    "packed, all": dict(micro_batch_size=ALL, sequence_packing=True, packing_max_tokens=1000),
}
DENOMINATORS, LOSSES = ("token", "response", "constant"), ("ppo", "cispo", "gspo")
CORRECTIONS = ("none", "tis", "icepop", "sequence")


def job_of(tmp_path: Path, model: Path, layout: str, **objective: object) -> JobSpec:
    return make_job(
        tmp_path,
        model=model,
        sampling=dict(temperature=0.7),
        objective=dict(kl_coef=0.05, entropy_coef=0.02, tis_cap=1.5, icepop_low=0.6, icepop_high=1.7, **objective),
        learner=LAYOUTS[layout],
    )


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """The policy must differ from the reference, or the KL and its gradient are 0 whatever the code does."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.004 * torch.randn(parameter.shape, generator=generator))
    return model


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(actual: tuple[float, dict[str, torch.Tensor]], expected: tuple[float, dict[str, torch.Tensor]]) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        # Relative to the tensor: single elements that cancel to almost 0 have no digits to compare.
        assert torch.linalg.norm(actual[1][name] - gradient) <= 1e-5 * torch.linalg.norm(gradient), name


def plain(job: JobSpec, folder: Path, samples: tuple[TrainSample, ...]) -> tuple[float, dict[str, torch.Tensor]]:
    policy = moved(load(folder))
    loss = plain_loss(job, policy, load(folder), samples)
    loss.backward()
    return loss.item(), gradients(policy)


def optimised(job: JobSpec, samples: tuple[TrainSample, ...]) -> tuple[float, dict[str, torch.Tensor]]:
    rank = LearnerRank(job, device=CPU)
    moved(rank.model)
    tally = rank.backward(samples, StepCounts.of(samples))
    return tally.loss, gradients(rank.model)


@pytest.fixture(scope="module")
def samples(llama: Path) -> tuple[TrainSample, ...]:
    """Ten samples, two of them out of the loss, with ratios on both sides of every clip and cap."""
    return near_policy(random_samples(10, seed=27, left_out=(2, 7)), moved(load(llama)), 0.7)


@pytest.mark.parametrize("correction", ["tis", "icepop", "sequence"])
@pytest.mark.parametrize("policy_loss", LOSSES)
def test_the_samples_reach_both_sides_of_the_clip_and_the_cap(
    tmp_path: Path, llama: Path, samples: tuple[TrainSample, ...], policy_loss: str, correction: str
) -> None:
    rank = LearnerRank(job_of(tmp_path, llama, "all", policy_loss=policy_loss, correction=correction), device=CPU)
    moved(rank.model)
    got = rank.step(TrainBatch(1, samples))
    assert 0 < got.tis_capped_fraction < 1
    assert 0 < got.clip_high_fraction < 1
    assert 0 < got.clip_low_fraction < 1


@pytest.mark.parametrize(("denominator", "policy_loss", "correction"), [*product(DENOMINATORS, LOSSES, CORRECTIONS)])
def test_every_objective_equals_its_formula_padded_and_packed(
    tmp_path: Path, llama: Path, samples: tuple[TrainSample, ...], denominator: str, policy_loss: str, correction: str
) -> None:
    chosen = dict(denominator=denominator, policy_loss=policy_loss, correction=correction)
    expected = plain(job_of(tmp_path, llama, "all", **chosen), llama, samples)
    for layout in ("all", "packed, two packs"):
        assert_same(optimised(job_of(tmp_path, llama, layout, **chosen), samples), expected)


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("policy_loss", ["ppo", "gspo"])
def test_no_layout_changes_loss_or_gradient(
    tmp_path: Path, llama: Path, samples: tuple[TrainSample, ...], denominator: str, policy_loss: str
) -> None:
    chosen = dict(denominator=denominator, policy_loss=policy_loss, correction="sequence")
    expected = plain(job_of(tmp_path, llama, "all", **chosen), llama, samples)
    for layout in LAYOUTS:
        assert_same(optimised(job_of(tmp_path, llama, layout, **chosen), samples), expected)


@pytest.mark.parametrize("policy_loss", LOSSES)
def test_without_old_logprobs_the_ratio_is_one_and_its_gradient_acts(
    tmp_path: Path, llama: Path, samples: tuple[TrainSample, ...], policy_loss: str
) -> None:
    fresh = tuple(replace(sample, old_logprobs=None) for sample in samples)
    for layout in ("micro-batch 3", "packed, two packs"):
        job = job_of(tmp_path, llama, layout, policy_loss=policy_loss)
        assert_same(optimised(job, fresh), plain(job, llama, fresh))


@pytest.mark.parametrize("layout", ["micro-batch 3", "packed, two packs"])
def test_a_qwen2_model_with_tied_head_gives_the_same_too(tmp_path: Path, qwen2: Path, layout: str) -> None:
    samples = near_policy(random_samples(8, seed=2, left_out=(0,)), moved(load(qwen2)), 0.7)
    job = job_of(tmp_path, qwen2, layout, denominator="response")
    assert_same(optimised(job, samples), plain(job, qwen2, samples))


def test_logits_in_chunks_and_recomputed_layers_change_nothing(
    tmp_path: Path, llama: Path, samples: tuple[TrainSample, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, llama, "packed, two packs")
    expected = plain(job, llama, samples)
    monkeypatch.setattr("grpo.learner.model.LOGITS_CHUNK_BYTES", 4 * 40 * 3)
    recompute = make_job(
        tmp_path,
        model=llama,
        sampling=dict(temperature=0.7),
        objective=job.objective.model_dump(),
        learner=dict(job.learner.model_dump(), activation_recompute=True),
    )
    assert_same(optimised(job, samples), expected)
    assert_same(optimised(recompute, samples), expected)


def test_a_response_out_of_the_loss_leaves_the_token_mean_and_stays_in_the_response_mean(
    tmp_path: Path, llama: Path, samples: tuple[TrainSample, ...]
) -> None:
    without = tuple(sample for sample in samples if sample.counts)
    for denominator, factor in (("token", 1.0), ("response", 10 / 8), ("constant", 10 / 8)):
        job = job_of(tmp_path, llama, "all", denominator=denominator)
        loss, gradient = optimised(job, samples)
        assert_same((loss * factor, {name: g * factor for name, g in gradient.items()}), optimised(job, without))
