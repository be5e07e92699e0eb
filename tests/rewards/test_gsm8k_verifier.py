"""``gsm8k``: the last number of the response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.rewards.numbers import last_number, verify_gsm8k
from grpo.rewards.verifier import VerifierOptions
from grpo.types import Graded, Ungraded

# The last number of each text, worked out by hand from the rule in the registry.
LAST = [
    ("42", "42"),
    ("The answer is 42", "42"),
    ("The answer is 42.", "42"),
    ("The answer is 42. I hope this helps!", "42"),
    ("It was 7, so the answer is 42", "42"),
    ("42, because 6 * 7 makes it so, or 7 * 6", "6"),  # an answer only mentioned on the way
    ("#### 42", "42"),
    ("She sold 48/2 = <<48/2=24>>24 clips.\n#### 72", "72"),
    ("\\boxed{42}", "42"),
    ("**42**", "42"),
    ("$42$", "42"),
    ("(42)", "42"),
    ("x=42", "42"),
    ("Answer:42", "42"),
    # signs
    ("-5", "-5"),
    ("The change is -5.", "-5"),
    ("\u22125 degrees", "-5"),
    ("+5", "5"),
    ("-0", "0"),
    ("x=-5", "-5"),
    ("(-5)", "-5"),
    ("10-3", "3"),  # a subtraction
    ("10 - 3", "3"),
    ("10 -3", "-3"),
    ("x-3", "3"),
    ("(2)-3", "3"),
    ("pages 5\u20137", "7"),  # a range with an en dash
    ("- 5", "5"),  # a list item
    # thousands separators
    ("1,234", "1234"),
    ("$1,234,567.", "1234567"),
    ("12,345.60", "12345.6"),
    ("1,23", "23"),
    ("12,3456", "3456"),
    ("1234,567", "567"),
    ("1 234", "234"),
    ("3, 4,567", "4567"),
    ("1,234,", "1234"),
    # decimals
    ("42.0", "42"),
    ("42.50", "42.5"),
    ("042", "42"),
    (".5", "0.5"),
    ("-.5", "-0.5"),
    ("0.10", "0.1"),
    ("5.", "5"),
    ("3,14", "14"),  # a decimal comma is not read
    # money, percent, units
    ("$18", "18"),
    ("-$18", "-18"),
    ("$-18", "-18"),
    ("\\$18", "18"),
    ("\u20ac18", "18"),
    ("USD 18", "18"),
    ("10-$18", "18"),
    ("18%", "18"),
    ("18 %", "18"),
    ("18km", "18"),
    ("18 km/h", "18"),
    ("18 m2", "18"),
    ("18 cm^2", "18"),
    ("18 cm^{2}", "18"),
    ("18 s^-2", "18"),
    ("18 s^{-2}", "18"),
    ("18 m\u00b2", "18"),
    ("18 litres of H2O", "18"),
    ("x_1 = 18 and so is x_2", "18"),
    ("18th", "18"),
    # fractions and exponents are numbers of their own
    ("3/4", "3/4"),
    ("6/8", "6/8"),
    ("12/3 = 4", "4"),
    ("1e3", "1e3"),
    ("1.0E-3", "1e-3"),
    # other scripts
    ("\u7b54\u6848\u662f42", "42"),
    ("it is 42 \uff14\uff13", "42"),  # full-width digits are not read
    # none
    ("", None),
    ("no number", None),
    ("forty-two", None),
    ("H2O", None),
    ("-$.,", None),
]


def score(response: str, *truths: str) -> object:
    return verify_gsm8k(response, truths, VerifierOptions())


@pytest.mark.parametrize(("text", "number"), LAST)
def test_the_last_number_is_read_as_the_rule_says(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("response", "truth", "right"),
    [
        ("so 42", "42", True),
        ("so 42.00", "42", True),
        ("so $1,000", "1000", True),
        ("so 1000", "She had 1,000 of them.\n#### 1,000", True),  # a data set's whole solution as ground truth
        ("so -42", "42", False),
        ("so 42", "-42", False),
        ("so 42 or 43", "42", False),
        ("so 4/2", "2", False),
        ("so 4/2", "4/2", True),
        ("so 1e3", "1000", False),
        ("so 0.3", "0.30000000000000004", False),
        ("", "42", False),
        ("forty-two", "42", False),
    ],
)
def test_the_last_numbers_are_compared_exactly(response: str, truth: str, right: bool) -> None:
    assert score(response, truth) == Graded(float(right))


def test_a_ground_truth_without_a_number_leaves_the_response_ungraded() -> None:
    assert score("42", "none") == Ungraded("ground truth 'none' holds no number")


@pytest.mark.parametrize(
    ("piece", "last"),
    [
        ("1", "1" * 1_000_000),
        ("x", None),
        ("$", None),
        ("-", None),
        ("-$", None),
        ("1,", "1"),
        ("123,", "123" * 250_000),
        ("1234,", "1234"),
        (",123", "123" * 250_000),
        ("1.", "1.1"),
        ("1/", "1/1"),
        ("1e", "1e1"),
        ("1e-", "1"),
        (" 12", "12"),
        ("\\boxed{12} ", "12"),
    ],
)
def test_a_million_characters_are_read_in_linear_time(piece: str, last: str | None) -> None:
    # A pattern that is quadratic in any of these takes hours: that the test ends is the proof.
    assert last_number(piece * (1_000_000 // len(piece))) == last


@given(st.integers(), st.integers(0, 10**6), st.text(alphabet="abc xyz.,!?\n"))
def test_a_number_is_found_whatever_words_stand_around_it(whole: int, millionths: int, words: str) -> None:
    fraction = f"{millionths:06d}"
    sign = "-" if whole < 0 else ""
    value = f"{sign}{abs(whole)}.{fraction}".rstrip("0").rstrip(".")
    expected = "0" if value == "-0" else value
    assert last_number(f"1 {words} {whole:,}.{fraction} {words}") == expected


@given(st.text(), st.text())
def test_no_text_makes_it_raise(response: str, truth: str) -> None:
    assert isinstance(score(response, truth), Graded | Ungraded)


@given(st.text(alphabet="0123456789,.+-/$eE^_{} "), st.text(alphabet="0123456789,."))
def test_no_arrangement_of_number_characters_makes_it_raise(response: str, truth: str) -> None:
    assert isinstance(score(response, truth), Graded | Ungraded)
