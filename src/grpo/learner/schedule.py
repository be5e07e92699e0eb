"""The learning rate as a pure function of the optimizer step, so that a schedule has no state to save."""

from __future__ import annotations

import math

from grpo.plan.job import OptimizerSpec


def learning_rate(spec: OptimizerSpec, step: int, total_steps: int) -> float:
    """Return the learning rate of optimizer step ``step`` (0 is the first) of ``total_steps``.

    Linear warmup over ``warmup_steps``: ``(step + 1) / warmup_steps`` of the peak, so that the first step is not
    wasted on a rate of 0. Then, with ``x = (step - warmup) / (total - warmup)`` in [0, 1): ``constant`` 1, ``linear``
    ``1 - x``, ``cosine`` ``(1 + cos(pi x)) / 2`` (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts). Both
    decays would reach 0 one step after the last, and stay there if a run goes on.
    """
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = min(1.0, (step - spec.warmup_steps) / max(1, total_steps - spec.warmup_steps))
    if spec.schedule == "linear":
        return spec.learning_rate * (1.0 - progress)
    return spec.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
