"""One rank's optimizer step: metrics, clipping, learning, precision, refusing what is not finite, checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.errors import RunFailed, UserError
from grpo.learner.rank import LearnerRank
from grpo.types import StepMetrics, TrainBatch, TrainSample
from support.jobs import make_job
from support.models import make_model
from support.plain_objective import near_policy, random_samples, token_logprobs

CPU = torch.device("cpu")


def rank_of(tmp_path: Path, model: Path, **parts: object) -> LearnerRank:
    return LearnerRank(make_job(tmp_path, model=model, **parts), device=CPU)


def parameters(rank: LearnerRank) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in rank.model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def timeless(metrics: StepMetrics) -> StepMetrics:
    return replace(metrics, seconds=0.0)


def batches(count: int, seed: int = 0) -> list[TrainBatch]:
    return [TrainBatch(step, random_samples(9, seed + step, left_out=(4,))) for step in range(1, count + 1)]


def test_metrics_are_what_the_formulas_give(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama, objective=dict(kl_coef=0.1), learner=dict(micro_batch_size=4))
    model = AutoModelForCausalLM.from_pretrained(llama)
    samples = near_policy(random_samples(9, seed=1, left_out=(4,)), model, 1.0)
    own, entropies, old, behavior, advantages = [], [], [], [], []
    for sample in samples:
        if sample.counts:
            with torch.no_grad():
                logprobs, entropy = token_logprobs(model, sample, 1.0)
            own += [float(value) for value in logprobs]
            entropies += [float(value) for value in entropy]
            old += sample.old_logprobs or ()
            behavior += sample.behavior_logprobs
            advantages += [sample.advantage] * len(logprobs)
    n = len(own)
    ratios = [math.exp(a - b) for a, b in zip(own, old, strict=True)]
    weights = [math.exp(a - b) for a, b in zip(old, behavior, strict=True)]
    differences = [abs(a - b) for a, b in zip(old, behavior, strict=True)]
    capped = [min(w, 2.0) for w in weights]
    loss = sum(-w * min(r * a, min(max(r, 0.8), 1.28) * a) for w, r, a in zip(capped, ratios, advantages, strict=True))

    got = rank.step(TrainBatch(1, samples))

    assert (got.version, got.samples, got.loss_tokens, got.micro_batches) == (1, 9, n, 3)
    assert got.tokens == sum(len(sample.tokens) for sample in samples)
    assert got.learning_rate == 1e-3
    assert got.kl == pytest.approx(0.0, abs=1e-9)  # The first step starts from the reference.
    expected = {
        "loss": loss / n,
        "policy_loss": loss / n,
        "entropy": sum(entropies) / n,
        "clip_low_fraction": sum(r < 0.8 and a < 0 for r, a in zip(ratios, advantages, strict=True)) / n,
        "clip_high_fraction": sum(r > 1.28 and a > 0 for r, a in zip(ratios, advantages, strict=True)) / n,
        "tis_mean": sum(capped) / n,
        "tis_max": max(capped),
        "tis_capped_fraction": sum(w > 2.0 for w in weights) / n,
        "logprob_diff_mean": sum(differences) / n,
        "logprob_diff_max": max(differences),
    }
    assert min(expected["clip_low_fraction"], expected["clip_high_fraction"], expected["tis_capped_fraction"]) > 0
    assert {name: getattr(got, name) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert rank.step(TrainBatch(2, samples)).kl > 1e-6


def test_switched_off_the_correction_reports_weights_of_one(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama, objective=dict(correction="none"))
    got = rank.step(batches(1)[0])
    assert (got.tis_mean, got.tis_max, got.tis_capped_fraction) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("layout", [dict(micro_batch_size=4), dict(sequence_packing=True, packing_max_tokens=40)])
def test_a_few_steps_make_good_tokens_likelier_and_bad_ones_less_likely(
    tmp_path: Path, llama: Path, layout: dict[str, object]
) -> None:
    rank = rank_of(tmp_path, llama, learner=layout)
    prompt = (5, 6, 7)
    good, bad = ((*prompt, 8, 9), (*prompt, 10, 11))
    first = None
    for step in range(1, 6):
        pair = [TrainSample("good", good, 3, (-3.0, -3.0), 1.0), TrainSample("bad", bad, 3, (-3.0, -3.0), -1.0)]
        scores = rank.score(pair)
        first = first or scores
        pair = [replace(sample, behavior_logprobs=score) for sample, score in zip(pair, scores, strict=True)]
        rank.step(TrainBatch(step, tuple(pair)))
    last = rank.score(pair)
    assert first is not None
    assert all(after > before + 0.1 for before, after in zip(first[0], last[0], strict=True))
    assert all(after < before - 0.1 for before, after in zip(first[1], last[1], strict=True))


@pytest.mark.parametrize("clip", [0.01, 0.0])
def test_the_gradient_is_clipped_to_its_norm_and_reported_before(tmp_path: Path, llama: Path, clip: float) -> None:
    # With an epsilon this large AdamW's step is lr * gradient / epsilon: the gradient itself, here.
    optimizer = dict(learning_rate=1e4, eps=1e4, clip_grad=clip)
    rank = rank_of(tmp_path, llama, optimizer=optimizer)
    before = parameters(rank)
    got = rank.step(batches(1)[0])
    moved = math.sqrt(sum(float((after - before[name]).square().sum()) for name, after in parameters(rank).items()))
    assert got.grad_norm > 0.05
    assert moved == pytest.approx(clip or got.grad_norm, rel=1e-2)


def test_matrices_decay_and_norms_do_not(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama, optimizer=dict(learning_rate=0.1, weight_decay=0.5))
    before = parameters(rank)
    left_out = tuple(replace(sample, counts=False) for sample in random_samples(3, seed=1))
    got = rank.step(TrainBatch(1, left_out))
    assert (got.loss, got.grad_norm, got.loss_tokens, got.version) == (0.0, 0.0, 0, 1)
    for name, after in parameters(rank).items():
        expected = before[name] if "norm" in name else before[name] * 0.95
        torch.testing.assert_close(after, expected)


def test_the_schedule_follows_the_version(tmp_path: Path, llama: Path) -> None:
    optimizer = dict(learning_rate=1e-3, schedule="linear", warmup_steps=2)
    rank = rank_of(tmp_path, llama, optimizer=optimizer)
    rates = [rank.step(batch).learning_rate for batch in batches(4)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.5e-3])


def test_two_runs_from_one_state_have_bit_identical_weights_with_several_threads(tmp_path: Path, llama: Path) -> None:
    torch.set_num_threads(2)
    first, second = (rank_of(tmp_path, llama, learner=dict(micro_batch_size=9)) for _ in range(2))
    for batch in batches(2):
        assert timeless(first.step(batch)) == timeless(second.step(batch))
    assert same(parameters(first), parameters(second))


def test_bfloat16_weights_keep_updates_too_small_for_them(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama, optimizer=dict(learning_rate=2e-4, beta1=0.0), learner=dict(dtype="bfloat16"))
    before = parameters(rank)
    weight = "model.norm.weight"  # Ones: the next bfloat16 below is 1 - 1/256, twenty steps of 2e-4 away.
    samples = random_samples(9, seed=1)
    for step in range(1, 31):
        rank.step(TrainBatch(step, samples))
        if step == 5:
            assert same({weight: parameters(rank)[weight]}, {weight: before[weight]})
    assert parameters(rank)[weight].dtype == torch.bfloat16
    assert (parameters(rank)[weight] != before[weight]).float().mean() > 0.2


@pytest.mark.parametrize(
    ("poison", "names"),
    [
        (dict(advantage=math.nan), "the loss is nan"),
        (dict(advantage=3e38), "gradient norm inf"),
        (dict(behavior_logprobs="nan"), "the loss is nan"),
    ],
)
def test_what_is_not_finite_stops_the_run_and_names_the_step_and_the_sample(
    tmp_path: Path, llama: Path, poison: dict[str, object], names: str
) -> None:
    rank = rank_of(tmp_path, llama, learner=dict(micro_batch_size=4))
    good = batches(2)
    rank.step(good[0])
    before = parameters(rank)
    samples = list(good[1].samples)
    if "behavior_logprobs" in poison:
        poison = dict(behavior_logprobs=(math.nan,) * samples[6].response_length)
    samples[6] = replace(samples[6], **poison)  # type: ignore[arg-type]
    with pytest.raises(RunFailed) as caught:
        rank.step(TrainBatch(2, tuple(samples)))
    assert str(caught.value).startswith("step 2: ")
    assert names in str(caught.value)
    assert "made so by s6. Weights are still those of version 1." in str(caught.value)
    assert same(parameters(rank), before)
    # The same rank goes on as if nothing had been tried.
    other = rank_of(tmp_path, llama, learner=dict(micro_batch_size=4))
    other.step(good[0])
    assert timeless(rank.step(good[1])) == timeless(other.step(good[1]))


def test_an_empty_batch_or_one_out_of_turn_is_refused(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama)
    with pytest.raises(RunFailed, match="step 1: the batch has no samples"):
        rank.step(TrainBatch(1, ()))
    with pytest.raises(RunFailed, match="step 3: the batch is out of turn, the learner is at version 0"):
        rank.step(TrainBatch(3, random_samples(2, seed=1)))


def test_a_response_of_no_tokens_is_scored_empty_and_trains_nothing(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama, learner=dict(micro_batch_size=1))
    samples = (TrainSample("empty", (5, 6), 2, (), 1.0), *random_samples(2, seed=1))
    assert [len(score) for score in rank.score(samples)] == [0, *(s.response_length for s in samples[1:])]
    assert math.isfinite(rank.step(TrainBatch(1, samples)).loss)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_checkpoint_continues_bit_for_bit(tmp_path: Path, qwen2: Path, dtype: str) -> None:
    parts = dict(
        learner=dict(dtype=dtype, micro_batch_size=4),
        optimizer=dict(schedule="cosine", warmup_steps=1),
        objective=dict(kl_coef=0.1),
    )
    first = rank_of(tmp_path, qwen2, **parts)
    todo = batches(4)
    for batch in todo[:2]:
        first.step(batch)
    torch.rand(7)  # Past the seed, where a new rank would be anyway.
    first.capture().write(tmp_path / "checkpoint")
    drawn = torch.rand(3)
    straight = [timeless(first.step(batch)) for batch in todo[2:]]

    second = rank_of(tmp_path, qwen2, **parts)
    second.load(tmp_path / "checkpoint")
    assert second.version == 2
    assert torch.equal(torch.rand(3), drawn)
    assert [timeless(second.step(batch)) for batch in todo[2:]] == straight
    assert same(parameters(second), parameters(first))


def test_checkpoints_refuse_a_used_folder_a_missing_one_and_another_model(tmp_path: Path, llama: Path) -> None:
    rank = rank_of(tmp_path, llama)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    for write in (rank.capture().write, rank.export_hf):
        with pytest.raises(RunFailed, match="used exists and is not an empty folder"):
            write(tmp_path / "used")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["mine.txt"]
    with pytest.raises(UserError, match="holds no complete learner checkpoint"):
        rank.load(tmp_path / "used")
    rank.capture().write(tmp_path / "checkpoint")
    other = rank_of(tmp_path, make_model(tmp_path / "tied", tied=True))
    with pytest.raises(UserError, match="is of another model"):
        other.load(tmp_path / "checkpoint")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_an_export_loads_in_plain_transformers_with_the_same_logits_and_tokenizer(
    tmp_path: Path, family: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(family)
    rank = rank_of(tmp_path, folder)
    rank.step(batches(1)[0])
    rank.export_hf(tmp_path / "export")
    names = {path.name for path in (tmp_path / "export").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    assert torch.equal(exported(ids).logits, rank.model(ids).logits)
    assert not torch.equal(exported(ids).logits, AutoModelForCausalLM.from_pretrained(folder)(ids).logits)
    tokenizer, original = AutoTokenizer.from_pretrained(tmp_path / "export"), AutoTokenizer.from_pretrained(folder)
    assert tokenizer("12+34=").input_ids == original("12+34=").input_ids == [5, 6, 14, 7, 8, 16]
    message = [{"role": "user", "content": "1+1="}]
    assert tokenizer.apply_chat_template(message, tokenize=False) == "<bos>1+1="


def test_a_folder_without_a_model_or_with_a_capped_head_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^model\.source: no model in .*: it has no config\.json"):
        rank_of(tmp_path, tmp_path)
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    CohereForCausalLM(config).save_pretrained(tmp_path / "cohere")
    with pytest.raises(UserError, match="CohereForCausalLM scales or caps its logits"):
        rank_of(tmp_path, tmp_path / "cohere")


def test_recomputing_activations_runs_each_layer_again_in_the_backward_pass(tmp_path: Path, llama: Path) -> None:
    calls = {}
    for recompute in (False, True):
        rank = rank_of(tmp_path, llama, learner=dict(activation_recompute=recompute))
        seen: list[str] = []
        rank.model.get_submodule("model.layers.0.mlp").register_forward_pre_hook(
            lambda *_, seen=seen: seen.append("mlp")
        )
        rank.step(batches(1)[0])
        calls[recompute] = len(seen)
    assert calls == {False: 1, True: 2}


def test_damaged_weights_are_the_users_input(tmp_path: Path, llama: Path) -> None:
    weights = llama / "model.safetensors"
    whole = weights.read_bytes()
    try:
        for length in (5, 1000, len(whole) - 100):
            weights.write_bytes(whole[:length])
            with pytest.raises(UserError, match=r"cannot load the model in .* must be whole and fit each other"):
                rank_of(tmp_path, llama)
    finally:
        weights.write_bytes(whole)
