import asyncio
import math
from typing import Any

import pytest

from grpo.rewards.grader import Grader
from grpo.rewards.registry import VERIFIERS
from grpo.rewards.verifier import VerifierInfo, VerifierOptions
from grpo.types import FinishReason, Grade, Graded, PolicySpan, Prompt, Response, Ungraded


def prompt(verifier: str = "integer", truth: str | tuple[str, ...] = "46", **options: Any) -> Prompt:
    return Prompt("p", (1, 2), "12+34=", truth, verifier, "addition", options)


def response(finish: FinishReason = FinishReason.STOP) -> Response:
    return Response("r", (3,), (-0.5,), (PolicySpan(0, 0),), finish)


def grade(row: Prompt, text: str, finish: FinishReason = FinishReason.STOP, grader: Grader | None = None) -> Grade:
    return asyncio.run((grader or Grader()).grade(row, response(finish), text))


def broken(verify: Any) -> Grader:
    info = VerifierInfo("mine", verify, VerifierOptions, lambda truths, options: None, "", ())
    return Grader({**VERIFIERS, "mine": info})


def test_the_verifier_of_the_row_grades_the_text_with_the_options_of_the_row() -> None:
    assert grade(prompt(), "46") == Graded(1.0)
    assert grade(prompt(), "47") == Graded(0.0)
    assert grade(prompt("string_match", ("a", "B"), ignore_case=True), "b") == Graded(1.0)


def test_a_truncated_response_keeps_its_raw_reward() -> None:
    assert grade(prompt(), "46", FinishReason.LENGTH) == Graded(1.0)


def test_an_aborted_response_is_ungraded() -> None:
    assert grade(prompt(), "46", FinishReason.ABORT) == Ungraded("the response was aborted before it ended")


@pytest.mark.parametrize("error", [ValueError("no\nservice"), RecursionError("no service"), MemoryError("no service")])
def test_an_exception_in_a_verifier_is_ungraded_and_names_verifier_and_exception(error: Exception) -> None:
    def verify(*args: object) -> Grade:
        raise error

    assert grade(prompt("mine"), "46", grader=broken(verify)) == Ungraded(
        f"verifier 'mine' failed: {type(error).__name__}: no service"
    )


def test_a_very_long_exception_gives_a_short_reason() -> None:
    def verify(response: str, *args: object) -> Grade:
        raise ValueError(response)

    result = grade(prompt("mine"), "x" * 1_000_000, grader=broken(verify))
    assert result == Ungraded("verifier 'mine' failed: ValueError: " + "x" * 261 + "...")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_finite_number_is_ungraded(score: float) -> None:
    result = grade(prompt("mine"), "46", grader=broken(lambda *args: Graded(score)))
    assert result == Ungraded(f"verifier 'mine' returned the score {score!r}")


def test_what_is_no_grade_is_ungraded() -> None:
    assert grade(prompt("mine"), "46", grader=broken(lambda *args: 1.0)) == Ungraded(
        "verifier 'mine' returned float, not a grade"
    )


def test_a_row_that_cannot_be_graded_is_ungraded_not_wrong() -> None:
    assert grade(prompt("nothing"), "46") == Ungraded("unknown verifier 'nothing'")
    assert grade(prompt(truth="x"), "46") == Ungraded("verifier 'integer': ground truth 'x' is not an integer")
    assert grade(prompt(mode="x"), "46") == Ungraded(
        "verifier 'integer' failed: UserError: verifier 'integer' has no option 'mode'. It has no options."
    )


def test_cancellation_is_not_swallowed() -> None:
    def verify(*args: object) -> Grade:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        grade(prompt("mine"), "46", grader=broken(verify))
