"""The console on a terminal: a live picture of the run, and a table at the end.

The controller's thread only replaces an immutable :class:`~grpo.obs.progress.Progress`; rich's own thread draws it. So
a slow or stopped terminal does not hold up training.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grpo.obs.closing import eval_lines, written
from grpo.obs.observer import Observer
from grpo.obs.picture import closing_table, picture, written_list
from grpo.obs.progress import Progress
from grpo.obs.rows import PipelineStatus, StepRow
from grpo.obs.text import duration
from grpo.plan.job import JobSpec
from grpo.types import EvalScore, RunResult

REFRESHES_PER_SECOND = 2
"""A picture holds the interpreter for a few milliseconds, so few a second: training must not feel them."""


class LiveConsole(Observer):
    """Draws to ``console``, which is a terminal.

    Args:
        console: where to draw.
        owns_stdout: text that others print to ``sys.stdout`` while the picture is up goes above it; False when stdout
            is for the machine and must be left alone.
    """

    def __init__(
        self, console: Console, *, owns_stdout: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._owns_stdout = owns_stdout
        self._clock = clock
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._started_at = self._row_at = clock()
        self._early: list[str] = []

    def started(self, job: JobSpec) -> None:
        self._progress = Progress(job, warnings=tuple(self._early))
        self._started_at = self._row_at = self._clock()
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=self._owns_stdout,
            vertical_overflow="crop",
        )
        self._live.start()

    def step(self, row: StepRow) -> None:
        if self._progress is not None:
            self._row_at = self._clock()
            self._progress = self._progress.with_row(row)

    def evaluation(self, score: EvalScore) -> None:
        if self._progress is not None:
            self._progress = self._progress.with_score(score)

    def pipeline(self, status: PipelineStatus) -> None:
        if self._progress is not None:
            self._progress = self._progress.with_status(status)

    def warning(self, text: str) -> None:
        if self._progress is not None:
            self._progress = self._progress.with_warning(text)
        else:
            self._early.append(text)

    def finished(self, result: RunResult) -> None:
        if self._progress is None:
            return
        progress = self._progress = self._progress.with_result(result)
        self._stop()
        self._console.print(Text(f"{result.status}: {result.steps} steps in {duration(result.seconds)}", "bold"))
        if lines := eval_lines(progress):
            self._console.print(closing_table(lines))
        self._console.print(Text("written to "), Text(result.output_root, "bold"), sep="", soft_wrap=True)
        self._console.print(written_list(written(progress.job, result)))

    def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        live.stop()  # draws once more
        # The picture shows the latest few; here they stay in the terminal's history, whole.
        for text in self._progress.warnings if self._progress else ():
            self._console.print(Text("warning: ", "yellow") + Text(text, "default"), soft_wrap=True)

    def _draw(self):
        assert self._progress is not None
        now = self._clock()
        return picture(
            self._progress,
            elapsed_s=now - self._started_at,
            since_row_s=now - self._row_at,
            over=self._live is None,
            options=self._console.options,
        )
