"""The async face of verifiers: what the runtime calls for every response."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from grpo.rewards.registry import VERIFIERS, parse_options
from grpo.rewards.verifier import VerifierInfo, as_truths
from grpo.types import FinishReason, Grade, Graded, Prompt, Response, Ungraded

_REASON_CHARACTERS = 300


class Grades(Protocol):
    """What the runtime asks of a grader."""

    async def grade(self, prompt: Prompt, response: Response, text: str) -> Grade:
        """Grade one response; never raises because of it."""
        ...


class Grader:
    """Grades responses. Never raises because of a response, a verifier or a row: that gives ``Ungraded``.

    Verifiers run inline on the event loop: they are cheap and pure, and a run whose grades arrive in the order of its
    responses is repeatable. ``grade`` waits for nothing today; it is a coroutine because worker pools and services
    (math, code, judges) answer behind this same method.
    """

    def __init__(self, verifiers: Mapping[str, VerifierInfo[Any]] = VERIFIERS) -> None:
        self._verifiers = verifiers

    async def grade(self, prompt: Prompt, response: Response, text: str) -> Grade:
        """Grade one response.

        Args:
            prompt: the row; its verifier, ground truth and options are used.
            response: as the engine returned it. A truncated response is graded like any other: whether its reward
                counts is decided later, and raw reward metrics stay the same. An aborted one is ungraded.
            text: the response decoded, without special tokens.
        """
        if response.finish is FinishReason.ABORT:
            return Ungraded("the response was aborted before it ended")
        info = self._verifiers.get(prompt.verifier)
        if info is None:
            return Ungraded(f"unknown verifier {prompt.verifier!r}")
        try:
            grade = info.verify(text, as_truths(prompt.ground_truth), parse_options(info, prompt.options))
        except Exception as error:  # a verifier may fail in any way; none of them is evidence about the response
            return Ungraded(_one_line(f"verifier {info.name!r} failed: {type(error).__name__}: {error}"))
        return _checked(info.name, grade)


def _checked(name: str, grade: object) -> Grade:
    """Return ``grade`` if it is one; a score that is no finite number would poison the whole group's baseline."""
    if isinstance(grade, Ungraded):
        return Ungraded(_one_line(f"verifier {name!r}: {grade.reason}"))
    if not isinstance(grade, Graded):
        return Ungraded(f"verifier {name!r} returned {type(grade).__name__}, not a grade")
    if not isinstance(grade.score, int | float) or not math.isfinite(grade.score):
        return Ungraded(_one_line(f"verifier {name!r} returned the score {grade.score!r}"))
    return Graded(float(grade.score))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else line[: _REASON_CHARACTERS - 3] + "..."
