"""The errors that a user may see, each with the exit code that the command line gives it.

An error is one line that says what is wrong, where, and what to do. Anything that is not a :class:`GrpoError` is a bug
of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class GrpoError(Exception):
    """Base of all errors shown to a user.

    Args:
        what: what is wrong, in the user's words, without a full stop.
        where: the place, such as ``run.toml:41 async.max_weight_staleness``; may be empty.
        fix: what to do about it; may be empty.
    """

    exit_code = 3

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries; the default would lose the keyword arguments.
        return _rebuild, (type(self), self.what, self.where, self.fix)


def _rebuild(kind: type[GrpoError], what: str, where: str, fix: str) -> GrpoError:
    return kind(what, where=where, fix=fix)


class UserError(GrpoError):
    """The user's input is wrong: TOML, flags, data or model folder. Exit code 2."""

    exit_code = 2


class ConfigErrors(UserError):
    """Several problems of one file, reported together. Exit code 2."""

    def __init__(self, problems: Sequence[UserError]) -> None:
        super().__init__(f"{len(problems)} problem{'s' if len(problems) != 1 else ''} found")
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems,)


class RunFailed(GrpoError):
    """The run started and failed. Exit code 3."""

    exit_code = 3


class SchedulerRefused(GrpoError):
    """The scheduler did not take the submission. Exit code 4."""

    exit_code = 4


class Interrupted(GrpoError):
    """The run stopped early on a signal, with a committed checkpoint. Exit code 75."""

    exit_code = 75


def did_you_mean(name: str, known: Iterable[str], *, label: str) -> str:
    """Return the ``fix`` of an error about an unknown name: the nearest known one, and all of them.

    Args:
        name: what the user wrote.
        known: the names that exist.
        label: what they are, in the plural and capitalised: ``Verifiers``.
    """
    from difflib import get_close_matches

    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    listing = f"{label}: {', '.join(names)}."
    return f"Did you mean {near[0]!r}? {listing}" if near else listing


def describe(error: BaseException) -> str:
    """Return one line about any error: our own speak for themselves, others need the name of their kind."""
    return str(error) if isinstance(error, GrpoError) else f"{type(error).__name__}: {error}"
