"""The GRPO objective: pure functions of per-token tensors, no model and no batch layout.

Axes: ``N`` response tokens of a micro-batch, all responses one after the other; ``S`` responses, (S,) ``lengths``
partition N. Every formula is per token, and the loss of a whole optimizer step is a weighted sum over its tokens::

    loss = sum_t weight_t * (w_t * policy_t + kl_coef * k3_t - entropy_coef * entropy_t)

``w_t`` is the correction to the behavior policy and ``weight_t`` the mask over the denominator. The denominator is
counted over the whole step, all ranks, before micro-batches are cut, so the sum may be cut anywhere: loss and gradient
do not depend on micro-batch size, packing or the number of ranks (up to rounding).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from grpo.plan.job import ObjectiveSpec
from grpo.types import TrainSample


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What the denominators need of one optimizer step over all ranks.

    Attributes:
        responses: all of them, those out of the loss included.
        tokens: response tokens in the loss.
    """

    responses: int
    tokens: int

    @classmethod
    def of(cls, samples: Iterable[TrainSample]) -> StepCounts:
        """Count one rank's samples; ranks add theirs up."""
        samples = tuple(samples)
        return cls(len(samples), sum(sample.response_length for sample in samples if sample.counts))


def token_weight(sample: TrainSample, counts: StepCounts, spec: ObjectiveSpec, max_response_length: int) -> float:
    """Return mask over denominator, the same for each token of a response of length R.

    ``token``: 1 / tokens in the loss (DAPO, Yu et al. 2025, arXiv 2503.14476, eq. 8). ``response``:
    1 / (R * responses), the mean over responses of token means (GRPO, arXiv 2402.03300, eq. 3). ``constant``:
    1 / (responses * max_response_length) (Dr. GRPO, arXiv 2503.20783, with the length limit as its constant).

    A response that does not count weighs 0, and still counts among the responses. A step of no counting token has
    loss 0.
    """
    if not sample.counts or sample.response_length == 0:
        return 0.0
    match spec.denominator:
        case "token":
            return 1.0 / counts.tokens
        case "response":
            return 1.0 / (sample.response_length * counts.responses)
        case "constant":
            return 1.0 / (counts.responses * max_response_length)


def _sum_per_response(values_n: torch.Tensor, lengths_s: torch.Tensor) -> torch.Tensor:
    """(N,) -> (S,): sums that never reach over the edge of a response, however responses are packed."""
    return torch.segment_reduce(values_n, "sum", lengths=lengths_s)


def _spread(values_s: torch.Tensor, lengths_s: torch.Tensor, size: int) -> torch.Tensor:
    """(S,) -> (N,): each response's value on each of its tokens."""
    return torch.repeat_interleave(values_s, lengths_s, output_size=size)


@dataclass(frozen=True, slots=True)
class Correction:
    """(N,) weights to the behavior policy, without gradient; ``capped`` where they are not the plain ratio."""

    weights: torch.Tensor
    capped: torch.Tensor


def correction(
    spec: ObjectiveSpec, old_logprobs: torch.Tensor, behavior_logprobs: torch.Tensor, lengths: torch.Tensor
) -> Correction:
    """Return the importance weights from the behavior policy to the learner's old policy.

    With ``rho_t = exp(old_t - behavior_t)``: ``tis`` min(rho_t, cap), truncated importance sampling (Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training"; Espeholt et al. 2018, arXiv 1802.01561,
    for the truncation). ``icepop`` rho_t where it lies in [low, high], else 0 (Ling team 2025, "Every step evolves",
    arXiv 2510.18855). ``sequence`` min(prod_t rho_t, cap) on every token of the response (Liu, Li et al. 2025, "When
    speed kills stability"). ``none`` 1.

    Args:
        old_logprobs, behavior_logprobs: (N,) nats.
        lengths: (S,) response lengths.
    """
    log_ratio = (old_logprobs - behavior_logprobs).detach()
    match spec.correction:
        case "none":
            return Correction(torch.ones_like(log_ratio), torch.zeros_like(log_ratio, dtype=torch.bool))
        case "tis":
            ratio = log_ratio.exp()
            return Correction(ratio.clamp(max=spec.tis_cap), ratio > spec.tis_cap)
        case "icepop":
            ratio = log_ratio.exp()
            outside = (ratio < spec.icepop_low) | (ratio > spec.icepop_high)
            return Correction(ratio.masked_fill(outside, 0.0), outside)
        case "sequence":
            ratio = _spread(_sum_per_response(log_ratio, lengths).exp(), lengths, len(log_ratio))
            return Correction(ratio.clamp(max=spec.tis_cap), ratio > spec.tis_cap)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """(N,) policy loss before correction and denominator, and where the clip acted, by side."""

    values: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


