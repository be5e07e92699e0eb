"""Sampling of one token for each running request, vectorised over the requests.

Axis names: ``N`` running requests, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grpo.types import SamplingParams

_DRAWS_AHEAD = 64


class UniformStream:
    """Uniform numbers in [0, 1) of one request, the same whatever it is batched with.

    They come from a counter-based generator (Philox; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
    2011) with the request's seed as the key: streams of different keys are independent, even of neighbouring ones.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._ahead: list[float] = []

    def draw(self) -> float:
        """Return the next number; there is one for every token of the response."""
        if not self._ahead:
            self._ahead = self._generator.random(_DRAWS_AHEAD)[::-1].tolist()
        return self._ahead.pop()


@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of N requests as columns.

    Attributes:
        temperature: (N, 1) float32; 1 for greedy rows.
        greedy: (N,) bool.
        truncated: (M,) int64, the rows that have top-k or top-p on.
        top_k: (M, 1) int64, at least 1. top_p: (M, 1) float32.
    """

    temperature: torch.Tensor
    greedy: torch.Tensor
    any_greedy: bool
    truncated: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int) -> SamplingRows:
        """Return the columns of N requests' parameters."""
        greedy = [p.temperature == 0 for p in params]
        truncated = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1]
        return cls(
            temperature=torch.tensor([[p.temperature or 1.0] for p in params], dtype=torch.float32),
            greedy=torch.tensor(greedy),
            any_greedy=any(greedy),
            truncated=torch.tensor(truncated, dtype=torch.int64),
            top_k=torch.tensor([[params[i].top_k or vocab_size] for i in truncated], dtype=torch.int64),
            top_p=torch.tensor([[params[i].top_p] for i in truncated], dtype=torch.float32),
        )


def sample(logits: torch.Tensor, rows: SamplingRows, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution at its uniform number.

    Args:
        logits: (N, V).
        uniforms: (N,) float64 in [0, 1).

    Returns:
        (N,) token ids, and their (N,) float32 behavior log-probabilities in nats: ``log_softmax(logits / temperature)``
        in float32, before top-k and top-p. A greedy row takes the most probable token, and its log-probability is that
        of temperature 1.
    """
    logprobs = torch.log_softmax(logits.float() / rows.temperature, dim=-1)
    probs = logprobs.exp()
    if len(rows.truncated):
        probs[rows.truncated] = truncate(probs[rows.truncated], rows.top_k, rows.top_p)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the total, so that rounding never runs past the last token that has any probability.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    # Only a row of NaN is past the end; the clamp leaves its NaN log-probability for the caller to find.
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    if rows.any_greedy:
        tokens = torch.where(rows.greedy[:, None], logprobs.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def truncate(probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return (M, V) probabilities with zeros outside the ``top_k`` (M, 1) most probable tokens, and then outside the
    smallest set of those that has at least ``top_p`` (M, 1) of their mass. Not normalised."""
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    ranked = ranked * (torch.arange(probs.shape[-1]) < top_k)
    mass_before = ranked.cumsum(-1) - ranked
    ranked = ranked * (mass_before < top_p * ranked.sum(-1, keepdim=True))
    return torch.zeros_like(probs).scatter_(-1, order, ranked)
