"""The console without a terminal: one aligned line a step, for logs and pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.cells import cell_len

from grpo.obs.closing import HEADINGS, eval_lines, written
from grpo.obs.observer import Observer
from grpo.obs.progress import Progress
from grpo.obs.rows import PipelineStatus, StepRow
from grpo.obs.text import count, duration, number, pad, percent
from grpo.plan.job import JobSpec
from grpo.types import EvalScore, RunResult

_SILENCE_S = 60.0
"""After this long without a line, the state of the pipeline is printed, so that a log never looks dead."""


class PlainConsole(Observer):
    """Writes lines to ``stream``. Its own words are ASCII; what the stream cannot encode becomes ``?``."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._printed_at = clock()
        self._progress: Progress | None = None

    def started(self, job: JobSpec) -> None:
        self._progress = Progress(job)
        self._print(f"{job.name}: {setting(job)}")

    def step(self, row: StepRow) -> None:
        if self._progress is not None:
            self._progress = self._progress.with_row(row)
            self._print(_step_line(self._progress, row))

    def evaluation(self, score: EvalScore) -> None:
        if self._progress is not None:
            self._progress = self._progress.with_score(score)
        asked = f"{score.prompts} prompts" + (f" x {score.samples}" if score.samples > 1 else "")
        self._print(
            f"eval {score.name} @ step {score.version}: {percent(score.accuracy)} of {asked}, "
            f"{score.response_length_mean:.1f} tokens, {percent(score.truncated_fraction)} truncated"
        )

    def pipeline(self, status: PipelineStatus) -> None:
        if self._progress is not None:
            self._progress = self._progress.with_status(status)
        if self._clock() - self._printed_at >= _SILENCE_S:
            groups = f"{status.in_flight} in flight, {status.graded} graded, {status.buffered} buffered"
            waiting = f"; {status.waiting}" if status.waiting else ""
            self._print(f"  .. {groups}, {status.trained} trained, {count(status.tokens_per_second)} tok/s{waiting}")

    def warning(self, text: str) -> None:
        self._print(f"warning: {text}")

    def finished(self, result: RunResult) -> None:
        if self._progress is None:
            return
        progress = self._progress = self._progress.with_result(result)
        self._print(f"{result.status}: {result.steps} steps in {duration(result.seconds)}")
        if lines := eval_lines(progress):
            self._print("")
            for text in _aligned([HEADINGS, *(line.cells() for line in lines)], left=1):
                self._print(f"  {text}")
        self._print("")
        self._print(f"written to {result.output_root}")
        for text in _aligned(written(progress.job, result), left=2):
            self._print(f"  {text}")

    def _print(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()
        self._printed_at = self._clock()


def setting(job: JobSpec) -> str:
    """Return in a few words what the run does: ``20 steps of 512 responses (64 prompts x 8), barrier, lag 0``."""
    batch, sync = job.batch, job.sync
    samples = f"{batch.rollout_batch_size} prompts x {batch.samples_per_prompt}"
    mode = f"async {sync.publication_mode}" if sync.asynchronous else sync.publication_mode
    return (
        f"{batch.total_steps} steps of {batch.global_batch_size} responses, "
        f"{samples} a collection, {mode}, lag limit {sync.max_policy_lag}"
    )


def _step_line(progress: Progress, row: StepRow) -> str:
    total = str(progress.total_steps)
    lag = "-" if row.rollouts.lag_max is None else f"{row.rollouts.lag_mean:.1f} (max {row.rollouts.lag_max})"
    line = (
        f"step {str(row.step).rjust(len(total))}/{total}"
        f"  reward {number(row.rollouts.reward_mean):>6}"
        f"  solved {percent(row.rollouts.solve_rate):>6}"
        f"  lag {lag}"
        f"  loss {number(row.learner.loss, 4):>8}"
        f"  grad {number(row.learner.grad_norm):>7}"
        f"  entropy {number(row.learner.entropy):>6}"
        f"  {count(row.time.generated_tokens_per_s):>7} tok/s"
        f"  {duration(row.time.elapsed_s):>5}"
    )
    left = progress.seconds_left
    return line if left is None or row.step >= progress.total_steps else f"{line}, {duration(left)} left"


def _aligned(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Return ``rows`` as lines with columns of one width: the first ``left`` columns flush left, the others right."""
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            pad(cell, width) if index < left else " " * (width - cell_len(cell)) + cell
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
