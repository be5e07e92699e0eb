"""The rows of ``metrics.jsonl``: what is measured, in which unit, and what a bad value suggests.

All that depends on the wall clock lives in :class:`StepTiming`, the ``time`` object of a row: two runs of the same seed
in a synchronous mode give rows that are equal, byte for byte, apart from ``time``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt
from statistics import fmean
from typing import Any, Literal

from grpo.types import EvalScore, Graded, Group, StepMetrics

OUTCOMES = ("trained", "zero_std", "truncated", "stale", "ungraded", "failed")
"""How a group may end, in the order in which rows list them."""

MAX_REWARD = 1.0
"""A response with at least this reward is solved."""

Reduction = Literal["mean", "sum", "max", "min", "last"]
"""How values of one metric combine over ranks, micro-batches or rows."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What there is to know about one metric; ``bad`` says what a bad value suggests."""

    unit: str
    reduction: Reduction
    meaning: str
    bad: str


def metric(*, unit: str, reduction: Reduction, meaning: str, bad: str) -> Any:
    """Return a required dataclass field that carries its :class:`Metric`."""
    return field(metadata={"metric": Metric(unit, reduction, meaning, bad)})


@dataclass(frozen=True, slots=True)
class CollectionStats:
    """The responses of one collection as they were generated and graded, before the learner changed anything.

    Rewards are raw and over graded responses; a value over none of them is None.
    """

    reward_mean: float | None = metric(
        unit="reward",
        reduction="mean",
        meaning="Mean raw reward over graded responses.",
        bad="Flat from the start: the task is out of reach, or the verifier never agrees. "
        "Falling: the learning rate is too high or the groups are too stale.",
    )
    reward_std: float | None = metric(
        unit="reward",
        reduction="mean",
        meaning="Population standard deviation of the raw reward over graded responses.",
        bad="Near 0: all responses earn the same, so there is nothing to learn from.",
    )
    reward_min: float | None = metric(
        unit="reward",
        reduction="min",
        meaning="Lowest raw reward.",
        bad="Equal to the maximum: every response earned the same.",
    )
    reward_max: float | None = metric(
        unit="reward",
        reduction="max",
        meaning="Highest raw reward.",
        bad="Below 1 for many steps: no prompt is ever solved; give easier prompts or more samples.",
    )
    solve_rate: float | None = metric(
        unit="fraction",
        reduction="mean",
        meaning=f"Fraction of graded responses whose raw reward is at least {MAX_REWARD:g}.",
        bad="Near 0 or near 1: most groups have no variation and are dropped by the zero-std filter.",
    )
    reward_by_source: Mapping[str, float] = metric(
        unit="reward",
        reduction="mean",
        meaning="Mean raw reward over the graded responses of each task or file.",
        bad="One source flat while others rise: it is too hard, too rare, or its verifier is wrong.",
    )
    response_length_mean: float | None = metric(
        unit="tokens",
        reduction="mean",
        meaning="Mean response length, the stop token included.",
        bad="Rising without reward: length is rewarded by accident. Collapsing: the policy gives up early.",
    )
    response_length_max: int = metric(
        unit="tokens",
        reduction="max",
        meaning="Longest response.",
        bad="Always at the limit: raise max_response_length or expect truncation.",
    )
    truncated_fraction: float | None = metric(
        unit="fraction",
        reduction="mean",
        meaning="Fraction of responses that hit the length limit.",
        bad="Above a few percent: answers are cut off; raise the limit or look for loops in the rollouts.",
    )
    ungraded_fraction: float | None = metric(
        unit="fraction",
        reduction="mean",
        meaning="Fraction of responses that no verifier could decide.",
        bad="Above 0: a verifier or its service fails.",
    )
    lag_mean: float | None = metric(
        unit="optimizer steps",
        reduction="mean",
        meaning="Mean lag of the groups when the trainer took them.",
        bad="Near the limit: generation is ahead of training; the correction has more to correct.",
    )
    lag_max: int | None = metric(
        unit="optimizer steps",
        reduction="max",
        meaning="Largest lag of a group that the trainer took.",
        bad="Over max_policy_lag: a bug.",
    )
    lag_histogram: Mapping[int, int] = metric(
        unit="groups",
        reduction="sum",
        meaning="Groups by lag.",
        bad="All at the limit: pacing admits too much.",
    )
    prompts: int = metric(
        unit="groups",
        reduction="sum",
        meaning="Groups described by this row.",
        bad="Fewer than rollout_batch_size: the data ran out.",
    )
    responses: int = metric(
        unit="responses",
        reduction="sum",
        meaning="Responses described by this row.",
        bad="Not prompts times samples_per_prompt: a bug.",
    )
    response_tokens: int = metric(
        unit="tokens",
        reduction="sum",
        meaning="Tokens of these responses.",
        bad="Far over learner.loss_tokens: much of what is generated is not trained on.",
    )


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What depends on the wall clock, and nothing else does. "The interval" is since the previous row."""

    elapsed_s: float = metric(
        unit="s",
        reduction="max",
        meaning="Since this process started the run.",
        bad="None by itself; it is the clock that the other times are read against.",
    )
    interval_s: float = metric(
        unit="s",
        reduction="max",
        meaning="Since the previous row (the start of the run for the first).",
        bad="Jumps: an evaluation, a checkpoint or a straggler; compare wait_s and publish_s.",
    )
    step_s: float = metric(
        unit="s",
        reduction="max",
        meaning="The learner's optimizer step, slowest rank.",
        bad="Most of the interval: the run is trainer-bound.",
    )
    wait_s: float = metric(
        unit="s",
        reduction="max",
        meaning="The trainer waited for groups.",
        bad="Most of the interval: the run is generation-bound; add engines or allow more lag.",
    )
    publish_s: float = metric(
        unit="s",
        reduction="max",
        meaning="Making the new weights live in the engines.",
        bad="Comparable with step_s: publication stalls generation; try another publication_mode.",
    )
    generated_tokens_per_s: float = metric(
        unit="tokens/s",
        reduction="sum",
        meaning="Response tokens generated in the interval, by all engines, over interval_s.",
        bad="Falling while lengths are steady: too few requests are in flight to fill the engines.",
    )
    trained_tokens_per_s: float = metric(
        unit="tokens/s",
        reduction="sum",
        meaning="All tokens that the learner computed over step_s.",
        bad="Falling: short packs or small micro-batches.",
    )


LEARNER_METRICS: Mapping[str, Metric] = {
    "loss": Metric("loss", "sum", "The optimised value, all parts.", "Not finite: stop; lower the learning rate."),
    "policy_loss": Metric(
        "loss", "sum", "The clipped policy-gradient part.", "Near 0 is normal on-policy; look at the reward, not here."
    ),
    "entropy": Metric(
        "nats/token",
        "mean",
        "Mean entropy of the policy at response tokens.",
        "Near 0: collapse, no exploration. Rising steadily: the policy dissolves; lower the learning rate.",
    ),
    "kl": Metric(
        "nats/token",
        "mean",
        "Mean k3 estimate of the KL divergence to the reference; 0 without one.",
        "Growing fast: the policy leaves the reference; raise kl_coef.",
    ),
    "grad_norm": Metric(
        "L2 norm", "last", "Of the whole gradient, before clipping.", "Spikes: a bad batch or too high a learning rate."
    ),
    "learning_rate": Metric("1", "last", "As the schedule gave it for this step.", "0 before the end: wrong schedule."),
    "clip_low_fraction": Metric(
        "fraction", "mean", "Tokens whose ratio the lower clip made flat.", "Above 0.2: steps are too large."
    ),
    "clip_high_fraction": Metric(
        "fraction", "mean", "Tokens whose ratio the upper clip made flat.", "Above 0.2: steps are too large."
    ),
    "tis_mean": Metric(
        "1", "mean", "Mean importance weight to the behavior policy.", "Far from 1: engine and learner disagree."
    ),
    "tis_max": Metric("1", "max", "Largest importance weight, after the cap.", "Always at the cap: stale groups."),
    "tis_capped_fraction": Metric(
        "fraction", "mean", "Tokens whose importance weight was capped.", "Above 0.05: lower the lag."
    ),
    "logprob_diff_mean": Metric(
        "nats",
        "mean",
        "Mean absolute difference of behavior and learner log-probabilities.",
        "Above 0.1 at lag 0: engine and learner compute different models (dtype, template, weights).",
    ),
    "logprob_diff_max": Metric(
        "nats", "max", "Largest absolute difference.", "Above 1 at lag 0: some token was computed under other weights."
    ),
    "samples": Metric("responses", "sum", "Responses of the step.", "Not global_batch_size: a bug."),
    "loss_tokens": Metric(
        "tokens", "sum", "Response tokens in the loss.", "Far under rollouts.response_tokens: much is masked."
    ),
    "tokens": Metric("tokens", "sum", "All tokens computed, prompts too.", "Far over loss_tokens: prompts dominate."),
    "micro_batches": Metric("1", "sum", "Forward and backward passes.", "Many with few tokens: enlarge them."),
}
"""The ``learner`` object of a row: :class:`grpo.types.StepMetrics` without ``version`` (the row's ``step``) and
``seconds`` (``time.step_s``)."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One optimizer step.

    Attributes:
        step: optimizer steps applied, this one included; the policy version after it.
        collection: the collection that the step trained on, from 1.
        learner: what the learner measured.
        rollouts: of the collection.
        outcomes: groups that ended since the previous row, by how; a name that is missing is 0.
        admitted: groups admitted since the run began. In flight, buffered: groups at this moment.
        time: everything that depends on the wall clock.
    """

    step: int
    collection: int
    learner: StepMetrics
    rollouts: CollectionStats
    outcomes: Mapping[str, int]
    admitted: int
    in_flight: int
    buffered: int
    time: StepTiming

    def __post_init__(self) -> None:
        if unknown := set(self.outcomes) - set(OUTCOMES):
            raise ValueError(f"unknown outcomes {sorted(unknown)}; there are {OUTCOMES}")

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values; the order of the keys never changes."""
        return {
            "kind": "step",
            "step": self.step,
            "collection": self.collection,
            "rollouts": _object(self.rollouts),
            "learner": {name: getattr(self.learner, name) for name in LEARNER_METRICS},
            "outcomes": {outcome: self.outcomes.get(outcome, 0) for outcome in OUTCOMES},
            "groups": {"admitted": self.admitted, "in_flight": self.in_flight, "buffered": self.buffered},
            "time": _object(self.time),
        }


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A moment of the pipeline.

    Attributes:
        policy_version: of the learner. engine_version: the oldest that an engine serves now.
        in_flight, graded, buffered: groups being generated or graded, graded and not yet filtered, waiting in the
            buffer.
        trained: groups trained since the run began.
        total_steps: optimizer steps of the whole run.
        tokens_per_second: response tokens generated by all engines over a recent window.
        waiting: who waits for what, in words; empty when nobody does.
    """

    policy_version: int
    engine_version: int
    in_flight: int
    graded: int
    buffered: int
    trained: int
    total_steps: int
    tokens_per_second: float
    waiting: str


def collection_stats(groups: Sequence[Group], lags: Sequence[int]) -> CollectionStats:
    """Return the statistics of ``groups``.

    Args:
        groups: the groups to describe; whether they include those that the filter dropped is the caller's choice.
        lags: in optimizer steps, of the groups that the trainer took; not necessarily one for each of ``groups``.
    """
    responses = [response for group in groups for response in group.responses]
    rewards: list[float] = []
    by_source: dict[str, list[float]] = {}
    for group in groups:
        scores = [grade.score for grade in group.grades if isinstance(grade, Graded)]
        rewards += scores
        if scores:
            by_source.setdefault(group.prompt.source, []).extend(scores)
    lengths = [len(response.tokens) for response in responses]
    return CollectionStats(
        reward_mean=_mean(rewards),
        reward_std=_std(rewards),
        reward_min=min(rewards, default=None),
        reward_max=max(rewards, default=None),
        solve_rate=_mean([float(reward >= MAX_REWARD) for reward in rewards]),
        reward_by_source={source: fmean(by_source[source]) for source in sorted(by_source)},
        response_length_mean=_mean(lengths),
        response_length_max=max(lengths, default=0),
        truncated_fraction=_mean([float(response.truncated) for response in responses]),
        ungraded_fraction=_mean([float(not isinstance(grade, Graded)) for group in groups for grade in group.grades]),
        lag_mean=_mean(lags),
        lag_max=max(lags, default=None),
        lag_histogram=dict(sorted(Counter(lags).items())),
        prompts=len(groups),
        responses=len(responses),
        response_tokens=sum(lengths),
    )


def eval_row(score: EvalScore) -> dict[str, Any]:
    """Return the row of one evaluation as JSON values; ``step`` is the policy version that was evaluated."""
    return {
        "kind": "eval",
        "step": score.version,
        "name": score.name,
        "accuracy": score.accuracy,
        "prompts": score.prompts,
        "samples": score.samples,
        "truncated_fraction": score.truncated_fraction,
        "response_length_mean": score.response_length_mean,
    }


def described() -> Iterator[tuple[str, str, Metric]]:
    """Yield (object of the row, name, metric) for every metric that a step row documents."""
    for section, kind in (("rollouts", CollectionStats), ("time", StepTiming)):
        for each in dataclasses.fields(kind):
            yield section, each.name, each.metadata["metric"]
    for name, each in LEARNER_METRICS.items():
        yield "learner", name, each


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    # Not statistics.pstdev: it sums exact fractions, which takes milliseconds for a large collection.
    if not values:
        return None
    mean = fmean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / len(values))


def _object(part: CollectionStats | StepTiming) -> dict[str, Any]:
    values = {each.name: getattr(part, each.name) for each in dataclasses.fields(part)}
    # JSON has string keys only; spelled out here so that a row equals what is read back from the file.
    return {
        name: {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
