"""Trains jobs in forked children of one process that has imported everything: a run without the seconds of importing.

A child is a real process: it can be killed with SIGKILL, and nothing of it survives.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType


class Zygote:
    """A context manager around the parent process."""

    def __enter__(self) -> Zygote:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def train(
        self,
        job: Path,
        *,
        crash_at: str = "",
        signal_after: tuple[int, float] | None = None,
        once: Path | None = None,
    ) -> tuple[int, str]:
        """Run ``grpo train JOB --json`` in a child; return its exit code (-N for signal N) and its stderr.

        Args:
            crash_at: a named crash point.
            signal_after: send this signal so many seconds after the child began.
            once: count the seconds from when this file is not empty.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"job": str(job), "crash_at": crash_at, "signal_after": signal_after, "once": str(once or "")}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, job.with_suffix(".stderr").read_text()


def _serve() -> None:
    from grpo.cli.main import main
    from grpo.runtime import entry  # noqa: F401  # imported for the children

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _train(order, main)
        if order["signal_after"]:
            number, seconds = order["signal_after"]
            _kill_after(child, number, seconds, order["once"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _train(order: dict, main) -> None:
    stderr = os.open(Path(order["job"]).with_suffix(".stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(stderr, 2)
    if order["crash_at"]:
        os.environ["GRPO_TEST_CRASH_AT"] = order["crash_at"]
    sys.argv = ["grpo", "train", order["job"], "--json"]
    code = 99
    try:
        main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    finally:
        os._exit(code)


def _kill_after(child: int, number: int, seconds: float, once: str) -> None:
    """Send a signal from a grandchild, so that the wait for the child is not held up."""
    if os.fork() == 0:
        signal.alarm(120)
        import time

        while once and not (os.path.exists(once) and os.path.getsize(once)):
            time.sleep(0.01)
        time.sleep(seconds)
        try:
            os.kill(child, number)
        finally:
            os._exit(0)


if __name__ == "__main__":
    _serve()
