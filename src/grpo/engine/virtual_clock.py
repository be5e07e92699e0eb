"""An event loop whose clock jumps to the next timer, so that hours of simulated time run in seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits, and no timer is left that could wake one."""


class _Selector(selectors.SelectSelector):
    """Never sleeps: what the loop would have slept is added to its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("every task waits, and no timer is left that could wake one")
        if timeout > 0:
            self.now += timeout
            return []  # the simulation has no file descriptors to look at
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Runs one coroutine without threads or sockets; ``time()`` starts at 0 and counts virtual seconds."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a virtual clock; raises :class:`Deadlock` when nothing can happen any more."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
