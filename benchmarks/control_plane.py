"""What one group costs the control plane, on one core, as the fleet grows.

    python benchmarks/control_plane.py [--samples 4] [--repeats 3]

A whole asynchronous run on simulated engines of 64 slots each, under a virtual clock, so that nothing waits: admission,
placement, generation, grading, filter, buffer, ledger, publication (refresh), batches and metrics are the real ones.
Responses are short, because the content of responses is not what is measured. A group completion is a group whose
last response was graded. CPU seconds are of this process. ``everything`` includes the simulated engines, learner and
grader. ``engines`` is what the engines alone cost on as many requests, without a controller; ``control plane`` is the
difference, and what the target is about. ``with audit`` is everything, and writing ledger.jsonl. The best of the
repeats counts, because other load can only slow a run down.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from grpo.engine.simulated import SimulatedEngine
from grpo.engine.virtual_clock import run_virtual
from grpo.plan.job import JobSpec
from grpo.plan.resolve import plan
from grpo.runtime.audit import LedgerFile
from grpo.runtime.garbage import collected_rarely
from grpo.runtime.rehearsal import simulated
from grpo.runtime.simulation import simulate
from grpo.types import SampleRequest, SamplingParams

TARGET = 3000.0
SLOTS = 64
FLEETS = (16, 64, 256)
EXAMPLE = Path(__file__).parents[1] / "configs" / "examples" / "cpu.toml"


def job_of(engines: int, samples: int, completions: int) -> JobSpec:
    """Return a job that keeps the slots of ``engines`` full: the system holds two collections, one in training."""
    job = plan(EXAMPLE).job
    groups = engines * SLOTS // samples
    batch = dict(
        num_rollouts=max(3, completions // groups),
        rollout_batch_size=groups,
        samples_per_prompt=samples,
        global_batch_size=groups * samples,
        steps_per_collection=1,
        max_prompt_length=16,
        max_response_length=64,
        max_context_length=96,
    )
    sync = dict(
        asynchronous=True,
        publication_mode="refresh",
        max_policy_lag=1,
        max_groups_in_system=2 * groups,
        buffer_groups=2 * groups,
        watchdog_s=1e6,
    )
    spec = dict(length_median=16.0, length_sigma=0.5, prompt_tokens=4, solve_alpha=5.0, solve_beta=5.0)
    engine = dict(count=engines, running_requests=SLOTS, simulation=job.engine.simulation.model_copy(update=spec))
    return simulated(
        job.model_copy(
            update={
                "batch": job.batch.model_copy(update=batch),
                "sync": job.sync.model_copy(update=sync),
                "engine": job.engine.model_copy(update=engine),
                "filter": job.filter.model_copy(update={"zero_std": False}),
            }
        )
    )


def run_job(job: JobSpec, folder: Path | None) -> int:
    """Run ``job`` and return its group completions."""
    if folder is None:
        report = simulate(job)
    else:
        file = LedgerFile(folder / f"{time.monotonic_ns()}.jsonl")
        report = simulate(job, observers=[file], on_transition=file.write)
    return sum(count for outcome, count in report.outcomes.items() if outcome != "cancelled")


async def engines_alone(job: JobSpec, groups: int) -> None:
    """Generate ``groups`` groups on the job's engines, each slot always taken, without a controller."""
    spec, batch = job.engine.simulation, job.batch
    engines = [
        SimulatedEngine(f"engine-{n}", spec, running_requests=SLOTS, context=batch.max_context_length)
        for n in range(job.engine.count)
    ]
    for engine in engines:
        await engine.start(0)
    rounds = groups * batch.samples_per_prompt // (len(engines) * SLOTS)

    async def client(engine: SimulatedEngine, slot: int) -> None:
        for number in range(rounds):
            name = f"{engine.name}.{slot}.{number}"
            params = SamplingParams(max_tokens=batch.max_response_length, seed=hash(name) & (1 << 62) - 1)
            await engine.generate(SampleRequest(name, (0,) * 4, params))

    with collected_rarely():  # as in a run
        await asyncio.gather(*(client(engine, slot) for engine in engines for slot in range(SLOTS)))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that ``work`` takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print the table; exit with 1 if the control plane of the largest fleet is under the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4, help="responses of a group")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--completions", type=int, default=20_000, help="groups of a run, about")
    args = parser.parse_args()
    print(f"groups of {args.samples} responses, {SLOTS} slots an engine, best of {args.repeats}\n")
    print("microseconds of CPU a group:\n")
    print("| engines | in flight | groups | everything | engines | control plane | with audit | groups/s | all in |")
    print("|---|---|---|---|---|---|---|---|---|")
    jobs = {engines: job_of(engines, args.samples, args.completions) for engines in FLEETS}
    best: dict[tuple[int, str], float] = {}
    done: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.repeats):
            for engines, job in jobs.items():
                works: dict[str, Callable[[], object]] = {
                    "plain": lambda job=job, engines=engines: done.__setitem__(engines, run_job(job, None)),
                    "audit": lambda job=job: run_job(job, Path(scratch)),
                    "engines": lambda job=job, engines=engines: run_virtual(engines_alone(job, done[engines])),
                }
                for name, work in works.items():
                    key = engines, name
                    best[key] = min(best.get(key, 1e9), cpu_seconds(work))
    for engines in FLEETS:
        cost = {name: 1e6 * best[engines, name] / done[engines] for name in ("plain", "engines", "audit")}
        control = cost["plain"] - cost["engines"]
        print(
            f"| {engines} | {engines * SLOTS:,} | {done[engines]:,} | {cost['plain']:.0f} | {cost['engines']:.0f} "
            f"| {control:.0f} | {cost['audit']:.0f} | {1e6 / control:,.0f} | {1e6 / cost['plain']:,.0f} |"
        )
    if 1e6 / control < TARGET:
        raise SystemExit(f"{1e6 / control:,.0f} groups/s are under {TARGET:,.0f}")


if __name__ == "__main__":
    main()
