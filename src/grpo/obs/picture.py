"""How a run looks on a terminal: pure functions from its progress to rich renderables."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo.obs.closing import HEADINGS, EvalLine
from grpo.obs.progress import Progress
from grpo.obs.text import count, duration, number, percent, points, seconds, sparkline
from grpo.types import EvalScore

_LABEL = "dim"
_NAMES = {"zero_std": "zero-std"}
_MAX_EVALS = 8
_MAX_WARNINGS = 3
_OTHER_LINES = 21
"""Of the tallest picture, without its evaluations."""
_CURVE_SHARE = 0.4
"""Of the width, for curves."""


def picture(
    progress: Progress, *, elapsed_s: float, since_row_s: float, over: bool, options: ConsoleOptions
) -> RenderableType:
    """Return the whole picture, of the width of the terminal; it fits 24 lines.

    Args:
        elapsed_s: since the run started.
        since_row_s: since the latest step row came; the time left counts down by it.
        over: this is the last picture. Warnings are left out: they follow below it, whole.
    """
    ascii_only = options.ascii_only
    width = options.max_width - 4
    parts: list[RenderableType] = [_bar(progress, elapsed_s, None if over else since_row_s, width), Text()]
    evals = min(max(options.size.height - _OTHER_LINES, 1), _MAX_EVALS)
    parts.append(_learning(progress, max(10, int(width * _CURVE_SHARE)), evals, ascii_only=ascii_only))
    if progress.result is None:
        parts += [Text(), _pipeline(progress, ascii_only=ascii_only)]
    if progress.warnings and not over:
        parts += [Text(), _warnings(progress.warnings, width)]
    job = progress.job
    mode = job.sync.publication_mode
    lag = f"lag {'<=' if ascii_only else '≤'} {job.sync.max_policy_lag}"
    title = Text(job.name, "bold")
    title.truncate(max(8, width - 30), overflow="ellipsis")
    shape = f"{job.batch.rollout_batch_size} x {job.batch.samples_per_prompt}"
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=Text(f"{'async ' if job.sync.asynchronous else ''}{mode}, {lag}, {shape}", _LABEL),
        subtitle_align="right",
        border_style="cyan",
        box=box.ASCII if ascii_only else box.ROUNDED,
        padding=(0, 1),
        width=options.max_width,
    )


def _bar(progress: Progress, elapsed_s: float, since_row_s: float | None, width: int) -> RenderableType:
    step, total = progress.step, progress.total_steps
    text = Text.assemble(
        "step ", (f"{step}/{total}", "bold"), f"  {100 * step / total:.0f}%  ", (duration(elapsed_s), "bold")
    )
    left = progress.seconds_left
    if since_row_s is not None and left is not None and step < total:
        text.append(f", {duration(left - since_row_s)} left")
    bar = ProgressBar(total=total, completed=step, width=max(10, width - text.cell_len - 2), finished_style="green")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(bar, text)
    return grid


def _learning(progress: Progress, curve_width: int, max_evals: int, *, ascii_only: bool) -> RenderableType:
    grid = _labelled()
    row = progress.row
    if row is None:
        grid.add_row("reward", Text("after the first step", _LABEL))
    else:
        curve = sparkline(progress.rewards, curve_width, ascii_only=ascii_only)
        reward = Text(number(row.rollouts.reward_mean), "bold green")
        reward.append(f"  solved {percent(row.rollouts.solve_rate):<6}  ", "default").append(curve, "green")
        grid.add_row("reward", reward)
    for index, line in enumerate(_accuracy(progress, curve_width // 2, max_evals, ascii_only=ascii_only)):
        grid.add_row("" if index else "accuracy", line)
    if row is None:
        return grid
    rollouts, learner, times = row.rollouts, row.learner, row.time
    if rollouts.lag_mean is not None:
        grid.add_row("lag", Text(f"{rollouts.lag_mean:.1f} mean, {rollouts.lag_max} max"))
    grid.add_row(
        "policy",
        Text(
            f"loss {number(learner.loss, 4)}   grad norm {number(learner.grad_norm)}   "
            f"entropy {number(learner.entropy)}" + (f"   kl {number(learner.kl)}" if learner.kl else "")
        ),
    )
    grid.add_row(
        "length",
        Text(
            f"{number(rollouts.response_length_mean, 1)} mean, {rollouts.response_length_max} max, "
            f"{percent(rollouts.truncated_fraction)} truncated"
        ),
    )
    grid.add_row(
        "time",
        Text(
            f"{seconds(times.interval_s)} a step: train {seconds(times.step_s)}, wait {seconds(times.wait_s)}, "
            f"publish {seconds(times.publish_s)}"
        ),
    )
    return grid


def _accuracy(progress: Progress, curve_width: int, max_evals: int, *, ascii_only: bool) -> list[Text]:
    shown = list(progress.evals.items())[:max_evals]
    name_width = min(20, max((cell_len(name) for name, _ in shown), default=0))
    lines = [_accuracy_line(name, scores, name_width, curve_width, ascii_only=ascii_only) for name, scores in shown]
    if (more := len(progress.evals) - len(shown)) > 0:
        lines.append(Text(f"and {more} more held-out set{'s' if more > 1 else ''}", _LABEL))
    return lines


def _accuracy_line(
    name: str, scores: tuple[EvalScore, ...], name_width: int, curve_width: int, *, ascii_only: bool
) -> Text:
    first, last = scores[0], scores[-1]
    line = Text(set_cell_size(name, name_width) + "  ")
    line.append(percent(last.accuracy), "bold magenta")
    line.append(f" @ step {last.version}")
    if len(scores) > 1:
        line.append(f" ({points(first.accuracy, last.accuracy)})  ")
        line.append(sparkline([score.accuracy for score in scores], curve_width, ascii_only=ascii_only), "magenta")
    return line


def _pipeline(progress: Progress, *, ascii_only: bool) -> RenderableType:
    status = progress.status
    if status is None:
        return Text("starting", _LABEL)
    grid = _labelled()
    arrow = " -> " if ascii_only else " → "
    flow = Text()
    stages = (
        ("in flight", status.in_flight),
        ("graded", status.graded),
        ("buffered", status.buffered),
        ("trained", status.trained),
    )
    for index, (stage, groups) in enumerate(stages):
        flow.append(arrow if index else "", _LABEL).append(f"{stage} ").append(str(groups), "bold")
    grid.add_row("groups", flow)
    ended = [
        f"{groups} {_NAMES.get(outcome, outcome)}"
        for outcome, groups in progress.outcomes.items()
        if groups and outcome != "trained"
    ]
    if ended:
        grid.add_row("not trained", Text(", ".join(ended)))
    versions = f"policy {status.policy_version}, engines {status.engine_version}"
    grid.add_row("engines", Text(f"{count(status.tokens_per_second)} tokens/s   {versions}"))
    grid.add_row("now", Text(status.waiting or "nobody waits", "default" if status.waiting else _LABEL))
    return grid


def _warnings(warnings: Sequence[str], width: int) -> RenderableType:
    lines = [_one_line(f"warning: {text}", width, "yellow") for text in warnings[-_MAX_WARNINGS:]]
    if (more := len(warnings) - len(lines)) > 0:
        lines.insert(0, Text(f"{more} earlier warning{'s' if more > 1 else ''}", _LABEL))
    return Group(*lines)


def _one_line(text: str, width: int, style: str) -> Text:
    line = Text(text, style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _labelled() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=_LABEL, min_width=11, no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    return grid


def closing_table(lines: Sequence[EvalLine]) -> RenderableType:
    """Return the table of held-out sets before and after."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if index else "left", overflow="fold")
    for line in lines:
        name, before, after, change, prompts = line.cells()
        style = "green" if change.startswith("+") else "red" if change.startswith("-") else ""
        table.add_row(Text(name), before, Text(after, "bold"), Text(change, style), prompts)
    return table


def written_list(paths: Sequence[tuple[str, str]]) -> RenderableType:
    """Return the list of what was written, and what it is."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(style=_LABEL)
    for path, what in paths:
        grid.add_row(Text(f"  {path}"), what)
    return grid
