"""What the plan says about a learner rank is what a real one holds."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from grpo.learner.model import LOGITS_CHUNK_BYTES
from grpo.learner.objective import StepCounts
from grpo.learner.rank import LearnerRank
from grpo.plan import estimate_learner
from grpo.plan.estimate_learner import activations, gradients, learner_memory, logits, optimizer, parameters
from grpo.plan.job import JobSpec
from grpo.plan.shapes import ModelShape, model_shape
from grpo.types import TrainBatch, TrainSample
from support.jobs import make_job
from support.models import make_tokenizer

CPU = torch.device("cpu")
# Long micro-batches of a narrow model: what is alive is nearly all activations.
LLAMA: dict[str, Any] = dict(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "olmo2": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}
PROMPT, RESPONSE, ROWS = 64, 192, 4


def model_folder(folder: Path, kind: str = "llama", **more: Any) -> Path:
    """Write a random model with its tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **LLAMA, **more)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def shape_of(folder: Path) -> ModelShape:
    shape = model_shape(json.loads((folder / "config.json").read_text()))
    assert shape is not None
    return shape


def job_of(tmp_path: Path, model: Path, *, packed: bool = False, **learner: Any) -> JobSpec:
    length = PROMPT + RESPONSE
    batch = dict(global_batch_size=ROWS, max_context_length=length, max_response_length=RESPONSE)
    packing = dict(sequence_packing=packed, packing_max_tokens=length, micro_batch_size=ROWS)
    return make_job(tmp_path, model=model, batch=batch, learner=packing | learner)


def samples(count: int = ROWS, prompt: int = PROMPT, response: int = RESPONSE) -> tuple[TrainSample, ...]:
    """Return samples that fill a micro-batch whole."""
    return tuple(
        TrainSample(
            sample_id=str(index),
            tokens=tuple((index + 7 * place) % 150 for place in range(prompt + response)),
            prompt_length=prompt,
            behavior_logprobs=(-5.0,) * response,
            advantage=1.0,
        )
        for index in range(count)
    )


