"""Parameter counts from config.json equal those of the real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo.plan.shapes import parameter_count

BASE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 130,
}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
        ("mistral", {"head_dim": 32}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 24}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_the_count_is_that_of_the_real_model(kind: str, more: dict[str, Any]) -> None:
    config = {"model_type": kind, **BASE, **more}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **BASE, **more))
    assert parameter_count(config) == sum(parameter.numel() for parameter in model.parameters())


def test_an_unknown_kind_or_a_bare_config_has_no_count() -> None:
    assert parameter_count({"model_type": "gpt2", **BASE}) is None
    assert parameter_count({"model_type": "llama"}) is None
    assert parameter_count({"model_type": "llama", **BASE, "hidden_size": "48"}) is None
