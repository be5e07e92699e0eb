"""Events reach every observer, and one that fails stops neither the others nor the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from obs_examples import make_row, make_score, make_status, two_groups

from grpo.obs.observer import Observer, Observers
from grpo.types import RunResult
from support.jobs import make_job

EVENTS = ("started", "step", "evaluation", "group_ended", "pipeline", "warning", "finished", "close")


class Recorder(Observer):
    """Writes down what it is told; raises at the events of ``breaks_at``."""

    def __init__(self, *breaks_at: str, essential: bool = False) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.breaks_at = breaks_at
        self.essential = essential

    def __getattribute__(self, name: str):
        if name not in EVENTS:
            return super().__getattribute__(name)

        def hear(*args: object) -> None:
            self.heard.append((name, *args))
            if name in self.breaks_at:
                raise OSError(28, f"no space at {name}")

        return hear


def test_every_observer_hears_every_event_in_order_and_whole(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    job, group = make_job(tmp_path), two_groups()[0]
    result = RunResult("complete", 4, 1.0, 0.1, 0.9, str(tmp_path))
    both = Observers([first, second])
    both.started(job)
    both.step(make_row())
    both.evaluation(make_score(0, 0.5))
    both.group_ended(group, "trained", 1)
    both.pipeline(make_status())
    both.warning("careful")
    both.finished(result)
    both.close()
    expected = [
        ("started", job),
        ("step", make_row()),
        ("evaluation", make_score(0, 0.5)),
        ("group_ended", group, "trained", 1),
        ("pipeline", make_status()),
        ("warning", "careful"),
        ("finished", result),
        ("close",),
    ]
    assert first.heard == expected
    assert second.heard == expected


def test_an_observer_that_raises_is_closed_dropped_and_reported_once() -> None:
    before, broken, after = Recorder(), Recorder("step"), Recorder()
    observers = Observers([before, broken, after])
    observers.step(make_row(1))
    observers.step(make_row(2))
    told = ("warning", "Recorder failed and was dropped: OSError: [Errno 28] no space at step")
    assert broken.heard == [("step", make_row(1)), ("close",)]
    assert before.heard == [("step", make_row(1)), told, ("step", make_row(2))]
    assert after.heard == before.heard


def test_an_observer_that_fails_at_the_warning_about_another_is_dropped_too() -> None:
    steady, broken, touchy = Recorder(), Recorder("step", "close"), Recorder("warning")
    Observers([broken, touchy, steady]).step(make_row(1))
    assert steady.heard == [
        ("step", make_row(1)),
        ("warning", "Recorder failed and was dropped: OSError: [Errno 28] no space at step"),
        ("warning", "Recorder failed and was dropped: OSError: [Errno 28] no space at warning"),
    ]


def test_all_are_closed_though_one_fails_to_close() -> None:
    broken, steady = Recorder("close"), Recorder()
    Observers([broken, steady]).close()
    assert ("close",) in steady.heard


def test_an_essential_observer_that_raises_stops_the_run_after_the_others_have_heard() -> None:
    metrics, other = Recorder("step", essential=True), Recorder()
    observers = Observers([metrics, other])
    with pytest.raises(OSError, match="no space at step"):
        observers.step(make_row(1))
    observers.close()
    assert other.heard == [("step", make_row(1)), ("close",)]
    assert metrics.heard == [("step", make_row(1)), ("close",)]
