"""Publication modes, pacing and length bias on a simulated fleet: the tables of docs/performance.md.

    python benchmarks/fleet_modes.py

Everything here is SIMULATED, under a virtual clock: the controller, the publication modes, the buffer and the ledger
are the real ones; engines, learner, prompts and rewards are made up from the assumptions that are printed. Only ratios
between rows mean something. The same seed gives the same table on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scipy.stats import ks_2samp

from grpo.plan.job import JobSpec
from grpo.plan.resolve import plan
from grpo.runtime.rehearsal import simulated
from grpo.runtime.simulation import SimulationReport, simulate

ENGINES, SLOTS, GROUPS, SAMPLES, LIMIT = 8, 32, 32, 8, 16384
EXAMPLE = Path(__file__).parents[1] / "configs" / "examples" / "cpu.toml"


def base_job() -> JobSpec:
    """Return the job that every row varies: 8 engines of 32 slots, collections of 32 groups of 8 responses."""
    return plan(EXAMPLE).job


def variant(
    *, lag: int, mode: str, collections: int = 24, sigma: float = 1.2, median: float = 800.0, **changes: Any
) -> JobSpec:
    """Return the base job with a lag limit and a mode; ``changes`` are fields of ``sync`` or of the simulation."""
    job = base_job()
    batch = dict(
        num_rollouts=collections,
        rollout_batch_size=GROUPS,
        samples_per_prompt=SAMPLES,
        global_batch_size=GROUPS * SAMPLES,
        steps_per_collection=1,
        max_prompt_length=512,
        max_response_length=LIMIT,
        max_context_length=LIMIT + 512,
    )
    simulation = dict(length_median=median, length_sigma=sigma, solve_alpha=2.0, solve_beta=2.0)
    sync = dict(
        asynchronous=lag > 0,
        publication_mode=mode,
        max_policy_lag=lag,
        max_groups_in_system=(lag + 1) * GROUPS,
        buffer_groups=(lag + 1) * GROUPS,
        drain_timeout_s=1e5,
        update_timeout_s=1e5,
        request_timeout_s=1e5,
        straggler_timeout_s=1e5,
        watchdog_s=1e6,
    )
    for name, value in changes.items():
        (sync if name in type(job.sync).model_fields else simulation)[name] = value
    engine = dict(count=ENGINES, running_requests=SLOTS, simulation=job.engine.simulation.model_copy(update=simulation))
    return simulated(
        job.model_copy(
            update={
                "batch": job.batch.model_copy(update=batch),
                "sync": job.sync.model_copy(update=sync),
                "engine": job.engine.model_copy(update=engine),
            }
        )
    )


def table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def modes() -> None:
    """Print accepted tokens per second of every mode against barrier."""
    reports = {mode: simulate(variant(lag=4, mode=mode)) for mode in ("barrier", "engine_drain", "refresh")}
    base = reports["barrier"].accepted_tokens_per_s
    table(
        f"Modes: lag limit 4, {ENGINES} engines x {SLOTS} slots, log-normal lengths (median 800, sigma 1.2)",
        ("mode", "accepted tokens/s", "against barrier", "trainer waits", "stale", "lag: groups"),
        [
            (
                f"`{mode}`",
                f"{one.accepted_tokens_per_s:,.0f}",
                f"{one.accepted_tokens_per_s / base:.2f}x",
                f"{one.trainer_wait:.0%}",
                f"{one.stale_fraction:.1%}",
                ", ".join(f"{lag}: {groups}" for lag, groups in one.lags.items()),
            )
            for mode, one in reports.items()
        ],
    )


def ladder() -> None:
    """Print what each step from a static batch to in-flight updates brings."""
    steps = {
        "static batch, synchronous": variant(lag=0, mode="barrier", batching="static"),
        "continuous batching, synchronous": variant(lag=0, mode="barrier"),
        "continuous, asynchronous, barrier": variant(lag=4, mode="barrier"),
        "in-flight updates (refresh)": variant(lag=4, mode="refresh"),
    }
    reports = {name: simulate(job) for name, job in steps.items()}
    base = next(iter(reports.values())).accepted_tokens_per_s
    table(
        "Ladder, at equal hardware",
        ("", "accepted tokens/s", "against the first"),
        [
            (name, f"{one.accepted_tokens_per_s:,.0f}", f"{one.accepted_tokens_per_s / base:.2f}x")
            for name, one in reports.items()
        ],
    )


def pacing() -> None:
    """Print the response tokens thrown away as stale, with pacing and without."""
    rows = []
    for lag in (2, 6):
        for paced in (True, False):
            cap = (lag + 1) * GROUPS if paced else 3 * (lag + 1) * GROUPS
            # A trainer that is the bottleneck: without pacing, generation runs ahead of it.
            one = simulate(
                variant(
                    lag=lag, mode="refresh", straggler="overtake", paced=paced, sigma=0.5, median=400.0,
                    max_groups_in_system=cap, buffer_groups=cap, train_base_s=20.0, collections=40,
                )
            )  # fmt: skip
            rows.append(
                (
                    f"{lag}",
                    "yes" if paced else "no",
                    f"{one.stale_fraction:.2%}",
                    f"{one.accepted_tokens_per_s:,.0f}",
                    f"{one.trainer_wait:.0%}",
                )
            )
    table(
        "Pacing: stale response tokens in a steady run (`overtake`, sigma 0.5, the trainer is the bottleneck)",
        ("lag limit", "paced", "stale tokens", "accepted tokens/s", "trainer waits"),
        rows,
    )


def bias() -> None:
    """Print whether the lengths that are trained are those that are generated, and what that costs."""
    rows = []
    for straggler in ("wait", "overtake"):
        one = simulate(variant(lag=2, mode="refresh", straggler=straggler, stale="drop", collections=60))
        test = ks_2samp(one.trained_lengths, natural(one))
        rows.append(
            (
                f"`{straggler}`",
                f"{mean(one.trained_lengths):,.0f}",
                f"{mean(natural(one)):,.0f}",
                f"{test.statistic:.3f}",  # type: ignore[attr-defined]
                f"{test.pvalue:.2g}",  # type: ignore[attr-defined]
                f"{one.stale_fraction:.1%}",
                f"{one.accepted_tokens_per_s:,.0f}",
            )
        )
    table(
        "Length bias: lag limit 2, stale groups dropped",
        ("straggler", "mean trained", "mean generated", "KS distance", "p", "stale tokens", "accepted tokens/s"),
        rows,
    )


def natural(report: SimulationReport) -> tuple[int, ...]:
    """Return the lengths of all that was generated."""
    return report.generated_lengths


def mean(values: tuple[int, ...]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def main() -> None:
    """Print every table."""
    print(__doc__)
    modes()
    ladder()
    pacing()
    bias()


if __name__ == "__main__":
    main()
