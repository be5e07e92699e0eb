"""Rehearse a job on a simulated fleet, under a virtual clock: hours of fleet time in seconds, the same for a seed.

The controller, the publication modes, the ledger and the buffer are the real ones; engines, learner, prompts and grades
are simulated from :class:`~grpo.plan.job.SimulationSpec`. Nothing that comes out is a measurement.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.data.source import PromptSource
from grpo.engine.simulated import Fault, SimulatedEngine
from grpo.engine.virtual_clock import run_virtual
from grpo.learner.simulated import SimulatedLearner
from grpo.obs.observer import Observer, Observers
from grpo.obs.rows import StepRow
from grpo.plan.job import JobSpec, SimulationSpec
from grpo.rewards.grader import Grades
from grpo.runtime.controller import Controller, as_run_error
from grpo.runtime.ledger import ENDS, Transition
from grpo.types import FinishReason, Grade, Graded, Group, Prompt, Response, RunResult, Ungraded

LENGTH_BINS = (256, 1024, 4096, 16384)
"""Upper edges of the length bins of waste, in tokens; the last bin is open."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What a simulated run came to. Times are virtual seconds; tokens are response tokens.

    Attributes:
        seconds: from the first group admitted to the last optimizer step published.
        accepted_tokens: of groups that were trained. generated_tokens: of all groups that were graded.
        wasted_tokens: of groups that were not trained, by outcome.
        stale_tokens: the stale part of it, by length bin of the response.
        lags: groups trained, by lag.
        outcomes: attempts that ended, by outcome.
        trained_lengths, generated_lengths: of every response trained, and of every response graded.
        trainer_wait: fraction of the time that the trainer waited for groups.
        engine_busy: mean fraction of the time that an engine decoded.
    """

    result: RunResult
    seconds: float
    accepted_tokens: int
    generated_tokens: int
    wasted_tokens: Mapping[str, int]
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

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, labelled as simulated."""
        return {
            "simulated": True,
            "optimizer_steps": self.result.steps,
            "seconds": round(self.seconds, 3),
            "accepted_tokens_per_s": round(self.accepted_tokens_per_s, 3),
            "accepted_tokens": self.accepted_tokens,
            "generated_tokens": self.generated_tokens,
            "trainer_wait_fraction": round(self.trainer_wait, 4),
            "engine_busy_fraction": round(self.engine_busy, 4),
            "lag_groups": {str(lag): groups for lag, groups in self.lags.items()},
            "outcomes": dict(sorted(self.outcomes.items())),
            "wasted_tokens": dict(sorted(self.wasted_tokens.items())),
            "stale_tokens_by_length": dict(sorted(self.stale_tokens.items())),
        }


RIGHT, WRONG = Graded(1.0), Graded(0.0)
UNGRADED = Ungraded("the simulated verifier could not decide")


