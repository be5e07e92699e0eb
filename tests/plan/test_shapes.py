"""Shapes from config.json are those of the real models, tensor for tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo.plan.inspect import read_model_config
from grpo.plan.paths import model_dir
from grpo.plan.shapes import FAMILIES, model_shape, parameter_count

BASE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 130,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FEW_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

TINY: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("mistral", {"head_dim": 32}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("smollm3", {}),
    ("smollm3", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    ("phi3", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 24}),
    ("qwen3", {"attention_bias": True}),
    ("olmo", {"attention_bias": True}),
    ("olmo2", {"attention_bias": True}),
    ("olmo3", {"tie_word_embeddings": True}),
    ("gemma", {}),
    ("gemma2", {"head_dim": 24, "attention_bias": True}),
    ("gemma3_text", {"head_dim": 24}),
    ("mixtral", {"num_local_experts": 6}),
    ("olmoe", {"num_experts": 6, "attention_bias": True}),
    ("qwen2_moe", {**FEW_EXPERTS, "shared_expert_intermediate_size": 40}),
    ("qwen2_moe", {**FEW_EXPERTS, "qkv_bias": False, "decoder_sparse_step": 2}),
    ("qwen3_moe", {**FEW_EXPERTS, "mlp_only_layers": [1], "attention_bias": True, "head_dim": 20}),
    ("deepseek_v2", {**LATENT, "q_lora_rank": None, "mlp_bias": True}),
    ("deepseek_v3", {**LATENT, "attention_bias": True, "n_shared_experts": 2}),
]

# Public architectures at full size, as their config.json has them (the keys that shapes depend on), and what their
# makers say they count.
FULL: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.2-1B": (
        dict(
            model_type="llama",
            hidden_size=2048,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            intermediate_size=8192,
            vocab_size=128256,
            tie_word_embeddings=True,
        ),
        1_235_814_400,
    ),
    "Llama-3.1-8B": (
        dict(
            model_type="llama",
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            intermediate_size=14336,
            vocab_size=128256,
        ),
        8_030_261_248,
    ),
    "Qwen2.5-0.5B": (
        dict(
            model_type="qwen2",
            hidden_size=896,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            intermediate_size=4864,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        494_032_768,
    ),
    "Qwen3-4B": (
        dict(
            model_type="qwen3",
            hidden_size=2560,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=9728,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        4_022_468_096,
    ),
    "OLMo-2-7B": (
        dict(
            model_type="olmo2",
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            intermediate_size=11008,
            vocab_size=100352,
        ),
        7_298_617_344,
    ),
    "Olmo-3-7B": (
        dict(
            model_type="olmo3",
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=32,
            intermediate_size=11008,
            vocab_size=100278,
        ),
        7_298_011_136,
    ),
    "OLMoE-1B-7B": (
        dict(
            model_type="olmoe",
            hidden_size=2048,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=16,
            intermediate_size=1024,
            vocab_size=50304,
            num_experts=64,
            num_experts_per_tok=8,
        ),
        6_919_161_856,
    ),
    "Mixtral-8x7B": (
        dict(
            model_type="mixtral",
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            intermediate_size=14336,
            vocab_size=32000,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
        46_702_792_704,
    ),
    "Qwen3-30B-A3B": (
        dict(
            model_type="qwen3_moe",
            hidden_size=2048,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            intermediate_size=6144,
            vocab_size=151936,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        30_532_122_624,
    ),
    "DeepSeek-V3": (
        dict(
            model_type="deepseek_v3",
            hidden_size=7168,
            num_hidden_layers=61,
            num_attention_heads=128,
            num_key_value_heads=128,
            intermediate_size=18432,
            vocab_size=129280,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
        ),
        671_026_404_352,
    ),
}


def tensors(kind: str, config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and shape of every parameter of the real model, which is made without memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    return [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


@pytest.mark.parametrize(("kind", "more"), TINY, ids=lambda value: value if isinstance(value, str) else "")
def test_every_tensor_of_a_tiny_model_has_the_name_shape_and_place_of_the_real_one(
    kind: str, more: dict[str, Any]
) -> None:
    shape = model_shape({"model_type": kind, **BASE, **more})
    assert shape is not None
    assert [(parameter.name, parameter.shape) for parameter in shape.parameters] == tensors(kind, BASE | more)


@pytest.mark.parametrize("name", FULL)
def test_a_full_size_model_counts_as_the_real_one(name: str) -> None:
    config, count = FULL[name]
    keys = {key: value for key, value in config.items() if key != "model_type"}
    shape = model_shape(config)
    assert shape is not None
    assert [(parameter.name, parameter.shape) for parameter in shape.parameters] == tensors(config["model_type"], keys)
    assert parameter_count(config) == count


def test_every_family_is_compared_with_a_real_model() -> None:
    assert {kind for kind, _ in TINY} == set(FAMILIES)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_keys_that_a_config_leaves_out_have_the_defaults_of_the_family(kind: str) -> None:
    few = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 32, "intermediate_size": 80}
    more = {"vocab_size": 130, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "deepseek_v2":
        more["num_experts_per_tok"] = 6  # transformers has no default for it
    shape = model_shape({"model_type": kind, **few, **more})
    assert shape is not None
    assert [(parameter.name, parameter.shape) for parameter in shape.parameters] == tensors(kind, few | more)


@pytest.mark.parametrize(("kind", "more"), [TINY[1], TINY[8], TINY[14], TINY[21]], ids=lambda _: "")
def test_a_saved_config_file_counts_as_its_model(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    AutoConfig.for_model(kind, **BASE, **more).save_pretrained(tmp_path)
    assert parameter_count(read_model_config(tmp_path)) == parameter_count({"model_type": kind, **BASE, **more})


def test_the_shipped_policy_counts_as_its_weights() -> None:
    from safetensors import safe_open

    folder = model_dir("builtin:tiny-arithmetic")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        stored = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert parameter_count(read_model_config(folder)) == stored


def test_only_the_experts_of_a_token_are_active() -> None:
    shape = model_shape(FULL["Qwen3-30B-A3B"][0])
    assert shape is not None
    experts = 48 * 128 * 3 * 2048 * 768
    norms = 48 * (2 * 2048 + 2 * 128) + 2048
    lookup = 151936 * 2048
    assert shape.active_matrix_parameters == shape.parameter_count - experts + experts * 8 // 128 - norms - lookup


def test_the_cache_of_a_token_counts_keys_and_values_or_latents() -> None:
    dense, latent = model_shape(FULL["Llama-3.1-8B"][0]), model_shape(FULL["DeepSeek-V3"][0])
    assert dense is not None and latent is not None
    assert dense.cache_elements == 32 * 2 * 8 * 128
    assert latent.cache_elements == 61 * (512 + 64)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", **BASE},
        {"model_type": ["llama"], **BASE},
        {"model_type": "llama"},
        {"model_type": "llama", **BASE, "hidden_size": "48"},
        {"model_type": "llama", **BASE, "hidden_size": -48},
        {"model_type": "llama", **BASE, "num_attention_heads": 0},
        {"model_type": "llama", **BASE, "vocab_size": 0},
        {"model_type": "llama", **BASE, "hidden_size": 2},
        {"model_type": "llama", **BASE, "num_hidden_layers": 10**12},
        {"model_type": "llama", **BASE, "head_dim": "8"},
        {"model_type": "llama", **BASE, "num_key_value_heads": [2]},
    ],
)
def test_an_unknown_kind_or_a_broken_config_has_no_shape(config: dict[str, Any]) -> None:
    assert model_shape(config) is None
    assert parameter_count(config) is None