class Live(TorchDispatchMode):
    """Counts the bytes of every storage that an operation makes, for as long as the storage lives."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._see(each.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def peak_bytes(job: JobSpec, batch: tuple[TrainSample, ...]) -> int:
    """Return the most bytes alive at one time in a real forward and backward pass, weights aside, gradients in."""
    rank = LearnerRank(job, device=CPU)
    live, twice = Live(), (*batch, *batch)
    with live:
        # Two micro-batches: in the second, the gradients of the first are there from its start.
        rank.backward(twice, StepCounts.of(twice))
    return live.peak


def said_bytes(job: JobSpec, shape: ModelShape) -> int:
    """Return what the plan says of the same: activations and gradients."""
    kept = activations(job, shape, recompute=job.learner.activation_recompute)
    return int(kept.value or 0) + int(gradients(job, shape).value or 0)


def assert_near(said: int, real: int, job: JobSpec, shape: ModelShape) -> None:
    """Fail unless the activations, gradients taken off both, agree within a quarter."""
    known = int(gradients(job, shape).value or 0)
    assert said - known == pytest.approx(real - known, rel=0.25), (said - known) / (real - known)


def saved_bytes(job: JobSpec, batch: tuple[TrainSample, ...]) -> int:
    """Return the bytes that a real forward pass keeps for its backward pass, weights aside."""
    rank = LearnerRank(job, device=CPU)
    weights = {parameter.untyped_storage()._cdata for parameter in rank.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    (micro_batch,) = rank._micro_batches(batch, StepCounts.of(batch))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        rank._objective(micro_batch)
    return sum(storage.nbytes() for storage in kept.values())


def nbytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_parameters_gradients_and_optimizer_are_exact(tmp_path: Path, kind: str, dtype: str) -> None:
    model = model_folder(tmp_path / "model", kind, **FAMILIES[kind])
    job, shape = job_of(tmp_path, model, dtype=dtype), shape_of(model)
    rank = LearnerRank(job, device=CPU)
    held = {id(each): each for each in [*rank.model.parameters(), *rank._masters.named.values()]}
    assert parameters(job, shape).value == nbytes(held.values())

    state = rank._optimizer.state
    assert optimizer(job, shape).value == sum(nbytes(state[master].values()) for master in state)

    rank.backward(samples(), StepCounts.of(samples()))
    sums = nbytes(master.grad for master in rank._masters.named.values())
    passing = 0 if dtype == "float32" else nbytes(rank.model.parameters())  # one of each parameter, in its type
    assert gradients(job, shape).value == sums + passing


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", sorted(FAMILIES))
@pytest.mark.parametrize("recompute", [False, True])
def test_the_peak_of_a_real_pass_is_within_a_quarter(tmp_path: Path, kind: str, dtype: str, recompute: bool) -> None:
    model = model_folder(tmp_path / "model", kind, **FAMILIES[kind])
    job, shape = job_of(tmp_path, model, dtype=dtype, activation_recompute=recompute), shape_of(model)
    assert_near(said_bytes(job, shape), peak_bytes(job, samples()), job, shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["llama", "olmo2", "qwen3"])
def test_what_a_forward_pass_keeps_is_within_five_percent(tmp_path: Path, kind: str, packed: bool, dtype: str) -> None:
    model = model_folder(tmp_path / "model", kind, **FAMILIES[kind])
    job, shape = job_of(tmp_path, model, packed=packed, dtype=dtype), shape_of(model)
    said = int(activations(job, shape, recompute=False).value or 0) - int(logits(job, shape).value or 0)
    batch = samples(count=ROWS * 4, prompt=1, response=(PROMPT + RESPONSE) // 4 - 1) if packed else samples()
    real = saved_bytes(job, batch)
    assert said == pytest.approx(real, rel=0.05), said / real


@pytest.mark.parametrize("recompute", [False, True])
def test_packing_adds_a_mask_in_every_layer(tmp_path: Path, recompute: bool) -> None:
    model = model_folder(tmp_path / "model")
    job = job_of(tmp_path, model, packed=True, activation_recompute=recompute)
    shape = shape_of(model)
    real = peak_bytes(job, samples(count=ROWS * 4, prompt=1, response=(PROMPT + RESPONSE) // 4 - 1))
    assert_near(said_bytes(job, shape), real, job, shape)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_large_vocabulary_makes_the_logits_the_peak(tmp_path: Path, recompute: bool) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **LLAMA | {"vocab_size": 8192, "num_hidden_layers": 1})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    shape = shape_of(tmp_path / "model")
    job = job_of(tmp_path, tmp_path / "model", activation_recompute=recompute)
    part = int(logits(job, shape).value or 0)
    said = int(activations(job, shape, recompute=recompute).value or 0)
    assert part == 16 * ROWS * RESPONSE * 8192
    assert part > 0.8 * said
    assert_near(said_bytes(job, shape), peak_bytes(job, samples()), job, shape)


def test_logits_are_computed_in_chunks_of_the_learners_size(tmp_path: Path) -> None:
    assert estimate_learner.LOGITS_CHUNK_BYTES == LOGITS_CHUNK_BYTES
    shape = model_shape({"model_type": "llama", **LLAMA, "vocab_size": 2**18})
    assert shape is not None
    job = job_of(tmp_path, tmp_path).model_copy(update={"batch": make_job(tmp_path).batch})
    long = job.batch.model_copy(update={"max_response_length": 10**6, "max_context_length": 2 * 10**6})
    said = logits(job.model_copy(update={"batch": long}), shape)
    assert said.value == 4 * LOGITS_CHUNK_BYTES


def test_ranks_share_what_fsdp_shards_and_not_activations(tmp_path: Path) -> None:
    shape = model_shape({"model_type": "llama", **LLAMA})
    assert shape is not None
    one, four = job_of(tmp_path, tmp_path), job_of(tmp_path, tmp_path, ranks=4)
    for part in (parameters, gradients):
        assert part(four, shape).value == -(-int(part(one, shape).value or 0) // 4)
    moments, counts = 8 * shape.parameter_count, 4 * len(shape.parameters)
    assert optimizer(four, shape).value == -(-moments // 4) + counts
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64
    assert estimate_learner.gathered(four, shape).value == 4 * (3 * layer + 2 * (2 * 160 * 64 + 64))
    # Four sequences of a step on four ranks: one for each, so the micro-batch of four is not reached.
    alone, shared = (int(activations(job, shape, recompute=False).value or 0) for job in (one, four))
    assert shared == alone // 4


def test_the_peak_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    shape = model_shape({"model_type": "llama", **LLAMA})
    assert shape is not None
    for recompute, kept in ((True, "learner.activations_recompute"), (False, "learner.activations_all")):
        job = make_job(tmp_path, objective=dict(kl_coef=0.1), learner=dict(activation_recompute=recompute, ranks=2))
        said = {each.name: int(each.value or 0) for each in learner_memory(job, shape).quantities}
        parts = ("parameters", "gradients", "optimizer", "reference", "gathered")
        assert said["learner.peak"] == sum(said[f"learner.{part}"] for part in parts) + said[kept]
        assert said["learner.activations_recompute"] < said["learner.activations_all"]


def test_a_whole_step_is_what_was_said(tmp_path: Path) -> None:
    """Not the sum of parts that were each compared alone: one optimizer step, everything counted from the start."""
    model = model_folder(tmp_path / "model")
    job, shape = job_of(tmp_path, model, activation_recompute=False), shape_of(model)
    live = Live()
    with live:
        LearnerRank(job, device=CPU).step(TrainBatch(1, samples()))
    said = next(each for each in learner_memory(job, shape).quantities if each.name == "learner.peak")
    assert int(said.value or 0) == pytest.approx(live.peak, rel=0.25)
