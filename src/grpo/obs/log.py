"""``logs/controller.log``: what happened, with times, for whoever reads a run after the fact."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from grpo.obs.observer import Observer
from grpo.obs.rows import StepRow
from grpo.plan.job import JobSpec
from grpo.types import EvalScore, RunResult


def open_log(path: Path) -> logging.Logger:
    """Return a logger that appends to ``path``, with times in UTC.

    It hangs from no other logger and is in no registry: pass it on, and :func:`close_log` it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger = logging.Logger(path.stem, logging.INFO)
    logger.addHandler(handler)
    return logger


def close_log(logger: logging.Logger) -> None:
    """Flush and close the files of ``logger``; may be called twice."""
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


class LogFile(Observer):
    """Writes the events of a run to a logger; :meth:`close` closes it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def started(self, job: JobSpec) -> None:
        self._logger.info("run %s started: %d steps, job %s", job.name, job.batch.total_steps, job.sha256())

    def step(self, row: StepRow) -> None:
        ended = ", ".join(f"{count} {outcome}" for outcome, count in row.outcomes.items() if count)
        self._logger.info(
            "step %d done: collection %d, interval %.3f s, step %.3f s, wait %.3f s, publish %.3f s; groups: %s",
            *(row.step, row.collection, row.time.interval_s, row.time.step_s, row.time.wait_s, row.time.publish_s),
            ended or "none ended",
        )

    def evaluation(self, score: EvalScore) -> None:
        self._logger.info("evaluation %s at step %d: accuracy %.4f", score.name, score.version, score.accuracy)

    def warning(self, text: str) -> None:
        self._logger.warning("%s", text)

    def finished(self, result: RunResult) -> None:
        self._logger.info("run finished: %s after %d steps, %.1f s", result.status, result.steps, result.seconds)

    def close(self) -> None:
        close_log(self._logger)
