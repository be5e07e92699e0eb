"""What a row of metrics.jsonl holds."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obs_examples import make_group, make_response, make_row, make_score, two_groups

from grpo.obs.rows import CollectionStats, Metric, StepTiming, collection_stats, described, eval_row
from grpo.types import FinishReason, Graded, Group, StepMetrics, Ungraded


def test_a_step_row_has_these_keys_in_this_order_and_nothing_of_the_clock_outside_time() -> None:
    assert json.dumps(make_row().as_json(), indent=1) == json.dumps(
        {
            "kind": "step",
            "step": 3,
            "collection": 3,
            "rollouts": {
                "reward_mean": 0.4,
                "reward_std": 0.58309518948453,
                "reward_min": -0.5,
                "reward_max": 1.0,
                "solve_rate": 0.4,
                "reward_by_source": {"addition": 0.5, "multiplication": 1.0 / 3.0},
                "response_length_mean": 2.0,
                "response_length_max": 4,
                "truncated_fraction": 1 / 6,
                "ungraded_fraction": 1 / 6,
                "lag_mean": 0.5,
                "lag_max": 1,
                "lag_histogram": {"0": 1, "1": 1},
                "prompts": 2,
                "responses": 6,
                "response_tokens": 12,
            },
            "learner": {
                "loss": 0.0125,
                "policy_loss": 0.01,
                "entropy": 1.25,
                "kl": 0.0,
                "grad_norm": 0.75,
                "learning_rate": 0.001,
                "clip_low_fraction": 0.01,
                "clip_high_fraction": 0.02,
                "tis_mean": 1.0,
                "tis_max": 1.5,
                "tis_capped_fraction": 0.0,
                "logprob_diff_mean": 1e-06,
                "logprob_diff_max": 2e-05,
                "samples": 32,
                "loss_tokens": 100,
                "tokens": 300,
                "micro_batches": 2,
            },
            "outcomes": {"trained": 8, "zero_std": 4, "truncated": 0, "stale": 0, "ungraded": 0, "failed": 0},
            "groups": {"admitted": 24, "in_flight": 2, "buffered": 1},
            "time": {
                "elapsed_s": 30.0,
                "interval_s": 10.0,
                "step_s": 4.0,
                "wait_s": 5.5,
                "publish_s": 0.25,
                "generated_tokens_per_s": 1234.5,
                "trained_tokens_per_s": 75.0,
            },
        },
        indent=1,
    )


def test_a_row_is_the_same_after_a_round_trip_through_json() -> None:
    assert json.loads(json.dumps(make_row().as_json())) == make_row().as_json()


def test_an_eval_row_names_the_policy_version_as_its_step() -> None:
    assert json.dumps(eval_row(make_score(5, 0.75))) == (
        '{"kind": "eval", "step": 5, "name": "addition", "accuracy": 0.75, "prompts": 16, "samples": 1, '
        '"truncated_fraction": 0.0625, "response_length_mean": 3.5}'
    )


def test_an_outcome_that_nobody_documented_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown outcomes \['lost'\]"):
        make_row(outcomes={"trained": 1, "lost": 1})


def test_of_no_groups_there_is_nothing_to_say() -> None:
    assert collection_stats([], []) == CollectionStats(
        **dict.fromkeys(("reward_mean", "reward_std", "reward_min", "reward_max", "solve_rate")),
        reward_by_source={},
        response_length_mean=None,
        response_length_max=0,
        truncated_fraction=None,
        ungraded_fraction=None,
        lag_mean=None,
        lag_max=None,
        lag_histogram={},
        prompts=0,
        responses=0,
        response_tokens=0,
    )


def test_a_source_of_which_nothing_was_graded_has_no_mean_reward() -> None:
    stats = collection_stats([make_group(0, [make_response("a", [0])], [Ungraded("down")]), two_groups()[1]], [0, 0])
    assert stats.reward_by_source == {"multiplication": 1.0 / 3.0}
    assert (stats.ungraded_fraction, stats.responses) == (0.25, 4)


_grades = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 1.5]).map(Graded), st.floats(-10, 10).map(Graded), st.just(Ungraded("x"))
)
_answers = st.tuples(_grades, st.integers(0, 9), st.sampled_from(list(FinishReason)))


@st.composite
def _groups(draw: st.DrawFn) -> list[Group]:
    groups = []
    for group_id in range(draw(st.integers(1, 5))):
        answers = draw(st.lists(_answers, min_size=1, max_size=4))
        responses = [
            make_response(f"{group_id}.{index}", [0] * length, finish=finish)
            for index, (_, length, finish) in enumerate(answers)
        ]
        source = draw(st.sampled_from(["addition", "multiplication"]))
        groups.append(make_group(group_id, responses, [grade for grade, _, _ in answers], source=source))
    return groups


@given(_groups(), st.lists(st.integers(0, 6), max_size=8))
def test_statistics_agree_with_a_plain_restatement(groups: list[Group], lags: list[int]) -> None:
    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    pairs = [(group, *pair) for group in groups for pair in zip(group.responses, group.grades, strict=True)]
    rewards = [grade.score for _, _, grade in pairs if isinstance(grade, Graded)]
    average = mean(rewards)
    spread = None if average is None else mean([(reward - average) ** 2 for reward in rewards])
    sources = {group.prompt.source for group, _, grade in pairs if isinstance(grade, Graded)}
    expected = {
        "reward_mean": average,
        "reward_std": None if spread is None else spread**0.5,
        "reward_min": min(rewards) if rewards else None,
        "reward_max": max(rewards) if rewards else None,
        "solve_rate": mean([1.0 if reward >= 1 else 0.0 for reward in rewards]),
        "reward_by_source": {
            source: mean([g.score for group, _, g in pairs if group.prompt.source == source and isinstance(g, Graded)])
            for source in sources
        },
        "response_length_mean": mean([float(len(response.tokens)) for _, response, _ in pairs]),
        "response_length_max": max(len(response.tokens) for _, response, _ in pairs),
        "truncated_fraction": mean([float(response.finish == "length") for _, response, _ in pairs]),
        "ungraded_fraction": mean([float(isinstance(grade, Ungraded)) for _, _, grade in pairs]),
        "lag_mean": mean([float(lag) for lag in lags]),
        "lag_max": max(lags) if lags else None,
        "lag_histogram": Counter(lags),
        "prompts": len(groups),
        "responses": len(pairs),
        "response_tokens": sum(len(response.tokens) for _, response, _ in pairs),
    }
    actual = dataclasses.asdict(collection_stats(groups, lags))
    assert actual == {
        name: pytest.approx(value, rel=1e-12, abs=1e-12) if value is not None and value != {} else value
        for name, value in expected.items()
    }
    assert list(actual["lag_histogram"]) == sorted(set(lags))


def test_every_metric_of_a_row_is_documented_and_every_documented_metric_is_in_a_row() -> None:
    row = make_row().as_json()
    in_row = {(section, name) for section in ("rollouts", "learner", "time") for name in row[section]}
    documented = list(described())
    assert {(section, name) for section, name, _ in documented} == in_row
    assert len(documented) == len(in_row)
    for section, name, metric in documented:
        assert isinstance(metric, Metric), (section, name)
        assert all((metric.unit, metric.meaning, metric.bad)), (section, name)


def test_a_row_leaves_out_nothing_that_the_learner_measured() -> None:
    measured = {each.name for each in dataclasses.fields(StepMetrics)}
    # The version is the row's step, and the seconds are in its time.
    assert measured - {"version", "seconds"} == set(make_row().as_json()["learner"])
    assert "step_s" in {each.name for each in dataclasses.fields(StepTiming)}
