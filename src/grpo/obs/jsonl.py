"""JSON lines that survive a crash, and the metrics file made of them.

A line counts once its newline is written. Whatever follows the last newline is torn: a reader skips it, and opening
the file for more cuts it off.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.errors import RunFailed
from grpo.obs.observer import Observer
from grpo.obs.rows import StepRow, eval_row
from grpo.types import EvalScore

_TAIL_BYTES = 1 << 16


class JsonLines:
    """An append-only file of JSON objects, one a line.

    A line is one ``write``, unbuffered: it is in the kernel when :meth:`write` returns, so that killing the process
    loses nothing. Values that JSON does not know (NaN, infinities) become null.

    Raises:
        RunFailed: the file cannot be opened or written, such as a full disk; the file is left without a torn line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._fd, _whole_bytes(self._fd))
        except OSError as error:
            self.close()
            raise self._failed(error) from error

    def write(self, value: Mapping[str, Any]) -> None:
        """Append one object."""
        if self._fd is None:
            raise ValueError(f"{self._path} is closed")
        line = (dump_line(value) + "\n").encode()
        try:
            written = os.write(self._fd, line)
            if written < len(line):  # a full disk takes what fits; the next write would say so
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                raise OSError(f"only {written} of {len(line)} bytes could be written")
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _failed(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"cannot write: {error}",
            where=str(self._path),
            fix="Free space on that disk or make the folder writable, then run the same command again.",
        )


class MetricsFile(Observer):
    """``metrics.jsonl``: one row a step or evaluation.

    Essential: a run whose metrics cannot be written fails with :class:`~grpo.errors.RunFailed`.
    """

    essential = True

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def step(self, row: StepRow) -> None:
        self._lines.write(row.as_json())

    def evaluation(self, score: EvalScore) -> None:
        self._lines.write(eval_row(score))

    def close(self) -> None:
        self._lines.close()


def dump_line(value: Mapping[str, Any]) -> str:
    """Return ``value`` as JSON on one line, with null for NaN and infinities."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # rare, so only then is the whole value walked
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON lines file, without a torn last line. Safe while another process writes.

    Raises:
        json.JSONDecodeError: a line before the last newline is not JSON, so the file is damaged.
    """
    whole, newline, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.split(b"\n")] if newline else []


def _whole_bytes(fd: int) -> int:
    """Return the length of the file up to and with its last newline. Reads from the end: rollouts are large."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
