"""Verifiers that compare text: ``string_match`` and ``regex``."""

from __future__ import annotations

import re
import warnings
from typing import Literal

from grpo.rewards.verifier import Example, VerifierInfo, VerifierOptions
from grpo.types import Grade, Graded, Ungraded


class StringMatchOptions(VerifierOptions):
    """Options of ``string_match``.

    Attributes:
        mode: ``exact``: the response is the ground truth; ``contains``: the ground truth occurs in the response.
        ignore_case: compare Unicode case-folded text.
        strip: white space around response and ground truth does not matter.
    """

    mode: Literal["exact", "contains"] = "exact"
    ignore_case: bool = False
    strip: bool = True

    def normalize(self, text: str) -> str:
        """Return ``text`` as it is compared."""
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text


class RegexOptions(VerifierOptions):
    """Options of ``regex``.

    Attributes:
        mode: ``search``: the pattern matches somewhere in the response; ``fullmatch``: it matches the whole, stripped.
    """

    mode: Literal["search", "fullmatch"] = "search"


def verify_string_match(response: str, ground_truth: tuple[str, ...], options: StringMatchOptions) -> Grade:
    """Score 1 if the response is (or contains) one of the ground truths, else 0."""
    problem = string_match_problem(ground_truth, options)
    if problem:
        return Ungraded(problem)
    given, wanted = options.normalize(response), [options.normalize(truth) for truth in ground_truth]
    return Graded(float(given in wanted if options.mode == "exact" else any(text in given for text in wanted)))


def string_match_problem(ground_truth: tuple[str, ...], options: StringMatchOptions) -> str | None:
    """Return what is wrong with the ground truth of a ``string_match`` row, or None."""
    # The empty string occurs in every response, so a row with it would reward anything.
    blank = any(not options.normalize(truth) for truth in ground_truth)
    return "ground truth is blank, which every response contains" if blank and options.mode == "contains" else None


def verify_regex(response: str, ground_truth: tuple[str, ...], options: RegexOptions) -> Grade:
    """Score 1 if one of the ground truths, a Python regular expression, matches the response, else 0.

    The time is that of the pattern: it comes from the author of the data, and one that backtracks without bound (such
    as ``(a+)+$``) stalls grading.
    """
    problem = regex_problem(ground_truth, options)
    if problem:
        return Ungraded(problem)
    patterns = [re.compile(truth) for truth in ground_truth]
    if options.mode == "fullmatch":
        return Graded(float(any(pattern.fullmatch(response.strip()) for pattern in patterns)))
    return Graded(float(any(pattern.search(response) for pattern in patterns)))


def regex_problem(ground_truth: tuple[str, ...], options: RegexOptions) -> str | None:
    """Return what is wrong with the ground truth of a ``regex`` row, or None."""
    for truth in ground_truth:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                re.compile(truth)
        except (re.error, RecursionError, OverflowError) as error:
            return f"ground truth is not a regular expression: {error}"
    return None


STRING_MATCH = VerifierInfo(
    name="string_match",
    verify=verify_string_match,
    options=StringMatchOptions,
    problem=string_match_problem,
    description=(
        "The response must be one of the ground truths, or contain one with mode = 'contains'. White space around both "
        "does not matter unless strip = false; ignore_case = true compares case-folded text."
    ),
    examples=(
        Example("Paris\n", ("Paris",), 1.0),
        Example("paris", ("Paris",), 0.0),
        Example("It is PARIS.", ("Lyon", "Paris"), 1.0, {"mode": "contains", "ignore_case": True}),
    ),
)

REGEX = VerifierInfo(
    name="regex",
    verify=verify_regex,
    options=RegexOptions,
    problem=regex_problem,
    description=(
        "One of the ground truths, each a Python regular expression, must match somewhere in the response, or match "
        "the whole stripped response with mode = 'fullmatch'. Flags go into the pattern: (?i)."
    ),
    examples=(
        Example("<answer>42</answer>", (r"<answer>\s*42\s*</answer>",), 1.0),
        Example("I say yes", (r"(?i)yes|no",), 0.0, {"mode": "fullmatch"}),
    ),
)
