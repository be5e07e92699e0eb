"""Sums over the response tokens of a step, from which its metrics are computed."""

from __future__ import annotations

import torch

from grpo.learner.objective import Objective
from grpo.learner.packing import MicroBatch
from grpo.types import StepMetrics


class Tally:
    """Adds up micro-batches. Ranks would add ``sums`` and take the maximum of ``maxima``: nothing else is needed.

    Sums are float64, so that metrics do not depend visibly on how the step was cut.
    """

    def __init__(self) -> None:
        # loss, policy; then per counting token: entropy, kl, clipped low, clipped high, weight, capped, |difference|
        self.sums = torch.zeros(9, dtype=torch.float64)
        self.maxima = torch.zeros(2, dtype=torch.float64)  # weight, |difference|
        self.tokens = 0
        self.micro_batches = 0

    def add(self, batch: MicroBatch, part: Objective, entropy: torch.Tensor) -> None:
        """Add one micro-batch."""
        difference = (part.old_logprobs - batch.behavior_logprobs).abs()
        per_token = torch.stack(
            [
                entropy.detach(),
                part.kl,
                part.terms.clipped_low.float(),
                part.terms.clipped_high.float(),
                part.correction.weights,
                part.correction.capped.float(),
                difference,
            ]
        )[:, batch.counts].double()
        scalars = torch.stack([part.loss.detach(), part.policy]).double()
        self.sums += torch.cat([scalars, per_token.sum(dim=1)]).cpu()
        if per_token.shape[1]:
            self.maxima = torch.maximum(self.maxima, per_token[[4, 6]].amax(dim=1).cpu())
        self.tokens += batch.tokens
        self.micro_batches += 1

    @property
    def loss(self) -> float:
        """Of the whole step so far."""
        return float(self.sums[0])

    def metrics(
        self, *, version: int, grad_norm: float, learning_rate: float, samples: int, loss_tokens: int, seconds: float
    ) -> StepMetrics:
        """Return the metrics of the step; a step of no counting token has means of 0."""
        loss, policy, *totals = self.sums.tolist()
        entropy, kl, low, high, weight, capped, difference = (total / max(1, loss_tokens) for total in totals)
        return StepMetrics(
            version=version,
            loss=loss,
            policy_loss=policy,
            entropy=entropy,
            kl=kl,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            clip_low_fraction=low,
            clip_high_fraction=high,
            tis_mean=weight,
            tis_max=float(self.maxima[0]),
            tis_capped_fraction=capped,
            logprob_diff_mean=difference,
            logprob_diff_max=float(self.maxima[1]),
            samples=samples,
            loss_tokens=loss_tokens,
            tokens=self.tokens,
            micro_batches=self.micro_batches,
            seconds=seconds,
        )
