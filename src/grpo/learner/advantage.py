"""Group-relative advantages. No torch here: the controller and the simulated fleet compute them at a high rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_EPSILON = 1e-6


def advantages(rewards: Sequence[float | None], counts: Sequence[bool], *, std: bool) -> list[float]:
    """Return the (G,) advantages of one group: ``A_i = r_i - mean(r)``, with ``std`` ``A_i / (std(r) + 1e-6)``.

    Mean and standard deviation are over the responses that count; a response that does not gets 0. The baseline and
    the division are those of GRPO (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2); leaving the
    division out is Dr. GRPO (Liu et al. 2025, arXiv 2503.20783). The standard deviation is the sample's (ddof = 1), as
    ``torch.std`` computes it in TRL and verl. Where the counting rewards do not vary, every advantage is exactly 0.

    Args:
        rewards: (G,) raw rewards; None, for an ungraded response, only where it does not count.
        counts: (G,) whether a response is in the baseline and the loss.
        std: divide by the standard deviation.

    Raises:
        ValueError: the lengths differ, or a response counts that has no reward.
    """
    counting = [reward for reward, counted in zip(rewards, counts, strict=True) if counted]
    graded = [reward for reward in counting if reward is not None]
    if len(graded) != len(counting):
        raise ValueError("a response that counts has no reward")
    # Not only a shortcut: rounding in the mean would leave tiny advantages, which dividing by their std makes large.
    if not graded or min(graded) == max(graded):
        return [0.0] * len(rewards)
    mean = math.fsum(graded) / len(graded)
    scale = 1.0
    if std:
        variance = math.fsum((reward - mean) ** 2 for reward in graded) / (len(graded) - 1)
        scale = math.sqrt(variance) + STD_EPSILON
    return [
        (reward - mean) / scale if counted and reward is not None else 0.0
        for reward, counted in zip(rewards, counts, strict=True)
    ]
