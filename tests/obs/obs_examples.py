"""Groups, rows and statuses that the tests of this folder share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpo.obs.rows import PipelineStatus, StepRow, StepTiming, collection_stats
from grpo.types import EvalScore, FinishReason, Grade, Graded, Group, Prompt, Response, StepMetrics, Ungraded, spans_of

LEARNER = StepMetrics(
    version=3,
    loss=0.0125,
    policy_loss=0.01,
    entropy=1.25,
    kl=0.0,
    grad_norm=0.75,
    learning_rate=0.001,
    clip_low_fraction=0.01,
    clip_high_fraction=0.02,
    tis_mean=1.0,
    tis_max=1.5,
    tis_capped_fraction=0.0,
    logprob_diff_mean=1e-06,
    logprob_diff_max=2e-05,
    samples=32,
    loss_tokens=100,
    tokens=300,
    micro_batches=2,
    seconds=0.5,
)


def make_response(
    name: str, versions: list[int], *, tokens: list[int] | None = None, finish: FinishReason = FinishReason.STOP
) -> Response:
    """Return a response with a token for each of ``versions``."""
    ids = tuple(range(5, 5 + len(versions))) if tokens is None else tuple(tokens)
    logprobs = tuple(-0.25 * (index + 1) for index in range(len(versions)))
    return Response(name, ids, logprobs, spans_of(versions), finish)


def make_group(group_id: int, responses: list[Response], grades: list[Grade], *, source: str = "addition") -> Group:
    """Return a group of ``responses``, of a prompt named after ``group_id``."""
    prompt = Prompt(f"{source}/train/{group_id}", (1, 2), f"{group_id}+1=", str(group_id + 1), "exact", source)
    return Group(group_id, 0, prompt, tuple(responses), tuple(grades))


def two_groups() -> list[Group]:
    """Return an addition group (one truncated, one ungraded) and a multiplication group (all graded)."""
    return [
        make_group(
            7,
            [
                make_response("7.0.0", [2, 2]),
                make_response("7.0.1", [2, 2, 3, 3], finish=FinishReason.LENGTH),
                make_response("7.0.2", [3]),
            ],
            [Graded(1.0), Graded(0.0), Ungraded("timeout")],
        ),
        make_group(
            8,
            [make_response("8.0.0", [3, 3, 3]), make_response("8.0.1", [3]), make_response("8.0.2", [3])],
            [Graded(0.5), Graded(1.0), Graded(-0.5)],
            source="multiplication",
        ),
    ]


def make_row(step: int = 3, *, reward: float | None = None, **changes: Any) -> StepRow:
    """Return a row whose clock shows ten seconds a step; ``reward`` replaces the mean of :func:`two_groups`."""
    rollouts = collection_stats(two_groups(), [1, 0])
    if reward is not None:
        rollouts = replace(rollouts, reward_mean=reward)
    row = StepRow(
        step=step,
        collection=step,
        learner=replace(LEARNER, version=step),
        rollouts=rollouts,
        outcomes={"zero_std": 4, "trained": 8},
        admitted=8 * step,
        in_flight=2,
        buffered=1,
        time=StepTiming(
            elapsed_s=10.0 * step,
            interval_s=10.0,
            step_s=4.0,
            wait_s=5.5,
            publish_s=0.25,
            generated_tokens_per_s=1234.5,
            trained_tokens_per_s=75.0,
        ),
    )
    return replace(row, **changes)


def make_status(version: int = 2, **changes: Any) -> PipelineStatus:
    """Return a moment of a run of four steps."""
    status = PipelineStatus(
        policy_version=version,
        engine_version=1,
        in_flight=5,
        graded=1,
        buffered=3,
        trained=16,
        total_steps=4,
        tokens_per_second=12345.6,
        waiting="the trainer waits for groups",
    )
    return replace(status, **changes)


def make_score(version: int, accuracy: float, name: str = "addition") -> EvalScore:
    """Return a score over 16 prompts."""
    return EvalScore(name, version, accuracy, 16, 1, 0.0625, 3.5)
