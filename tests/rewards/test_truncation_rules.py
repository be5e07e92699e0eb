"""The counting rules and the group filter."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.errors import RunFailed
from grpo.learner.advantage import advantages
from grpo.plan.job import FilterSpec, ObjectiveSpec
from grpo.rewards.samples import train_samples
from grpo.rewards.truncation import Counted, Outcome, counting, judge
from grpo.types import FinishReason, Grade, Graded, Group, PolicySpan, Prompt, Response, TrainSample, Ungraded

PROMPT = Prompt("addition/12+34", (1, 2, 3), "12+34=", "46", "integer", "addition")
FINISH = {"s": FinishReason.STOP, "t": FinishReason.LENGTH, "a": FinishReason.ABORT}


def group_of(spelling: str) -> Group:
    """Build a group: ``s1`` stopped with reward 1, ``t0.5`` truncated with reward 0.5, ``s?`` stopped and ungraded."""
    responses: list[Response] = []
    grades: list[Grade] = []
    for index, item in enumerate(spelling.split()):
        tokens = tuple(range(10, 12 + index))
        logprobs = tuple(-0.25 * (position + 1) for position in range(len(tokens)))
        responses.append(Response(f"r{index}", tokens, logprobs, (PolicySpan(0, 4),), FINISH[item[0]]))
        grades.append(Ungraded("service down") if item[1:] == "?" else Graded(float(item[1:])))
    return Group(7, 2, PROMPT, tuple(responses), tuple(grades))


def filter_spec(zero_std: bool = True, exclude_truncated: bool = True, ungraded: str = "exclude") -> FilterSpec:
    return FilterSpec.model_validate(
        {
            "zero_std": zero_std,
            "exclude_truncated": exclude_truncated,
            "ungraded": ungraded,
            "max_attempts": 3,
            "starvation_groups": 100,
        }
    )


OBJECTIVE = ObjectiveSpec(
    advantage_std=False,
    policy_loss="ppo",
    denominator="token",
    clip_low=0.2,
    clip_high=0.28,
    kl_coef=0.0,
    entropy_coef=0.0,
    correction="tis",
    tis_cap=2.0,
    icepop_low=0.5,
    icepop_high=2.0,
)


def test_a_truncated_response_leaves_the_baseline_only_when_excluded_and_keeps_its_raw_reward() -> None:
    group = group_of("s1 t0.5 s0")
    assert counting(group, exclude_truncated=True, ungraded="exclude") == Counted((1.0, 0.5, 0.0), (True, False, True))
    assert counting(group, exclude_truncated=False, ungraded="exclude") == Counted((1.0, 0.5, 0.0), (True, True, True))


def test_an_ungraded_response_is_left_out_or_zero_as_the_policy_says() -> None:
    group = group_of("s1 s? t?")
    assert counting(group, exclude_truncated=True, ungraded="exclude") == Counted(
        (1.0, None, None), (True, False, False)
    )
    assert counting(group, exclude_truncated=True, ungraded="zero") == Counted((1.0, 0.0, 0.0), (True, True, False))
    assert counting(group, exclude_truncated=False, ungraded="zero") == Counted((1.0, 0.0, 0.0), (True, True, True))


@pytest.mark.parametrize("spelling", ["s1 s?", "s1 t?"])
def test_the_policy_raise_fails_the_run_naming_prompt_and_reason(spelling: str) -> None:
    message = re.escape(
        "response 1 of prompt 'addition/12+34' could not be graded: service down. "
        "Repair the verifier, or choose another policy than 'raise' for ungraded responses."
    )
    with pytest.raises(RunFailed, match=f"^{message}$"):
        counting(group_of(spelling), exclude_truncated=True, ungraded="raise")
    with pytest.raises(RunFailed, match=f"^{message}$"):
        judge(group_of(spelling), filter_spec(ungraded="raise"))


def test_an_aborted_response_never_counts() -> None:
    assert counting(group_of("s1 a0 a?"), exclude_truncated=False, ungraded="zero") == Counted(
        (1.0, 0.0, 0.0), (True, False, False)
    )


def test_the_reward_that_all_counting_responses_share_says_all_right_or_all_wrong() -> None:
    def uniform(spelling: str) -> float | None:
        return counting(group_of(spelling), exclude_truncated=True, ungraded="exclude").uniform_reward

    assert [uniform(s) for s in ("s1 s1 t0", "s0 s0", "s0.5 s0.5 s?", "s0 s1", "t1 t1")] == [1.0, 0.0, 0.5, None, None]


@pytest.mark.parametrize(
    ("spelling", "outcome"),
    [
        ("s1 s0", Outcome.TRAIN),
        ("s1 s0 t0 t0", Outcome.TRAIN),
        ("s1 s0 s? t?", Outcome.TRAIN),
        ("s1 s1", Outcome.ZERO_STD),
        ("s0 s0 s0", Outcome.ZERO_STD),
        ("s0.5 s0.5", Outcome.ZERO_STD),
        ("s0 s-0", Outcome.ZERO_STD),
        ("s0.3 s0.30000000000000004", Outcome.TRAIN),  # the comparison is exact
        ("s1 s1 t1", Outcome.ZERO_STD),  # equal with and without the truncated one
        ("s1 s1 t0", Outcome.TRUNCATED),  # no variation because of exclusion
        ("s1 t0 t0", Outcome.TRUNCATED),  # fewer than two finished
        ("s1 t1 t1", Outcome.TRUNCATED),
        ("t1 t0", Outcome.TRUNCATED),
        ("s? t1", Outcome.TRUNCATED),
        ("s1 s?", Outcome.UNGRADED),
        ("s? s?", Outcome.UNGRADED),
        ("s1 s? t0", Outcome.UNGRADED),
        ("s1 s1 s?", Outcome.ZERO_STD),  # the verdict rests on what was graded
        ("s1", Outcome.ZERO_STD),  # one response cannot vary
        ("s1 a0", Outcome.TRUNCATED),
    ],
)
def test_with_the_filter_on_a_group_is_judged_so(spelling: str, outcome: Outcome) -> None:
    assert judge(group_of(spelling), filter_spec()) is outcome


@pytest.mark.parametrize(
    ("spelling", "outcome"),
    [
        ("s1 t0", Outcome.TRAIN),
        ("t1 t0", Outcome.TRAIN),
        ("t1 t1", Outcome.ZERO_STD),
        ("s1 t1 t1", Outcome.ZERO_STD),
        ("t1 s?", Outcome.UNGRADED),
    ],
)
def test_without_exclusion_a_truncated_response_is_like_any_other(spelling: str, outcome: Outcome) -> None:
    assert judge(group_of(spelling), filter_spec(exclude_truncated=False)) is outcome


@pytest.mark.parametrize(
    ("spelling", "outcome"),
    [
        ("s0 s0", Outcome.TRAIN),
        ("s1", Outcome.TRAIN),
        ("t0 t0", Outcome.TRAIN),
        ("s1 s?", Outcome.TRAIN),
        ("s? t0", Outcome.UNGRADED),  # nothing counts, and the finished response was never judged
        ("s? s?", Outcome.UNGRADED),
    ],
)
def test_with_the_filter_off_only_a_group_that_was_never_judged_is_dropped(spelling: str, outcome: Outcome) -> None:
    assert judge(group_of(spelling), filter_spec(zero_std=False)) is outcome


def test_with_ungraded_as_zero_no_group_is_ungraded() -> None:
    spec = filter_spec(ungraded="zero")
    assert [judge(group_of(s), spec) for s in ("s1 s?", "s? s?", "s0 s?")] == [
        Outcome.TRAIN,
        Outcome.ZERO_STD,
        Outcome.ZERO_STD,
    ]


def test_samples_carry_tokens_log_probs_and_the_advantage_over_the_counting_responses() -> None:
    assert train_samples(group_of("s1 t0.5 s0"), filter_spec(), OBJECTIVE) == (
        TrainSample("7.2.0", (1, 2, 3, 10, 11), 3, (-0.25, -0.5), 0.5, True),
        TrainSample("7.2.1", (1, 2, 3, 10, 11, 12), 3, (-0.25, -0.5, -0.75), 0.0, False),
        TrainSample("7.2.2", (1, 2, 3, 10, 11, 12, 13), 3, (-0.25, -0.5, -0.75, -1.0), -0.5, True),
    )


def test_samples_without_exclusion_use_every_reward_and_divide_by_the_std_when_asked() -> None:
    objective = OBJECTIVE.model_copy(update={"advantage_std": True})
    samples = train_samples(group_of("s1 t0.5 s0"), filter_spec(exclude_truncated=False), objective)
    expected = advantages((1.0, 0.5, 0.0), (True, True, True), std=True)
    assert [(sample.advantage, sample.counts) for sample in samples] == [(value, True) for value in expected]
    assert expected[0] == pytest.approx(0.5 / (0.5 + 1e-6))


# -- the rules against a plain restatement ---------------------------------------------------------------------------

ITEMS = st.lists(st.sampled_from(["s0", "s1", "s0.5", "s?", "t0", "t1", "t?"]), min_size=1, max_size=6)


def expected_outcome(items: Sequence[str], zero_std: bool, exclude: bool, ungraded: str) -> Outcome:
    """The design's sentences, one by one."""
    finished = [item for item in items if item[0] == "s" or not exclude]
    if ungraded == "zero":
        finished = [item.replace("?", "0") for item in finished]
    values = {item[1:] for item in finished if item[1:] != "?"}
    graded = [item for item in finished if item[1:] != "?"]
    if not zero_std:
        return Outcome.UNGRADED if finished and not graded else Outcome.TRAIN
    if len(values) > 1:
        return Outcome.TRAIN
    if len(finished) >= 2 and len(graded) < 2:
        return Outcome.UNGRADED
    if exclude and any(item[0] == "t" for item in items):
        everything = {item[1:].replace("?", "0" if ungraded == "zero" else "?") for item in items} - {"?"}
        if len(finished) < 2 or len(everything) > 1:
            return Outcome.TRUNCATED
    return Outcome.ZERO_STD


