"""From a graded group to what the learner trains on."""

from __future__ import annotations

from grpo.learner.advantage import advantages
from grpo.plan.job import FilterSpec, ObjectiveSpec
from grpo.rewards.truncation import counting
from grpo.types import Group, TrainSample


def train_samples(group: Group, filter: FilterSpec, objective: ObjectiveSpec) -> tuple[TrainSample, ...]:
    """Return one sample for each response of ``group``, in sample order, whether or not it counts.

    A response that does not count has advantage 0 and ``counts`` False: it is out of the loss, but keeps its place in
    the ``response`` denominator. Ids are ``{group_id}.{attempt}.{index}``.

    Raises:
        RunFailed: a response is ungraded and the policy is ``raise``.
    """
    counted = counting(group, exclude_truncated=filter.exclude_truncated, ungraded=filter.ungraded)
    values = advantages(counted.rewards, counted.counts, std=objective.advantage_std)
    return tuple(
        TrainSample(
            sample_id=f"{group.group_id}.{group.attempt}.{index}",
            tokens=group.prompt.tokens + response.tokens,
            prompt_length=len(group.prompt.tokens),
            behavior_logprobs=response.logprobs,
            advantage=value,
            counts=counts,
        )
        for index, (response, value, counts) in enumerate(zip(group.responses, values, counted.counts, strict=True))
    )
