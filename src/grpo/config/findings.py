"""What is found about a run file besides errors: things worth a look, and things that this build cannot run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grpo.errors import UserError


class Advice(UserError):
    """Something that is probably not meant, or that could not be checked from here; nothing is refused for it."""


class NotRunnable(UserError):
    """A file that is right, but that cannot be run here: ``plan`` and ``validate`` say so, and ``run`` refuses it."""


@dataclass(frozen=True)
class Findings:
    """All that was found, in the order in which a user reads it.

    Attributes:
        errors: what is wrong; no job can be made of the file.
        warnings: what is worth a look.
        cannot_run: why ``grpo run`` would refuse the file as things are.
    """

    errors: tuple[UserError, ...] = ()
    warnings: tuple[Advice, ...] = ()
    cannot_run: tuple[NotRunnable, ...] = ()


def sort(found: Iterable[UserError]) -> Findings:
    """Sort what was found by its kind; the order inside each kind stays, and repetitions are left out."""
    problems = list({str(problem): problem for problem in found}.values())
    return Findings(
        errors=tuple(problem for problem in problems if not isinstance(problem, Advice | NotRunnable)),
        warnings=tuple(problem for problem in problems if isinstance(problem, Advice)),
        cannot_run=tuple(problem for problem in problems if isinstance(problem, NotRunnable)),
    )
