"""Who watches a run: the controller tells one :class:`Observer`, and :class:`Observers` passes it on to many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from grpo.obs.rows import PipelineStatus, StepRow
from grpo.plan.job import JobSpec
from grpo.types import EvalScore, Group, RunResult


class Observer:
    """Sees a run as it goes. The base does nothing, so that an observer says only what it cares about.

    Every method is called on the controller's event-loop thread and must return at once: no network, no waiting. What
    is slow belongs on a thread of the observer's own.

    Attributes:
        essential: training must not go on without it. An observer that is not essential and raises is dropped; the
            error of an essential one goes up to the controller and fails the run.
    """

    essential: bool = False

    def started(self, job: JobSpec) -> None:
        """The run begins, or goes on after a resume. Called once, first."""

    def step(self, row: StepRow) -> None:
        """An optimizer step is done."""

    def evaluation(self, score: EvalScore) -> None:
        """One held-out set was evaluated on one policy version."""

    def group_ended(self, group: Group, outcome: str, lag: int | None) -> None:
        """A group ended; ``outcome`` is one of :data:`grpo.obs.rows.OUTCOMES`.

        ``lag`` is in optimizer steps, as judged when the trainer took the group; None if it never came that far.
        """

    def pipeline(self, status: PipelineStatus) -> None:
        """A moment of the pipeline. May be called at any time and often; only the latest counts."""

    def warning(self, text: str) -> None:
        """Something that a person should know and that does not stop the run. One line."""

    def finished(self, result: RunResult) -> None:
        """The run came to its end. Not called when it failed."""

    def close(self) -> None:
        """Give up files, threads and the terminal. Called once, last, also after a failure; may be called twice."""


class Observers(Observer):
    """Passes every event on to each of several observers, in order.

    An observer that raises is closed and dropped, and the others are told through :meth:`Observer.warning`: a tracker
    that fails never stops training. The exception is an :attr:`Observer.essential` one (the metrics file): every other
    observer gets the event first, then its error is raised to the caller.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def started(self, job: JobSpec) -> None:
        self._tell(lambda observer: observer.started(job))

    def step(self, row: StepRow) -> None:
        self._tell(lambda observer: observer.step(row))

    def evaluation(self, score: EvalScore) -> None:
        self._tell(lambda observer: observer.evaluation(score))

    def group_ended(self, group: Group, outcome: str, lag: int | None) -> None:
        self._tell(lambda observer: observer.group_ended(group, outcome, lag))

    def pipeline(self, status: PipelineStatus) -> None:
        self._tell(lambda observer: observer.pipeline(status))

    def warning(self, text: str) -> None:
        self._tell(lambda observer: observer.warning(text))

    def finished(self, result: RunResult) -> None:
        self._tell(lambda observer: observer.finished(result))

    def close(self) -> None:
        self._tell(lambda observer: observer.close())

    def _tell(self, event: Callable[[Observer], None]) -> None:
        loud: Exception | None = None
        dropped: list[str] = []
        for observer in tuple(self._observers):
            try:
                event(observer)
            except Exception as error:
                if observer.essential:
                    loud = loud or error
                    continue
                self._observers.remove(observer)
                with suppress(Exception):  # it is broken already; what counts is that it lets go of the terminal
                    observer.close()
                dropped.append(f"{type(observer).__name__} failed and was dropped: {type(error).__name__}: {error}")
        # A warning may drop further observers, each of which leaves the list, so this ends.
        for text in dropped:
            self.warning(text)
        if loud is not None:
            raise loud
