"""Verifiers that compare numbers: ``integer`` and ``gsm8k``.

Numbers are compared exactly, as canonical decimal strings: no float rounding, no limit on the number of digits, and
linear time (``int`` refuses more than 4300 digits, and is quadratic).
"""

from __future__ import annotations

import re
from collections import deque

from grpo.rewards.verifier import Example, VerifierInfo, VerifierOptions
from grpo.types import Grade, Graded, Ungraded

MINUS = "-\N{MINUS SIGN}"
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+"

_INTEGER = re.compile(rf"([{MINUS}+])?({_GROUPED}|[0-9]+)")

# A number in running text. Digits glued to a letter, to ^ or to _ are units, powers or names (m2, cm^2, H2O, x_1), and
# a sign after a digit, a letter or a closing bracket is a subtraction or a hyphen (10-3).
_NUMBER = re.compile(
    rf"""
    (?P<sign> (?<![0-9A-Za-z)\]}}%^_]) (?<![\^_]\{{) [{MINUS}+] )?
    (?: \\?[$€£¥₹] )?
    (?<![0-9A-Za-z^_]) (?<![\^_]\{{) (?<![\^_][{MINUS}+]) (?<![\^_]\{{[{MINUS}+])
    (?: (?P<whole> {_GROUPED}(?![0-9]) | [0-9]+ ) (?: \.(?P<fraction>[0-9]+) )?
      | \.(?P<bare>[0-9]+) )
    (?: /(?P<denominator>[0-9]+) | [eE](?P<exponent_sign>[{MINUS}+]?)(?P<exponent>[0-9]+) )?
    """,
    re.VERBOSE,
)


def canonical(sign: str, whole: str, fraction: str = "") -> str:
    """Return the one spelling of a decimal number: no separators, no needless zeros, zero without a sign.

    Equal numbers, and only those, have equal canonical spellings.
    """
    whole = whole.replace(",", "").lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    text = f"{whole}.{fraction}" if fraction else whole
    return f"-{text}" if sign and sign in MINUS and text != "0" else text


def read_integer(text: str) -> str | None:
    """Return the canonical spelling of ``text`` if, stripped of white space, it is one integer, else None."""
    match = _INTEGER.fullmatch(text.strip())
    return canonical(match[1] or "", match[2]) if match else None


def last_number(text: str) -> str | None:
    """Return the canonical spelling of the last number in ``text``, or None if there is none.

    A fraction ``a/b`` and a number with an exponent ``1e3`` are each one number and are neither evaluated nor reduced:
    they equal only their like.
    """
    found = deque(_NUMBER.finditer(text), maxlen=1)
    if not found:
        return None
    match = found[0]
    value = canonical(match["sign"] or "", match["whole"] or "", match["fraction"] or match["bare"] or "")
    if match["denominator"]:
        return f"{value}/{canonical('', match['denominator'])}"
    return f"{value}e{canonical(match['exponent_sign'], match['exponent'])}" if match["exponent"] else value


def verify_integer(response: str, ground_truth: tuple[str, ...], options: VerifierOptions) -> Grade:
    """Score 1 if the whole response, stripped of white space, is one integer that equals the ground truth, else 0."""
    problem = integer_problem(ground_truth, options)
    if problem:
        return Ungraded(problem)
    return Graded(float(read_integer(response) in {read_integer(truth) for truth in ground_truth}))


def integer_problem(ground_truth: tuple[str, ...], options: VerifierOptions) -> str | None:
    """Return what is wrong with the ground truth of an ``integer`` row, or None."""
    return next((f"ground truth {_short(t)} is not an integer" for t in ground_truth if read_integer(t) is None), None)


def verify_gsm8k(response: str, ground_truth: tuple[str, ...], options: VerifierOptions) -> Grade:
    """Score 1 if the last number of the response equals the last number of the ground truth, else 0."""
    problem = gsm8k_problem(ground_truth, options)
    if problem:
        return Ungraded(problem)
    return Graded(float(last_number(response) in {last_number(truth) for truth in ground_truth}))


def gsm8k_problem(ground_truth: tuple[str, ...], options: VerifierOptions) -> str | None:
    """Return what is wrong with the ground truth of a ``gsm8k`` row, or None."""
    return next((f"ground truth {_short(t)} holds no number" for t in ground_truth if last_number(t) is None), None)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


INTEGER = VerifierInfo(
    name="integer",
    verify=verify_integer,
    options=VerifierOptions,
    problem=integer_problem,
    description=(
        "The whole response, stripped of white space, must be one integer equal to the ground truth. A sign (+, - or "
        "the Unicode minus) and commas between groups of three digits are allowed; leading zeros do not matter."
    ),
    examples=(
        Example("46", ("46",), 1.0),
        Example(" 1,234\n", ("1234",), 1.0),
        Example("\N{MINUS SIGN}7", ("-7",), 1.0),
        Example("The answer is 46", ("46",), 0.0),
        Example("46.0", ("46",), 0.0),
    ),
)

GSM8K = VerifierInfo(
    name="gsm8k",
    verify=verify_gsm8k,
    options=VerifierOptions,
    problem=gsm8k_problem,
    description=(
        "The last number of the response must equal the last number of the ground truth, as exact decimals. A sign, a "
        "currency symbol before the digits and commas between groups of three digits belong to a number; digits glued "
        "to a letter, ^ or _ (m2, cm^2, x_1) are no number; a fraction a/b or an exponent 1e3 is one number and is not "
        "evaluated; decimal commas and non-ASCII digits are not read."
    ),
    examples=(
        Example("5 + 37 = 42. The answer is 42.", ("#### 42",), 1.0),
        Example("She pays $1,250.00.", ("1250",), 1.0),
        Example("The garden measures 42 m2", ("42",), 1.0),
        Example("It is 42, I am 90% sure", ("42",), 0.0),
    ),
)
