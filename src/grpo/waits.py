"""Who waits for what: the one place where the tasks of a run wait on shared state.

A run that hangs must say why. Every wait therefore has a name and a reason, and the watchdog prints them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """``who`` has been waiting for ``what`` for ``seconds``."""

    who: str
    what: str
    seconds: float


class Waits:
    """A condition variable for the single-threaded controller, with a register of who waits.

    All methods are for the event-loop thread. Time is the loop's, so a virtual clock works.
    """

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []
        self._register: dict[int, tuple[str, Callable[[], str], float]] = {}
        self._next = 0
        self.progress = 0

    def notify(self) -> None:
        """Say that shared state changed: every waiter looks at its condition again."""
        self.progress += 1
        if self._futures:
            waiting, self._futures = self._futures, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until(
        self,
        who: str,
        what: str | Callable[[], str],
        condition: Callable[[], T | None],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Wait until ``condition`` returns something true, and return it.

        The condition is called at once and after every :meth:`notify`; nothing can change between its success and the
        caller going on. Raises TimeoutError after ``timeout_s`` seconds.
        """
        found = condition()
        if found:
            return found
        with self.doing(who, what):
            async with asyncio.timeout(timeout_s):
                while not (found := condition()):
                    future = asyncio.get_running_loop().create_future()
                    self._futures.append(future)
                    await future
        return found

    @contextmanager
    def doing(self, who: str, what: str | Callable[[], str]) -> Iterator[None]:
        """Register ``who`` as busy with or waiting for ``what`` while the block runs."""
        key = self._next
        self._next += 1
        self._register[key] = (who, what if callable(what) else lambda: what, asyncio.get_running_loop().time())
        try:
            yield
        finally:
            del self._register[key]

    def table(self) -> list[Wait]:
        """Return every wait, the longest first."""
        now = asyncio.get_running_loop().time()
        rows = [Wait(who, what(), now - since) for who, what, since in self._register.values()]
        return sorted(rows, key=lambda wait: -wait.seconds)
