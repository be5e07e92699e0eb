"""``integer``: the whole response is one integer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.rewards.numbers import read_integer, verify_integer
from grpo.rewards.verifier import VerifierOptions
from grpo.types import Graded, Ungraded

RIGHT = [
    # response, ground truth
    ("46", "46"),
    (" 46", "46"),
    ("46\n", "46"),
    ("\t46 \r\n", "46"),
    ("\u00a046\u3000", "46"),  # Unicode white space
    ("+46", "46"),
    ("-46", "-46"),
    ("\u221246", "-46"),  # the Unicode minus
    ("-46", "\u221246"),
    ("0", "0"),
    ("-0", "0"),
    ("+0", "0"),
    ("00", "0"),
    ("007", "7"),
    ("-007", "-7"),
    ("1,234", "1234"),
    ("1234", "1,234"),
    ("-1,234,567", "-1234567"),
    ("012,345", "12345"),
    ("46", " 46 "),
    ("123456789012345678901234567890", "123456789012345678901234567890"),
]

WRONG = [
    ("47", "46"),
    ("-46", "46"),
    ("46", "-46"),
    ("", "46"),
    ("   ", "46"),
    ("46.", "46"),
    ("46.0", "46"),
    ("4 6", "46"),
    ("46 apples", "46"),
    ("$46", "46"),
    ("46%", "46"),
    ("the answer is 46", "46"),
    ("46 is the answer", "46"),
    ("46\n46", "46"),
    ("46=46", "46"),
    ("- 46", "-46"),
    ("--46", "46"),
    ("+-46", "-46"),
    ("46-", "-46"),
    ("\u201346", "-46"),  # an en dash is no minus
    ("12,34", "1234"),
    ("1,2345", "12345"),
    ("1234,567", "1234567"),
    (",123", "123"),
    ("1,234,", "1234"),
    ("1 234", "1234"),
    ("1_234", "1234"),
    ("1e3", "1000"),
    ("0x2e", "46"),
    ("forty-six", "46"),
    ("\uff14\uff16", "46"),  # full-width digits
    ("\u0664\u0666", "46"),  # Arabic-Indic digits
    ("4\u00b2", "42"),  # superscript two
    ("46\x00", "46"),
    ("046", "0460"),
]


def score(response: str, *truths: str) -> object:
    return verify_integer(response, truths, VerifierOptions())


@pytest.mark.parametrize(("response", "truth"), RIGHT)
def test_an_integer_equal_to_the_ground_truth_is_right(response: str, truth: str) -> None:
    assert score(response, truth) == Graded(1.0)


@pytest.mark.parametrize(("response", "truth"), WRONG)
def test_anything_else_is_wrong(response: str, truth: str) -> None:
    assert score(response, truth) == Graded(0.0)


def test_any_one_of_several_ground_truths_is_right() -> None:
    assert [score(r, "3", "-3") for r in ("3", "-3", "4")] == [Graded(1.0), Graded(1.0), Graded(0.0)]


def test_a_ground_truth_that_is_no_integer_leaves_the_response_ungraded() -> None:
    assert score("46", "46.5") == Ungraded("ground truth '46.5' is not an integer")


def test_a_million_digits_are_compared_exactly() -> None:
    digits = "7" * 1_000_000
    assert score(digits, digits) == Graded(1.0)
    assert score(digits[:-1] + "8", digits) == Graded(0.0)
    assert score("1" + ",234" * 250_000, "1" + "234" * 250_000) == Graded(1.0)
    assert score(" " * 1_000_000, "7") == Graded(0.0)
    assert score("1,234," * 200_000, "7") == Graded(0.0)


@given(st.integers(), st.integers(), st.booleans(), st.integers(0, 3))
def test_integers_are_compared_by_value(a: int, b: int, separators: bool, zeros: int) -> None:
    spelling = f"{a:,}" if separators else ("-" if a < 0 else "") + "0" * zeros + str(abs(a))
    assert score(spelling, str(b)) == Graded(float(a == b))
    assert read_integer(spelling) == str(a)


@given(st.text(), st.text())
def test_no_text_makes_it_raise(response: str, truth: str) -> None:
    assert isinstance(score(response, truth), Graded | Ungraded)


@given(st.text(alphabet="0123456789,+-\u2212. \n"))
def test_it_accepts_what_python_reads_as_an_integer_with_separators_in_place(text: str) -> None:
    plain = text.strip().replace("\u2212", "-")
    try:
        value = int(plain.replace(",", ""))
    except ValueError:
        assert read_integer(text) is None
        return
    groups = plain.lstrip("+-").split(",")
    in_place = len(groups) == 1 or (1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:]))
    signs = len(plain) - len(plain.lstrip("+-"))
    assert read_integer(text) == (
        str(value) if in_place and signs <= 1 and plain[signs:].strip() == plain[signs:] else None
    )