def policy_loss(
    spec: ObjectiveSpec,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    lengths: torch.Tensor,
) -> PolicyLoss:
    """Return the (N,) policy loss, with gradient to ``logprobs``.

    With ``r_t = exp(logp_t - old_t)`` and ``clip(r) = min(max(r, 1 - clip_low), 1 + clip_high)``:

    - ``ppo``: ``-min(r_t A, clip(r_t) A)`` (Schulman et al. 2017, arXiv 1707.06347, eq. 7; the two clip sides apart
      as in DAPO, arXiv 2503.14476).
    - ``cispo``: ``-stop_gradient(clip(r_t)) A logp_t`` (MiniMax-M1, arXiv 2506.13585, eq. 4): a clipped token keeps a
      bounded gradient.
    - ``gspo``: ``-min(s A, clip(s) A)`` with one ratio a response, ``s = exp(mean_t(logp_t - old_t))``, on each of its
      tokens (Zheng et al. 2025, arXiv 2507.18071, eq. 5 to 7; theirs is the ``response`` denominator, and clips of
      the order of 3e-4, since a mean varies far less than a token).

    The clip acts where it makes the loss flat (``ppo``, ``gspo``: it depends on the sign of A), or bounds the weight
    (``cispo``).

    Args:
        logprobs, old_logprobs, advantages: (N,).
        lengths: (S,) response lengths.
    """
    low, high = 1.0 - spec.clip_low, 1.0 + spec.clip_high
    log_ratio = logprobs - old_logprobs
    if spec.policy_loss == "cispo":
        ratio = log_ratio.detach().exp()
        return PolicyLoss(-ratio.clamp(low, high) * advantages * logprobs, ratio < low, ratio > high)
    if spec.policy_loss == "gspo":
        mean_s = _sum_per_response(log_ratio, lengths) / lengths.clamp(min=1)
        log_ratio = _spread(mean_s, lengths, len(log_ratio))
    ratio = log_ratio.exp()
    values = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    return PolicyLoss(values, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0))


def k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Return the (N,) estimate ``exp(d) - d - 1``, ``d = ref - logp``, of KL(policy || reference), in nats.

    Non-negative, and unbiased under the policy (Schulman 2020, "Approximating KL divergence"; GRPO, arXiv 2402.03300,
    eq. 4).
    """
    difference = reference_logprobs - logprobs
    return difference.exp() - difference - 1.0


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What the objective needs, all (N,) but ``lengths`` (S,).

    Attributes:
        logprobs, entropy: of the current policy at the sampling temperature, nats; with gradient.
        old_logprobs: None: those of the current policy, so that the ratio is 1 and only its gradient acts.
        reference_logprobs: None without a reference.
        weights: mask over denominator, of :func:`token_weight`.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    old_logprobs: torch.Tensor | None
    behavior_logprobs: torch.Tensor
    reference_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """One micro-batch's part of the step's loss.

    Attributes:
        loss: (), the part of the whole loss, with gradient; parts of all micro-batches and ranks add up.
        policy: (), the policy part of it, detached.
        kl: (N,) k3, zeros without a reference, detached.
        old_logprobs: (N,) as used.
    """

    loss: torch.Tensor
    policy: torch.Tensor
    kl: torch.Tensor
    old_logprobs: torch.Tensor
    correction: Correction
    terms: PolicyLoss


def objective(spec: ObjectiveSpec, inputs: TokenInputs) -> Objective:
    """Return a micro-batch's part of the loss (formula on top of this module)."""
    old = inputs.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
    terms = policy_loss(spec, inputs.logprobs, old, inputs.advantages, inputs.lengths)
    weights = correction(spec, old, inputs.behavior_logprobs, inputs.lengths)
    policy = (inputs.weights * weights.weights * terms.values).sum()
    loss, kl = policy, torch.zeros_like(old)
    if inputs.reference_logprobs is not None:
        kl = k3(inputs.logprobs, inputs.reference_logprobs)
        loss = loss + spec.kl_coef * (inputs.weights * kl).sum()
    if spec.entropy_coef != 0.0:
        loss = loss - spec.entropy_coef * (inputs.weights * inputs.entropy).sum()
    return Objective(loss, policy.detach(), kl.detach(), old, weights, terms)
