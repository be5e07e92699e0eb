"""What a run says last: each held-out set before and after, and where everything was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo.obs.progress import Progress
from grpo.obs.text import percent, points
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.types import EvalScore, RunResult

HEADINGS = ("held-out set", "before", "after", "change", "prompts")


@dataclass(frozen=True, slots=True)
class EvalLine:
    """One line of the closing table, as text in the order of :data:`HEADINGS`."""

    name: str
    before: str
    after: str
    change: str
    prompts: str

    def cells(self) -> tuple[str, ...]:
        """Return the cells from left to right."""
        return self.name, self.before, self.after, self.change, self.prompts


def eval_lines(progress: Progress) -> list[EvalLine]:
    """Return a line for each held-out set, and one for the mean over all prompts when there are several."""
    lines = [_eval_line(name, scores) for name, scores in progress.evals.items()]
    result = progress.result
    if len(lines) > 1 and result is not None and result.eval_after is not None:
        prompts = str(sum(scores[-1].prompts for scores in progress.evals.values()))
        before, after = result.eval_before, result.eval_after
        change = "" if before is None else points(before, after)
        lines.append(EvalLine("all prompts", percent(before), percent(after), change, prompts))
    return lines


def _eval_line(name: str, scores: tuple[EvalScore, ...]) -> EvalLine:
    first, last = scores[0], scores[-1]
    if first.version == last.version:
        return EvalLine(name, "-", _at_step(last), "", str(last.prompts))
    return EvalLine(name, _at_step(first), _at_step(last), points(first.accuracy, last.accuracy), str(last.prompts))


def _at_step(score: EvalScore) -> str:
    return f"{percent(score.accuracy)} @ step {score.version}"


def written(job: JobSpec, result: RunResult) -> list[tuple[str, str]]:
    """Return (path, what it is) of everything that the run wrote; paths under the run's folder are relative to it."""
    root = Path(result.output_root)
    paths = RunPaths(root)
    candidates = (
        (paths.metrics, "a row a step and evaluation"),
        (paths.rollouts, "captured groups"),
        (paths.checkpoints, "to resume from"),
        (Path(job.output.hf_dir), "the trained model, for transformers"),
        (paths.receipt, "what is needed to repeat the run"),
        (paths.ledger, "what happened to every group"),
        (paths.logs, "logs"),
    )
    return [(_shown(path, root), what) for path, what in candidates if path.exists()]


def _shown(path: Path, root: Path) -> str:
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return f"{name}/" if path.is_dir() else name
