"""What a verifier is: a pure function from a response and the ground truth to a grade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from grpo.types import Grade


class VerifierOptions(BaseModel):
    """Base of the options that a row may give to its verifier; a verifier without options uses it as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


OptionsT = TypeVar("OptionsT", bound=VerifierOptions)
_OptionsIn = TypeVar("_OptionsIn", bound=VerifierOptions, contravariant=True)


class Verifier(Protocol[_OptionsIn]):
    """Grades one response.

    A verifier is a pure module-level function: same input, same grade, no state, no clock, no network. So a grade can
    be repeated from a captured rollout, and the call can move into a worker process unchanged. It takes time linear in
    the response, which may be a million characters. It gives :class:`~grpo.types.Ungraded`, not a low score, when it
    cannot decide.
    """

    def __call__(self, response: str, ground_truth: tuple[str, ...], options: _OptionsIn, /) -> Grade:
        """Grade ``response``; matching any one of ``ground_truth`` is right."""
        ...


@dataclass(frozen=True, slots=True)
class Example:
    """A documented case: tests run each one."""

    response: str
    ground_truth: tuple[str, ...]
    score: float
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifierInfo(Generic[OptionsT]):
    """One entry of the registry.

    Attributes:
        name: as the data names it.
        verify: the function.
        options: model of the row's options.
        problem: what is wrong with a ground truth under these options, or None; run on every row before training.
        description: the rule, in a sentence or two.
        examples: documented cases.
    """

    name: str
    verify: Verifier[OptionsT]
    options: type[OptionsT]
    problem: Callable[[tuple[str, ...], OptionsT], str | None]
    description: str
    examples: tuple[Example, ...]


def as_truths(ground_truth: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the ground truth of a row as verifiers take it."""
    return (ground_truth,) if isinstance(ground_truth, str) else tuple(ground_truth)
