"""``string_match`` and ``regex``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.rewards.text import RegexOptions, StringMatchOptions, verify_regex, verify_string_match
from grpo.types import Graded, Ungraded


@pytest.mark.parametrize(
    ("response", "truths", "options", "right"),
    [
        ("Paris", ("Paris",), {}, True),
        (" Paris\n", ("Paris",), {}, True),
        ("Paris", (" Paris ",), {}, True),
        ("Paris", ("Lyon", "Paris"), {}, True),
        ("paris", ("Paris",), {}, False),
        ("Paris.", ("Paris",), {}, False),
        ("", ("Paris",), {}, False),
        (" Paris", ("Paris",), {"strip": False}, False),
        ("STRASSE", ("straße",), {"ignore_case": True}, True),
        ("I say Paris!", ("Paris",), {"mode": "contains"}, True),
        ("I say PARIS!", ("Paris",), {"mode": "contains"}, False),
        ("I say PARIS!", ("Paris",), {"mode": "contains", "ignore_case": True}, True),
        ("Par is", ("Paris",), {"mode": "contains"}, False),
        ("x" * 1_000_000 + "y", ("y",), {"mode": "contains"}, True),
    ],
)
def test_string_match(response: str, truths: tuple[str, ...], options: dict[str, object], right: bool) -> None:
    grade = verify_string_match(response, truths, StringMatchOptions.model_validate(options))
    assert grade == Graded(float(right))


def test_a_blank_ground_truth_that_every_response_contains_is_ungraded() -> None:
    grade = verify_string_match("anything", (" ",), StringMatchOptions(mode="contains"))
    assert grade == Ungraded("ground truth is blank, which every response contains")


@pytest.mark.parametrize(
    ("response", "truths", "options", "right"),
    [
        ("the answer is 42", (r"\b42\b",), {}, True),
        ("the answer is 421", (r"\b42\b",), {}, False),
        ("b", ("a", "b"), {}, True),
        ("YES", ("(?i)yes",), {}, True),
        ("YES", ("yes",), {}, False),
        (" 42\n", (r"\d+",), {"mode": "fullmatch"}, True),
        ("42 x", (r"\d+",), {"mode": "fullmatch"}, False),
        ("4|2", ("4|2",), {"mode": "fullmatch"}, False),
        ("", ("x",), {}, False),
        ("a" * 1_000_000, ("ab",), {}, False),
    ],
)
def test_regex(response: str, truths: tuple[str, ...], options: dict[str, object], right: bool) -> None:
    assert verify_regex(response, truths, RegexOptions.model_validate(options)) == Graded(float(right))


def test_a_pattern_that_does_not_compile_leaves_the_response_ungraded() -> None:
    assert verify_regex("x", ("(",), RegexOptions()) == Ungraded(
        "ground truth is not a regular expression: missing ), unterminated subpattern at position 0"
    )
    assert isinstance(verify_regex("x", ("a{99999999999}",), RegexOptions()), Ungraded)


@given(st.text(), st.lists(st.text(max_size=8), min_size=1, max_size=3), st.sampled_from(["exact", "contains"]))
def test_no_text_makes_string_match_raise(response: str, truths: list[str], mode: str) -> None:
    options = StringMatchOptions.model_validate({"mode": mode})
    assert isinstance(verify_string_match(response, tuple(truths), options), Graded | Ungraded)


@given(st.text(), st.text(alphabet="ab()[]{}?^$|\\.+1,", max_size=6), st.sampled_from(["search", "fullmatch"]))
def test_no_text_and_no_pattern_makes_regex_raise(response: str, pattern: str, mode: str) -> None:
    options = RegexOptions.model_validate({"mode": mode})
    assert isinstance(verify_regex(response, (pattern,), options), Graded | Ungraded)
