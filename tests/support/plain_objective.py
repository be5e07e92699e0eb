"""The objective once more, straight from the formulas: one sample at a time, one token at a time, full logits.

Nothing is shared with the product's code, and nothing is fast.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from grpo.plan.job import JobSpec, ObjectiveSpec
from grpo.types import TrainSample
from support.models import VOCABULARY


def random_samples(count: int, seed: int, *, left_out: Sequence[int] = ()) -> tuple[TrainSample, ...]:
    """Return samples of mixed lengths and both signs of advantage; those in ``left_out`` do not count.

    More advantages are above 0, so that a loss is not what rounding left of terms that cancel.
    """
    draw = random.Random(seed)

    def sample(index: int) -> TrainSample:
        prompt, response = draw.randint(1, 7), draw.randint(1, 12)
        return TrainSample(
            sample_id=f"s{index}",
            tokens=tuple(draw.randrange(VOCABULARY) for _ in range(prompt + response)),
            prompt_length=prompt,
            behavior_logprobs=tuple(math.log(draw.uniform(0.02, 1.0)) for _ in range(response)),
            advantage=draw.choice((-1, 1, 1)) * draw.uniform(0.2, 1.5),
            counts=index not in left_out,
        )

    return tuple(sample(index) for index in range(count))


def near_policy(samples: Sequence[TrainSample], model: PreTrainedModel, temperature: float) -> tuple[TrainSample, ...]:
    """Give each sample old and behavior log-probabilities around the model's own, far enough to clip and cap some."""
    draw = random.Random(7)
    result = []
    for sample in samples:
        with torch.no_grad():
            own = token_logprobs(model, sample, temperature)[0]
        shift = draw.gauss(0, 0.3)  # Of a whole response, or the ratio of a sequence would hardly vary.
        old = tuple(float(value) + shift + draw.gauss(0, 0.3) for value in own)
        behavior = tuple(value + draw.gauss(0, 0.6) for value in old)
        result.append(replace(sample, old_logprobs=old, behavior_logprobs=behavior))
    return tuple(result)


def token_logprobs(
    model: PreTrainedModel, sample: TrainSample, temperature: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probability of each response token, and entropy of the distribution that it is drawn from."""
    logits = model(input_ids=torch.tensor([sample.tokens])).logits[0]
    logprobs, entropies = [], []
    for position in range(sample.prompt_length, len(sample.tokens)):
        p = torch.softmax(logits[position - 1] / temperature, dim=-1)
        logprobs.append(torch.log(p[sample.tokens[position]]))
        entropies.append(-(p * torch.log(p)).sum())
    return logprobs, entropies


def clip(value: torch.Tensor, low: float, high: float) -> torch.Tensor:
    if value.item() < low:
        return torch.tensor(low)
    return torch.tensor(high) if value.item() > high else value


def behavior_weights(spec: ObjectiveSpec, old: Sequence[float], behavior: Sequence[float]) -> list[float]:
    ratios = [math.exp(a - b) for a, b in zip(old, behavior, strict=True)]
    if spec.correction == "tis":
        return [min(ratio, spec.tis_cap) for ratio in ratios]
    if spec.correction == "icepop":
        return [ratio if spec.icepop_low <= ratio <= spec.icepop_high else 0.0 for ratio in ratios]
    if spec.correction == "sequence":
        return [min(math.prod(ratios), spec.tis_cap)] * len(ratios)
    return [1.0] * len(ratios)


def policy_terms(
    spec: ObjectiveSpec, logprobs: list[torch.Tensor], old: Sequence[float], advantage: float
) -> list[torch.Tensor]:
    low, high = 1 - spec.clip_low, 1 + spec.clip_high
    if spec.policy_loss == "gspo":
        s = torch.exp(sum(p - o for p, o in zip(logprobs, old, strict=True)) / len(logprobs))  # type: ignore[arg-type]
        ratios = [s] * len(logprobs)
    else:
        ratios = [torch.exp(p - o) for p, o in zip(logprobs, old, strict=True)]
    if spec.policy_loss == "cispo":
        return [-clip(ratio, low, high).detach() * advantage * p for ratio, p in zip(ratios, logprobs, strict=True)]
    return [-torch.min(ratio * advantage, clip(ratio, low, high) * advantage) for ratio in ratios]


def plain_loss(
    job: JobSpec, model: PreTrainedModel, reference: PreTrainedModel, samples: Sequence[TrainSample]
) -> torch.Tensor:
    """The loss of a whole step, with gradient to ``model``."""
    spec, temperature = job.objective, job.sampling.temperature
    tokens_in_loss = sum(len(s.tokens) - s.prompt_length for s in samples if s.counts)
    loss = torch.zeros(())
    for sample in samples:
        if not sample.counts:
            continue
        logprobs, entropies = token_logprobs(model, sample, temperature)
        with torch.no_grad():
            reference_logprobs, _ = token_logprobs(reference, sample, temperature)
        old = sample.old_logprobs or [p.item() for p in logprobs]
        weights = behavior_weights(spec, old, sample.behavior_logprobs)
        terms = policy_terms(spec, logprobs, old, sample.advantage)
        denominator = {
            "token": tokens_in_loss,
            "response": len(logprobs) * len(samples),
            "constant": job.batch.max_response_length * len(samples),
        }[spec.denominator]
        for t in range(len(logprobs)):
            d = reference_logprobs[t] - logprobs[t]
            token = weights[t] * terms[t] + spec.kl_coef * (torch.exp(d) - d - 1) - spec.entropy_coef * entropies[t]
            loss = loss + token / denominator
    return loss
