"""The KV cache of the local engine, and the attention that reads it.

One row of the cache belongs to one running request, and the running requests always occupy the first rows, so that a
decode step reads a plain slice (a view, no gather) of as many rows, and as many positions, as are in use.

Axis names: ``N`` running requests, ``B`` rows of one prefill, ``L`` cached positions, ``T`` tokens fed, ``H`` query
heads, ``K`` key-value heads, ``D`` head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.configuration_utils import PretrainedConfig

ATTENTION = "grpo_rows"


class KVCache:
    """Keys and values of all rows and layers: one tensor of shape (layers, 2, rows, K, positions, D).

    The memory starts as zeros because masked positions still enter a product with weight 0, and 0 * NaN is NaN. Pages
    that were never written take no memory on Linux.
    """

    def __init__(self, config: PretrainedConfig, *, rows: int, positions: int, dtype: torch.dtype) -> None:
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        self.kv = torch.zeros(config.num_hidden_layers, 2, rows, kv_heads, positions, head_dim, dtype=dtype)

    def copy_rows(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first ``length`` positions of each source row to its target row. No row may be in both lists."""
        if sources and length:
            self.kv[:, :, targets, :, :length] = self.kv[:, :, sources, :, :length]


class PrefillCache:
    """What the model sees as its cache during a prefill of B rows from position 0."""

    def __init__(self, cache: KVCache, rows: list[int]) -> None:
        self._kv = cache.kv
        self._rows = torch.tensor(rows)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store (B, K, T, D) keys and values; attention needs no others. Padding at the right is stored too: a later
        position is overwritten before it is first read."""
        length = keys.shape[2]
        self._kv[layer_idx, 0][self._rows, :, :length] = keys
        self._kv[layer_idx, 1][self._rows, :, :length] = values
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: nothing is cached before a prefill."""
        return 0


class DecodeCache:
    """What the model sees as its cache during a decode step of the first N rows.

    Args:
        positions: (N,) position of the token that each row feeds; the row's earlier positions are cached.
        window: positions read; above ``max(positions)``.
    """

    def __init__(self, cache: KVCache, positions: torch.Tensor, window: int) -> None:
        self._count = len(positions)
        self._kv = cache.kv[:, :, : self._count, :, :window]
        self._rows = torch.arange(self._count)
        self._positions = positions
        self._window = window

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store (N, K, 1, D) keys and values, and return views (N, K, L, D) of all positions in the window."""
        cached_keys, cached_values = self._kv[layer_idx]
        cached_keys[self._rows, :, self._positions] = keys[:, :, 0]
        cached_values[self._rows, :, self._positions] = values[:, :, 0]
        return cached_keys, cached_values

    def get_seq_length(self, *_: Any) -> int:
        """Return L, the positions read."""
        return self._window

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive mask (N, 1, 1, L): 0 up to each row's own position, minus infinity after it."""
        hidden = torch.arange(self._window) > self._positions[:, None]
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None, :]


def rows_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for a prefill (no mask: causal, T > 1) or a decode step (one query a row, additive mask).

    Args:
        query: (N, H, T, D). key, value: (N, K, L, D), with H a multiple of K (grouped-query attention).
        attention_mask: (N, 1, 1, L) in a decode step, None in a prefill.

    Returns:
        (N, T, H, D), and None in place of the attention weights.

    Raises:
        NotImplementedError: for a model whose attention has a part that this function does not compute.
    """
    for feature in ("softcap", "s_aux", "sliding_window", "position_bias"):
        if kwargs.get(feature) is not None:
            raise NotImplementedError(f"attention with {feature}")
    if attention_mask is None:
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2).contiguous(), None
    count, heads, _, head_dim = query.shape
    kv_heads, length = key.shape[1:3]
    # The query heads that share a key-value head are the rows of one small matrix product, so neither keys nor values
    # are repeated or copied: both flattened tensors are views of the cache.
    scale = head_dim**-0.5 if scaling is None else scaling
    grouped = (query * scale).reshape(count * kv_heads, heads // kv_heads, head_dim)
    scores = torch.bmm(grouped, key.flatten(0, 1).transpose(1, 2)).view(count, heads, 1, length)
    weights = (scores + attention_mask).softmax(-1, dtype=torch.float32).to(value.dtype)
    output = torch.bmm(weights.view(count * kv_heads, heads // kv_heads, length), value.flatten(0, 1))
    return output.view(count, 1, heads, head_dim), None


# transformers finds attention functions by name. A name without a mask function of the same name also tells it to make
# no mask of its own (masking_utils._preprocess_mask_arguments).
AttentionInterface.register(ATTENTION, rows_attention)
