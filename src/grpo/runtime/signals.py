"""SIGTERM, SIGINT and SIGUSR1 end a run with a checkpoint; a second signal ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopSignals:
    """Handles the signals while the block runs. On the main thread, inside a running event loop.

    Args:
        stop: asks the run to stop; called once.
        grace_s: the process ends with exit code 3 if the run has not stopped so long after the signal.
    """

    def __init__(self, stop: Callable[[], None], *, grace_s: float) -> None:
        self._stop = stop
        self._grace_s = grace_s
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> StopSignals:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        if self._timer is not None:
            self._timer.cancel()

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._timer is not None:
            _end(f"{name}: a second signal, ending at once", 128 + number)
        self._timer = asyncio.get_running_loop().call_later(
            self._grace_s, _end, f"core.grace_seconds: no checkpoint within {self._grace_s:g} s of the signal", 3
        )
        print(f"{name}: stopping after this step; again to end at once", file=sys.stderr, flush=True)
        self._stop()


def _end(text: str, code: int) -> None:
    """End the process without waiting for anything: the newest committed checkpoint is whole whatever happens."""
    print(f"error: {text}", file=sys.stderr, flush=True)
    os._exit(code)