class SimulatedGrader:
    """Right or wrong by a coin of each prompt's own bias; sometimes ungraded."""

    def __init__(self, spec: SimulationSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._bias: dict[str, float] = {}

    async def grade(self, prompt: Prompt, response: Response, text: str) -> Grade:
        """Wait ``grade_s`` seconds."""
        if self._spec.grade_s:
            await asyncio.sleep(self._spec.grade_s)
        bias = self._bias.get(prompt.id)
        if bias is None:
            rng = random.Random(f"{self._seed}/{prompt.id}")
            bias = self._bias[prompt.id] = rng.betavariate(self._spec.solve_alpha, self._spec.solve_beta)
        # Two fair coins from one hash: seeding a generator for each response would be most of the simulation's cost.
        coins = hashlib.blake2b(f"{self._seed}/{prompt.id}/{response.request_id}".encode(), digest_size=8).digest()
        if int.from_bytes(coins[:4], "big") < self._spec.ungraded_rate * 2**32:
            return UNGRADED
        right = response.finish is not FinishReason.LENGTH and int.from_bytes(coins[4:], "big") < bias * 2**32
        return RIGHT if right else WRONG


class Tally(Observer):
    """Adds up what a :class:`SimulationReport` says."""

    def __init__(self) -> None:
        self._accepted_tokens = 0
        self._generated_tokens = 0
        self._wasted_tokens: Counter[str] = Counter()
        self._stale_tokens: Counter[str] = Counter()
        self._lags: Counter[int] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._trained_lengths: list[int] = []
        self._generated_lengths: list[int] = []
        self._wait_s = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def seconds(self) -> float:
        """From the first group admitted to the last optimizer step published."""
        return max(self._last_s - (self._first_s or 0.0), 1e-9)

    def hear(self, transition: Transition) -> None:
        """Take a transition of the ledger."""
        if self._first_s is None:
            self._first_s = asyncio.get_running_loop().time()
        if transition.after in ENDS:
            self._outcomes[transition.after.value] += 1

    def group_ended(self, group: Group, outcome: str, lag: int | None) -> None:
        lengths = [len(response.tokens) for response in group.responses]
        tokens = sum(lengths)
        self._generated_tokens += tokens
        self._generated_lengths += lengths
        if outcome == "trained":
            self._accepted_tokens += tokens
            self._trained_lengths += lengths
            self._lags[lag or 0] += 1
            return
        self._wasted_tokens[outcome] += tokens
        if outcome == "stale":
            for length in lengths:
                self._stale_tokens[length_bin(length)] += length

    def step(self, row: StepRow) -> None:
        self._wait_s += row.time.wait_s
        self._last_s = asyncio.get_running_loop().time()

    def report(self, result: RunResult, *, busy_fraction: float) -> SimulationReport:
        """Return the sums as a report."""
        return SimulationReport(
            result=result,
            seconds=self.seconds,
            accepted_tokens=self._accepted_tokens,
            generated_tokens=self._generated_tokens,
            wasted_tokens=dict(self._wasted_tokens),
            stale_tokens=dict(self._stale_tokens),
            lags=dict(sorted(self._lags.items())),
            outcomes=dict(self._outcomes),
            trained_lengths=tuple(self._trained_lengths),
            generated_lengths=tuple(self._generated_lengths),
            trainer_wait=self._wait_s / self.seconds,
            engine_busy=busy_fraction,
        )


def length_bin(length: int) -> str:
    """Return the name of the bin that a response of ``length`` tokens falls into."""
    for edge in LENGTH_BINS:
        if length <= edge:
            return f"<={edge}"
    return f">{LENGTH_BINS[-1]}"


@dataclass(frozen=True)
class Rig:
    """What a rehearsal replaces or adds; the rest follows from the job.

    Attributes:
        prompts: in the simulated data set.
        evals: held-out prompts by set.
        faults: planned faults by engine name, of the first engine of that name only.
        engine, learner, grader: instead of the simulated ones.
        observers, on_transition: as for a real run.
    """

    prompts: int = 10_000
    evals: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    faults: Mapping[str, Sequence[Fault]] = field(default_factory=dict)
    engine: Callable[..., SimulatedEngine] = SimulatedEngine
    learner: SimulatedLearner | None = None
    grader: Grades | None = None
    observers: Sequence[Observer] = ()
    on_transition: Callable[[Transition], None] = lambda transition: None


def simulate(job: JobSpec, rig: Rig | None = None, **replaced: Any) -> SimulationReport:
    """Run ``job`` on a simulated fleet and return what it came to.

    Args:
        rig: what to replace; or its attributes, as keywords.

    Raises RunFailed as a real run would.
    """
    try:
        return run_virtual(_simulate(job, replace(rig or Rig(), **replaced)))
    except BaseException as error:
        known = as_run_error(error)
        raise known from known.__cause__


async def _simulate(job: JobSpec, rig: Rig) -> SimulationReport:
    spec = job.engine.simulation
    faults = dict(rig.faults)
    engines: list[SimulatedEngine] = []
    tally = Tally()

    def make_engine(name: str) -> SimulatedEngine:
        engine = rig.engine(
            name,
            spec,
            running_requests=job.engine.running_requests,
            context=job.batch.max_context_length,
            faults=tuple(faults.pop(name, ())),
        )
        engines.append(engine)
        return engine

    def on_transition(transition: Transition) -> None:
        tally.hear(transition)
        rig.on_transition(transition)

    controller = Controller(
        job,
        make_engine=make_engine,
        learner=rig.learner or SimulatedLearner(spec),
        source=PromptSource(simulated_prompts(rig.prompts, spec), seed=job.data.seed, shuffle=job.data.shuffle),
        evals=rig.evals,
        grader=rig.grader or SimulatedGrader(spec, job.sampling.seed),
        observer=Observers([tally, *rig.observers]),
        decode=lambda tokens: "",
        stop_token_ids=(),
        on_transition=on_transition,
        status_interval_s=60.0,
    )
    result = await controller.run()
    busy_s = sum(engine.busy_s for engine in engines)
    return tally.report(result, busy_fraction=busy_s / (tally.seconds * job.engine.count))


def simulated_prompts(count: int, spec: SimulationSpec) -> list[Prompt]:
    """Return ``count`` prompts of ``spec.prompt_tokens`` tokens each."""
    tokens = (0,) * spec.prompt_tokens
    return [Prompt(f"simulated/{number}", tokens, "", "", "simulated", "simulated") for number in range(count)]
