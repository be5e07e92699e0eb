"""Which responses of a group count, and what becomes of the group.

Two rules meet here. *Excluding truncated responses*: a response that hit its length limit gets zero advantage and zero
loss mask, and leaves the group's baseline. *Ungraded is not zero*: a response that its verifier could not judge leaves
the baseline too, unless the user says otherwise. Raw rewards stay as they are, for the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from grpo.errors import RunFailed
from grpo.plan.job import FilterSpec
from grpo.types import FinishReason, Group, Ungraded


class Outcome(StrEnum):
    """What becomes of a graded group; the values are the ledger's terminal states, except ``train``."""

    TRAIN = "train"
    ZERO_STD = "zero_std"
    TRUNCATED = "truncated"
    UNGRADED = "ungraded"


@dataclass(frozen=True, slots=True)
class Counted:
    """The responses of a group, in sample order, as the baseline sees them.

    Attributes:
        rewards: raw reward of each response, also of those that do not count; None where there is none.
        counts: whether the response is in the baseline and in the loss. Where it is True there is a reward.
    """

    rewards: tuple[float | None, ...]
    counts: tuple[bool, ...]

    @property
    def counting_rewards(self) -> tuple[float, ...]:
        """The rewards that the baseline is made of."""
        return tuple(r for r, c in zip(self.rewards, self.counts, strict=True) if c and r is not None)

    @property
    def uniform_reward(self) -> float | None:
        """The one reward that all counting responses share (1: all right, 0: all wrong); None if they vary."""
        rewards = self.counting_rewards
        return rewards[0] if rewards and not varies(rewards) else None


def varies(rewards: Sequence[float]) -> bool:
    """Whether rewards differ at all.

    The comparison is exact: with no tolerance, whether a group trains never depends on the scale of a reward. So a
    verifier must give equal floats for equal quality (sum weighted parts in one fixed order).
    """
    return any(reward != rewards[0] for reward in rewards)


def counting(group: Group, *, exclude_truncated: bool, ungraded: Literal["zero", "exclude", "raise"]) -> Counted:
    """Say which responses of ``group`` count.

    A response counts if it was not aborted, did not hit the length limit (only under ``exclude_truncated``), and has a
    grade (or ``ungraded`` is ``zero``, which gives it the reward 0).

    Raises:
        RunFailed: a response is ungraded and ``ungraded`` is ``raise``; also if the response would not count anyway,
            because the policy is about the verifier, not the response.
    """
    rewards: list[float | None] = []
    counts: list[bool] = []
    for index, (response, grade) in enumerate(zip(group.responses, group.grades, strict=True)):
        if isinstance(grade, Ungraded):
            if ungraded == "raise":
                raise RunFailed(
                    f"response {index} of prompt {group.prompt.id!r} could not be graded: {grade.reason}",
                    fix="Repair the verifier, or choose another policy than 'raise' for ungraded responses.",
                )
            reward = 0.0 if ungraded == "zero" else None
        else:
            reward = grade.score
        rewards.append(reward)
        counts.append(reward is not None and _finished(response.finish, exclude_truncated))
    return Counted(tuple(rewards), tuple(counts))


def judge(group: Group, filter: FilterSpec) -> Outcome:
    """Decide whether ``group`` is trained.

    With ``zero_std`` on, a group needs two counting responses whose rewards differ. One that has not is

    - ``UNGRADED``: fewer than two count, but two or more finished ones would, had they been graded;
    - ``TRUNCATED``: fewer than two finished, or those that count are equal and the truncated ones would have differed;
    - ``ZERO_STD``: the counting rewards are equal, whatever the reason would be.

    With it off, nothing is dropped, also not a group whose responses were all truncated: it takes its place in the
    batch with a zero loss mask. The one exception is a group in which nothing counts although a response finished,
    which means that no finished response was graded: it is ``UNGRADED``, because an outage of the verifier is no
    property of the group, and must reach the retry and circuit-breaker policies instead of filling batches with
    nothing.

    Raises:
        RunFailed: see :func:`counting`.
    """
    counted = counting(group, exclude_truncated=filter.exclude_truncated, ungraded=filter.ungraded)
    finished = sum(_finished(response.finish, filter.exclude_truncated) for response in group.responses)
    counts = len(counted.counting_rewards)
    if not filter.zero_std:
        return Outcome.UNGRADED if finished and not counts else Outcome.TRAIN
    if varies(counted.counting_rewards):
        return Outcome.TRAIN
    if counts < 2 <= finished:
        return Outcome.UNGRADED
    excluded = finished < len(group.responses)
    if excluded and (finished < 2 or varies([reward for reward in counted.rewards if reward is not None])):
        return Outcome.TRUNCATED
    return Outcome.ZERO_STD


def _finished(finish: FinishReason, exclude_truncated: bool) -> bool:
    """Whether a response that ended so may count."""
    return finish is FinishReason.STOP or (finish is FinishReason.LENGTH and not exclude_truncated)
