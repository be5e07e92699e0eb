"""A circuit breaker for verifiers: an outage can neither train on noise nor refill for ever."""

from __future__ import annotations

from collections import deque

from grpo.errors import RunFailed
from grpo.plan.job import FilterSpec
from grpo.types import Group, Ungraded


class Breaker:
    """Fails the run when more than a fraction of the latest responses came back ungraded.

    The window is ``ungraded_window`` responses and must be full before the breaker may trip, so that a few timeouts at
    the start are no outage.
    """

    def __init__(self, filter: FilterSpec) -> None:
        self._limit = filter.ungraded_limit
        self._window = filter.ungraded_window
        self._latest: deque[bool] = deque(maxlen=filter.ungraded_window)
        self._ungraded = 0

    def see(self, group: Group) -> None:
        """Count the grades of a group; raises RunFailed when the breaker trips."""
        reason = ""
        for grade in group.grades:
            if len(self._latest) == self._window:
                self._ungraded -= self._latest[0]
            failed = isinstance(grade, Ungraded)
            self._latest.append(failed)
            self._ungraded += failed
            if isinstance(grade, Ungraded):
                reason = grade.reason
        if reason and len(self._latest) == self._window and self._ungraded > self._limit * self._window:
            raise RunFailed(
                f"{self._ungraded} of the latest {self._window} responses could not be graded; the last one: {reason}",
                where=f"verifier {group.prompt.verifier}",
                fix="Repair the verifier or its service. training.ungraded_limit is the fraction that may fail.",
            )
