"""Model shapes from ``config.json`` alone, so that a laptop without the weights can plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DENSE_DECODERS = ("llama", "mistral", "qwen2", "qwen3")


def parameter_count(config: Mapping[str, Any]) -> int | None:
    """Return the number of parameters of a dense decoder, tied weights counted once; None for an unknown kind.

    With hidden size ``H``, ``L`` layers, ``N`` query heads and ``K`` key-value heads of size ``D``, MLP size ``I`` and
    vocabulary ``V``: ``V H`` for the embedding, once more for an untied output head, ``H`` for the last norm, and per
    layer ``H N D`` (query) ``+ 2 H K D`` (key, value) ``+ N D H`` (output) ``+ 3 H I`` (gated MLP) ``+ 2 H`` (norms),
    and the biases and head norms of the family.
    """
    kind = config.get("model_type")
    try:
        hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
        inner, vocabulary = config["intermediate_size"], config["vocab_size"]
        kv_heads = config.get("num_key_value_heads") or heads
        head = config.get("head_dim") or (128 if kind == "qwen3" else hidden // heads)
        if kind not in DENSE_DECODERS:
            return None
        query, key_value = heads * head, kv_heads * head
        layer = hidden * query + 2 * hidden * key_value + query * hidden + 3 * hidden * inner + 2 * hidden
        if kind == "qwen2" or (kind in ("llama", "qwen3") and config.get("attention_bias")):
            layer += query + 2 * key_value
        if kind in ("llama", "qwen3") and config.get("attention_bias"):
            layer += hidden
        if kind == "llama" and config.get("mlp_bias"):
            layer += 2 * inner + hidden
        if kind == "qwen3":
            layer += 2 * head
        head_weights = 0 if config.get("tie_word_embeddings") else vocabulary * hidden
        return vocabulary * hidden + head_weights + layers * layer + hidden
    except (KeyError, TypeError, ZeroDivisionError):
        return None
