"""``ledger.jsonl``: the audit trail of the ledger, one line a transition. :mod:`grpo.obs.trail` reads it.

A line has no clock time, so that two runs of the same seed in a synchronous mode give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from grpo.obs.jsonl import JsonLines
from grpo.obs.observer import Observer
from grpo.runtime.ledger import State, Transition


class LedgerFile(Observer):
    """Appends every transition; an observer only so that it is closed with the others."""

    essential = True

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def write(self, transition: Transition) -> None:
        """Append one line."""
        row = {
            "group_id": transition.group_id,
            "attempt": transition.attempt,
            "prompt_id": transition.prompt_id,
            "before": transition.before.value,
            "after": transition.after.value,
            "version": transition.version,
        }
        if transition.before is State.PENDING and transition.source:
            row["source"] = transition.source
        if transition.reason:
            row["reason"] = transition.reason
        if transition.retried:
            row["retried"] = True
        self._lines.write(row)

    def close(self) -> None:
        self._lines.close()
