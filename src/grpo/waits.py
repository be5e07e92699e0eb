"""Who waits for what: the one place where the tasks of a run wait on shared state.

A run that hangs must say why. Every wait therefore has a name and a reason, and the watchdog prints them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
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
        self._waiting: dict[asyncio.Future[None], Callable[[], object]] = {}
        self._register: dict[_Doing, None] = {}
        self.progress = 0

    def notify(self) -> None:
        """Say that shared state changed: every waiter whose condition may hold now looks at it again."""
        self.progress += 1
        for future, ready in self._waiting.items():
            if not future.done() and ready():
                future.set_result(None)

    async def until(
        self,
        who: str,
        what: str | Callable[[], str],
        condition: Callable[[], T | None],
        *,
        ready: Callable[[], object] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Wait until ``condition`` returns something true, and return it.

        Nothing can change between its success and the caller going on. Raises TimeoutError after ``timeout_s`` seconds.

        Args:
            condition: called at once, and whenever ``ready`` was true at a :meth:`notify`. Cheap.
            ready: has no side effects; needed where ``condition`` has one, and else ``condition`` itself.
        """
        found = condition()
        if found:
            return found
        with self.doing(who, what):
            if timeout_s is None:
                return await self._change(condition, ready or condition)
            async with asyncio.timeout(timeout_s):
                return await self._change(condition, ready or condition)

    async def _change(self, condition: Callable[[], T | None], ready: Callable[[], object]) -> T:
        while not (found := condition()):
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = ready
            try:
                await future
            finally:
                del self._waiting[future]
        return found

    def doing(self, who: str, what: str | Callable[[], str]) -> AbstractContextManager[object]:
        """Register ``who`` as busy with or waiting for ``what`` while the block runs."""
        return _Doing(self._register, who, what)

    def table(self) -> list[Wait]:
        """Return every wait, the longest first."""
        now = asyncio.get_running_loop().time()
        rows = [Wait(one.who, one.text(), now - one.since) for one in self._register]
        return sorted(rows, key=lambda wait: -wait.seconds)


class _Doing:
    """One line of the register, while its block runs."""

    __slots__ = ("_register", "_what", "since", "who")

    def __init__(self, register: dict[_Doing, None], who: str, what: str | Callable[[], str]) -> None:
        self._register = register
        self._what = what
        self.who = who
        self.since = 0.0

    def text(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()

    def __enter__(self) -> None:
        self.since = asyncio.get_running_loop().time()
        self._register[self] = None

    def __exit__(self, *error: object) -> None:
        del self._register[self]
