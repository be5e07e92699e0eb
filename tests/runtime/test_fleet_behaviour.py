"""What the modes and policies are for, on a simulated fleet: throughput, pacing, and no bias to short responses."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from scipy.stats import ks_2samp

from grpo.runtime.simulation import SimulationReport, simulate
from support.fleets import fleet_job

LONG_TAIL = dict(length_median=400.0, length_sigma=1.2, prompt_tokens=16, solve_alpha=2.0, solve_beta=2.0)


def run(simulation: dict[str, Any], **changes: Any) -> SimulationReport:
    shape = dict(groups=16, samples=8, rollouts=16, engines=4, slots=32, limit=16_384, buffer_groups=200)
    return simulate(fleet_job(simulation=simulation, **{**shape, **changes}))


def test_refresh_gives_at_least_twice_the_accepted_tokens_of_barrier_on_long_tailed_lengths() -> None:
    barrier, refresh = (run(LONG_TAIL, lag=4, mode=mode) for mode in ("barrier", "refresh"))
    assert refresh.accepted_tokens_per_s >= 2 * barrier.accepted_tokens_per_s


def test_static_batches_then_continuous_batching_then_in_flight_updates_each_bring_more() -> None:
    static = run({**LONG_TAIL, "batching": "static"}, lag=0, mode="barrier", slots=8)
    continuous = run(LONG_TAIL, lag=0, mode="barrier", slots=8)
    in_flight = run(LONG_TAIL, lag=4, mode="refresh", slots=8)
    rates = [one.accepted_tokens_per_s for one in (static, continuous, in_flight)]
    assert rates == sorted(rates)
    assert rates[1] > 1.1 * rates[0] and rates[2] > 1.5 * rates[1]


@pytest.mark.parametrize("lag", [2, 6])
def test_with_pacing_less_than_one_percent_of_the_tokens_is_thrown_away(lag: int) -> None:
    steady = dict(LONG_TAIL, length_sigma=0.5, train_base_s=20.0)  # the trainer is the bottleneck
    paced = run(steady, lag=lag, straggler="overtake", rollouts=30)
    cap = 3 * (lag + 1) * 16
    unpaced = run(
        steady, lag=lag, straggler="overtake", rollouts=30, paced=False, max_groups_in_system=cap, buffer_groups=cap
    )
    assert paced.stale_fraction < 0.01
    assert unpaced.stale_fraction > 0.3
    assert set(paced.lags) <= set(range(lag + 1))


def natural_lengths(count: int) -> list[int]:
    """Lengths as the engine draws them, from a generator of its own."""
    rng = random.Random(0)
    mu, sigma = math.log(LONG_TAIL["length_median"]), LONG_TAIL["length_sigma"]
    return [max(1, min(16_384, round(rng.lognormvariate(mu, sigma)))) for _ in range(count)]


def test_under_wait_the_trained_lengths_are_those_generated_and_under_overtake_they_are_not() -> None:
    drawn = natural_lengths(20_000)
    reports = {
        straggler: run(
            LONG_TAIL,
            lag=2,
            mode="refresh",
            straggler=straggler,
            stale="drop",
            rollouts=50,
            filter=dict(zero_std=False),
        )
        for straggler in ("wait", "overtake")
    }
    wait, overtake = reports["wait"], reports["overtake"]
    assert len(wait.trained_lengths) == len(overtake.trained_lengths) == 50 * 16 * 8
    assert wait.outcomes == {"trained": 800}
    assert ks_2samp(wait.trained_lengths, drawn).pvalue > 0.05  # type: ignore[attr-defined]
    assert ks_2samp(wait.trained_lengths, wait.generated_lengths).pvalue > 0.05  # type: ignore[attr-defined]
    assert ks_2samp(overtake.trained_lengths, drawn).pvalue < 0.01  # type: ignore[attr-defined]
    assert sum(overtake.trained_lengths) < 0.95 * sum(wait.trained_lengths)
    print(f"tokens/s: wait {wait.accepted_tokens_per_s:.0f}, overtake {overtake.accepted_tokens_per_s:.0f}")
