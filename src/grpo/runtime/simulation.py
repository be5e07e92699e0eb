"""Rehearse a job on a simulated fleet, under a virtual clock: hours of fleet time in seconds, the same for a seed.

The controller, the publication modes, the ledger and the buffer are the real ones; engines, learner, prompts and grades
are simulated from :class:`~grpo.plan.job.SimulationSpec`. Nothing that comes out is a measurement.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo.data.source import PromptSource
from grpo.engine.simulated import Fault, SimulatedEngine
from grpo.engine.virtual_clock import run_virtual
from grpo.learner.simulated import SimulatedLearner
from grpo.obs.observer import Observer, Observers
from grpo.obs.rows import StepRow
from grpo.plan.job import JobSpec, SimulationSpec
from grpo.runtime.controller import Controller, as_run_error
from grpo.runtime.ledger import Transition
from grpo.types import FinishReason, Grade, Graded, Group, Prompt, Response, RunResult, Ungraded

LENGTH_BINS = (256, 1024, 4096, 16384)
"""Upper edges of the length bins of waste, in tokens; the last bin is open."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What a simulated run came to. Times are virtual seconds; tokens are response tokens.

    Attributes:
        accepted_tokens: of groups that were trained. generated_tokens: of all groups that were graded.
        stale_tokens: of groups that were over the lag limit, by length bin of the response.
        lags: groups trained, by lag.
        trained_lengths, generated_lengths: of every response trained, and of every response graded.
        trainer_wait: fraction of the time that the trainer waited for groups.
        engine_busy: mean fraction of the time that an engine decoded.
    """

    result: RunResult
    seconds: float
    accepted_tokens: int
    generated_tokens: int
    stale_tokens: Mapping[str, int]
    lags: Mapping[int, int]
    outcomes: Mapping[str, int]
    trained_lengths: tuple[int, ...]
    generated_lengths: tuple[int, ...]
    trainer_wait: float
    engine_busy: float

    @property
    def accepted_tokens_per_s(self) -> float:
        """Response tokens trained per virtual second."""
        return self.accepted_tokens / self.seconds

    @property
    def stale_fraction(self) -> float:
        """Fraction of the generated response tokens that was thrown away as stale."""
        return sum(self.stale_tokens.values()) / max(1, self.generated_tokens)


class SimulatedGrader:
    """Right or wrong by a coin of each prompt's own bias; sometimes ungraded."""

    def __init__(self, spec: SimulationSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed

    async def grade(self, prompt: Prompt, response: Response, text: str) -> Grade:
        """Wait ``grade_s`` seconds."""
        if self._spec.grade_s:
            await asyncio.sleep(self._spec.grade_s)
        bias = random.Random(f"{self._seed}/{prompt.id}").betavariate(self._spec.solve_alpha, self._spec.solve_beta)
        coin = random.Random(f"{self._seed}/{prompt.id}/{response.request_id}")
        if coin.random() < self._spec.ungraded_rate:
            return Ungraded("the simulated verifier could not decide")
        right = response.finish is not FinishReason.LENGTH and coin.random() < bias
        return Graded(float(right))


class Tally(Observer):
    """Adds up what a :class:`SimulationReport` says."""

    def __init__(self) -> None:
        self.accepted_tokens = 0
        self.generated_tokens = 0
        self.stale_tokens: Counter[str] = Counter()
        self.lags: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.trained_lengths: list[int] = []
        self.generated_lengths: list[int] = []
        self.wait_s = 0.0

    def group_ended(self, group: Group, outcome: str, lag: int | None) -> None:
        lengths = [len(response.tokens) for response in group.responses]
        self.outcomes[outcome] += 1
        self.generated_tokens += sum(lengths)
        self.generated_lengths += lengths
        if outcome == "trained":
            self.accepted_tokens += sum(lengths)
            self.trained_lengths += lengths
            self.lags[lag or 0] += 1
        elif outcome == "stale":
            for length in lengths:
                self.stale_tokens[length_bin(length)] += length

    def step(self, row: StepRow) -> None:
        self.wait_s += row.time.wait_s


def length_bin(length: int) -> str:
    """Return the name of the bin that a response of ``length`` tokens falls into."""
    for edge in LENGTH_BINS:
        if length <= edge:
            return f"<={edge}"
    return f">{LENGTH_BINS[-1]}"


def simulate(
    job: JobSpec,
    *,
    prompts: int = 10_000,
    faults: Mapping[str, Sequence[Fault]] | None = None,
    learner: SimulatedLearner | None = None,
    observers: Sequence[Observer] = (),
    on_transition: Callable[[Transition], None] = lambda transition: None,
) -> SimulationReport:
    """Run ``job`` on a simulated fleet and return what it came to.

    Args:
        prompts: in the simulated data set.
        faults: planned faults by engine name, of the first engine of that name only.
        learner: to replace the one that the job's assumptions give.
        observers, on_transition: as for a real run.

    Raises RunFailed as a real run would.
    """
    try:
        return run_virtual(_simulate(job, prompts, dict(faults or {}), learner, observers, on_transition))
    except BaseException as error:
        known = as_run_error(error)
        raise known from known.__cause__


async def _simulate(
    job: JobSpec,
    prompts: int,
    faults: dict[str, Sequence[Fault]],
    learner: SimulatedLearner | None,
    observers: Sequence[Observer],
    on_transition: Callable[[Transition], None],
) -> SimulationReport:
    spec = job.engine.simulation
    engines: list[SimulatedEngine] = []

    def make_engine(name: str) -> SimulatedEngine:
        engine = SimulatedEngine(
            name,
            spec,
            running_requests=job.engine.running_requests,
            context=job.batch.max_context_length,
            faults=tuple(faults.pop(name, ())),
        )
        engines.append(engine)
        return engine

    tally = Tally()
    controller = Controller(
        job,
        make_engine=make_engine,
        learner=learner or SimulatedLearner(spec),
        source=PromptSource(simulated_prompts(prompts, spec), seed=job.data.seed, shuffle=job.data.shuffle),
        evals={},
        grader=SimulatedGrader(spec, job.sampling.seed),
        observer=Observers([tally, *observers]),
        decode=lambda tokens: "",
        stop_token_ids=(),
        on_transition=on_transition,
        status_interval_s=60.0,
    )
    result = await controller.run()
    seconds = result.seconds
    return SimulationReport(
        result=result,
        seconds=seconds,
        accepted_tokens=tally.accepted_tokens,
        generated_tokens=tally.generated_tokens,
        stale_tokens=dict(tally.stale_tokens),
        lags=dict(sorted(tally.lags.items())),
        outcomes=dict(tally.outcomes),
        trained_lengths=tuple(tally.trained_lengths),
        generated_lengths=tuple(tally.generated_lengths),
        trainer_wait=tally.wait_s / seconds,
        engine_busy=sum(engine.busy_s for engine in engines) / (seconds * len(engines)),
    )


def simulated_prompts(count: int, spec: SimulationSpec) -> list[Prompt]:
    """Return ``count`` prompts of ``spec.prompt_tokens`` tokens each."""
    tokens = (0,) * spec.prompt_tokens
    return [Prompt(f"simulated/{number}", tokens, "", "", "simulated", "simulated") for number in range(count)]
