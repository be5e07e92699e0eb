"""Verifiers that stall or cannot decide, and what becomes of the prompts that they were asked about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from grpo.errors import RunFailed
from grpo.learner.simulated import SimulatedLearner
from grpo.rewards.samples import train_samples
from grpo.runtime.simulation import SimulatedGrader, simulate
from grpo.types import Grade, Prompt, Response, Ungraded
from support.fleets import Audit, fleet_job

QUICK = dict(length_median=400.0, length_sigma=0.5, prompt_tokens=4, train_base_s=2.0, load_s=1.0)


class Stalling(SimulatedGrader):
    """Never answers for the prompts whose number is divisible by ``every``."""

    every = 5

    async def grade(self, prompt: Prompt, response: Response, text: str) -> Grade:
        if int(prompt.id.rpartition("/")[2]) % self.every == 0:
            await asyncio.get_running_loop().create_future()
        return await super().grade(prompt, response, text)


def test_a_verifier_that_stalls_leaves_its_prompts_ungraded_and_they_are_given_up_in_the_end() -> None:
    job = fleet_job(simulation=QUICK, request_timeout_s=200.0, straggler_timeout_s=300.0, filter=dict(max_attempts=2))
    audit = Audit(job)
    grader = Stalling(job.engine.simulation, 0)
    simulate(job, observers=[audit], on_transition=audit.hear, grader=grader)
    audit.check_attempts()
    audit.check_groups(retries=True)
    audit.check_training()
    ungraded = [group for group, outcome, _ in audit.ended if outcome == "ungraded"]
    assert ungraded
    for group in ungraded:
        assert int(group.prompt.id.rpartition("/")[2]) % 5 == 0
        assert set(group.grades) == {Ungraded("verifier 'simulated' did not answer in 200 s")}
    given_up = [one for one in audit.transitions if one.after == "ungraded" and not one.retried]
    assert given_up
    assert [warning for warning in audit.warnings if "given up" in warning] == [
        f"prompt {one.prompt_id} is given up after 2 attempts; the last one: ungraded" for one in given_up
    ]


def test_a_verifier_that_stalls_for_every_prompt_trips_the_breaker() -> None:
    job = fleet_job(simulation=QUICK, request_timeout_s=200.0, filter=dict(ungraded_window=32))
    grader = Stalling(job.engine.simulation, 0)
    grader.every = 1
    with pytest.raises(RunFailed) as caught:
        simulate(job, grader=grader)
    assert "the last one: verifier 'simulated' did not answer in 200 s" in str(caught.value)


def test_without_a_time_limit_the_watchdog_names_the_verifier() -> None:
    job = fleet_job(simulation=QUICK, watchdog_s=600.0)
    grader = Stalling(job.engine.simulation, 0)
    grader.every = 1
    with pytest.raises(RunFailed) as caught:
        simulate(job, grader=grader)
    text = str(caught.value)
    assert "group 0 waits 6" in text and "s for 4 grades of verifier simulated" in text
    assert "trainer waits" in text and "for a full batch: 0 of 4 groups" in text


@pytest.mark.parametrize("policy", ["exclude", "zero"])
def test_ungraded_responses_are_left_out_or_count_as_zero(policy: Any) -> None:
    job = fleet_job(simulation={**QUICK, "ungraded_rate": 0.2}, filter=dict(ungraded=policy, ungraded_limit=0.9))
    audit = Audit(job)
    simulate(job, observers=[audit], on_transition=audit.hear)
    audit.check_training()
    seen: set[tuple[bool, bool]] = set()  # whether it is ungraded, and whether it counts
    for group in audit.trained:
        samples = train_samples(group, job.filter, job.objective)
        seen.update((isinstance(grade, Ungraded), one.counts) for grade, one in zip(group.grades, samples, strict=True))
    assert seen == {(False, True), (True, policy == "zero")}


def test_under_raise_the_first_ungraded_response_ends_the_run() -> None:
    job = fleet_job(simulation={**QUICK, "ungraded_rate": 0.2}, filter=dict(ungraded="raise"))
    audit = Audit(job)
    with pytest.raises(RunFailed, match="could not be graded: the simulated verifier could not decide"):
        simulate(job, observers=[audit], on_transition=audit.hear)
    audit.check_attempts()


def test_a_response_that_takes_longer_than_the_watchdog_waits_is_progress() -> None:
    slow = {**QUICK, "decode_base_s": 1.0, "length_median": 1500.0, "length_sigma": 0.0}
    job = fleet_job(groups=2, samples=2, rollouts=2, engines=1, simulation=slow, watchdog_s=300.0)
    assert simulate(job).result.steps == 2


def test_groups_over_the_limit_are_regenerated_a_bounded_number_of_times() -> None:
    job = fleet_job(
        lag=1, straggler="overtake", paced=False, filter=dict(max_attempts=2), max_groups_in_system=40,
        simulation={**QUICK, "length_sigma": 1.5}, engines=4,
    )  # fmt: skip
    audit = Audit(job)
    simulate(job, observers=[audit], on_transition=audit.hear, learner=SimulatedLearner(job.engine.simulation))
    audit.check_groups(retries=True)
    stale = [one for one in audit.transitions if one.after == "stale"]
    assert {one.attempt for one in stale} == {0, 1}
    given_up = [one.prompt_id for one in stale if not one.retried]
    assert audit.warnings == [f"prompt {name} is given up after 2 attempts; the last one: stale" for name in given_up]