@given(ITEMS, st.booleans(), st.booleans(), st.sampled_from(["zero", "exclude"]))
def test_every_group_is_judged_as_the_design_says(items: list[str], zero: bool, exclude: bool, ungraded: str) -> None:
    outcome = judge(group_of(" ".join(items)), filter_spec(zero, exclude, ungraded))
    assert outcome is expected_outcome(items, zero, exclude, ungraded)


@given(ITEMS, st.booleans(), st.sampled_from(["zero", "exclude"]))
def test_a_response_counts_exactly_when_it_is_finished_and_graded(items: list[str], exclude: bool, policy: str) -> None:
    group = group_of(" ".join(items))
    samples = train_samples(group, filter_spec(True, exclude, policy), OBJECTIVE)
    counts = [(item[0] == "s" or not exclude) and (item[1:] != "?" or policy == "zero") for item in items]
    rewards = [0.0 if item[1:] == "?" else float(item[1:]) for item in items]
    counting_rewards = [reward for reward, count in zip(rewards, counts, strict=True) if count]
    mean = sum(counting_rewards) / len(counting_rewards) if counting_rewards else 0.0
    assert [sample.counts for sample in samples] == counts
    assert [sample.advantage for sample in samples] == pytest.approx(
        [reward - mean if count else 0.0 for reward, count in zip(rewards, counts, strict=True)], abs=1e-12
    )
    assert group.rewards == tuple(None if item[1:] == "?" else float(item[1:]) for item in items)


@given(ITEMS, st.booleans(), st.sampled_from(["zero", "exclude"]))
def test_a_trained_group_has_an_advantage_to_learn_from(items: list[str], exclude: bool, policy: str) -> None:
    group, spec = group_of(" ".join(items)), filter_spec(True, exclude, policy)
    trains = judge(group, spec) is Outcome.TRAIN
    assert trains == any(sample.advantage != 0 for sample in train_samples(group, spec, OBJECTIVE))
