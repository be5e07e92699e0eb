"""What a console knows of a run: one immutable value, replaced at each event; a drawing thread needs no lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from grpo.obs.rows import OUTCOMES, PipelineStatus, StepRow
from grpo.plan.job import JobSpec
from grpo.types import EvalScore, RunResult

_RATE_WINDOW = 20
"""Steps over which the time of a step is averaged; early steps are slow (caches, compilation) and short ones few."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The run so far.

    Attributes:
        rewards: mean reward of each step row, None where nothing was graded.
        evals: scores of each held-out set, in order of time.
        outcomes: groups ended since this process started the run, by how.
        clock: (step, elapsed seconds) at the start of the rate window and after each step in it.
        warnings: all of them.
    """

    job: JobSpec
    row: StepRow | None = None
    rewards: tuple[float | None, ...] = ()
    evals: Mapping[str, tuple[EvalScore, ...]] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    clock: tuple[tuple[int, float], ...] = ()
    status: PipelineStatus | None = None
    warnings: tuple[str, ...] = ()
    result: RunResult | None = None

    @property
    def step(self) -> int:
        """Optimizer steps applied."""
        return max(self.row.step if self.row else 0, self.status.policy_version if self.status else 0)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.job.batch.total_steps

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds from the last row to the last step, at the rate of the recent steps; None before a row."""
        if not self.clock:
            return None
        (first, began), (last, now) = self.clock[0], self.clock[-1]
        return (now - began) / (last - first) * (self.total_steps - last)

    def with_row(self, row: StepRow) -> Progress:
        """Return the progress after a step."""
        before = self.clock or ((row.step - 1, row.time.elapsed_s - row.time.interval_s),)
        return replace(
            self,
            row=row,
            rewards=(*self.rewards, row.rollouts.reward_mean),
            outcomes={outcome: count + row.outcomes.get(outcome, 0) for outcome, count in self.outcomes.items()},
            clock=(*before[-_RATE_WINDOW:], (row.step, row.time.elapsed_s)),
        )

    def with_score(self, score: EvalScore) -> Progress:
        """Return the progress after an evaluation."""
        return replace(self, evals={**self.evals, score.name: (*self.evals.get(score.name, ()), score)})

    def with_status(self, status: PipelineStatus) -> Progress:
        """Return the progress with a newer moment of the pipeline."""
        return replace(self, status=status)

    def with_warning(self, text: str) -> Progress:
        """Return the progress with one more warning."""
        return replace(self, warnings=(*self.warnings, text))

    def with_result(self, result: RunResult) -> Progress:
        """Return the progress at the end."""
        return replace(self, result=result)
