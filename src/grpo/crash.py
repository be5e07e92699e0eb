"""Named points at which a test may kill the process, to show that every run resumes from there."""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "GRPO_TEST_CRASH_AT"
"""``NAME`` or ``NAME:N``: kill the process with SIGKILL the first, or the N-th, time that it passes the point."""

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Do nothing, unless the environment asks for a crash here."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    point, _, count = wanted.partition(":")
    if point == name:
        _passed[name] += 1
        if _passed[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
