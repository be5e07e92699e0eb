"""What happens when something breaks: each fault ends as documented, and the ledger loses nothing."""

from __future__ import annotations

import re

import pytest

from grpo.engine.simulated import Fault
from grpo.errors import RunFailed
from grpo.learner.simulated import SimulatedLearner
from grpo.runtime.simulation import simulate
from support.fleets import Audit, fleet_job

QUICK = dict(length_median=400.0, length_sigma=0.5, prompt_tokens=4, train_base_s=2.0, load_s=1.0)


def failure(job, audit: Audit | None = None, **kwargs) -> RunFailed:
    """Return the error that the simulated run ends with."""
    audit = audit or Audit(job)
    with pytest.raises(RunFailed) as caught:
        simulate(job, observers=[audit], on_transition=audit.hear, **kwargs)
    audit.check_attempts()  # also a failed run leaves nothing in flight
    return caught.value


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
@pytest.mark.parametrize("kind", ["die", "garbage"])
def test_a_broken_engine_is_replaced_and_no_prompt_is_lost(mode: str, kind) -> None:
    job = fleet_job(mode=mode, failure="replace", simulation=QUICK)
    audit = Audit(job)
    simulate(job, faults={"engine-1": [Fault(kind, 12.0)]}, observers=[audit], on_transition=audit.hear)
    audit.check_attempts()
    audit.check_groups(retries=True)
    audit.check_training()
    assert len(audit.warnings) == 1
    assert audit.warnings[0].startswith("engine-1: the engine failed: ")
    assert audit.warnings[0].endswith("; replacing it")
    retried = {one.group_id for one in audit.transitions if one.after == "failed" and one.retried}
    assert retried, "the fault hit nothing: the test is too gentle"
    assert retried <= {group.group_id for group, _, _ in audit.ended}
    # The replacement works: groups are sampled on it at versions that the first engine never served.
    assert max(group.min_version for group in audit.trained) >= 3


def test_a_dropped_engine_is_not_missed() -> None:
    job = fleet_job(failure="drop", simulation=QUICK)
    audit = Audit(job)
    simulate(job, faults={"engine-0": [Fault("die", 12.0)]}, observers=[audit], on_transition=audit.hear)
    audit.check_training()
    assert audit.warnings == ["engine-0: the engine failed: engine-0: the simulated engine died; going on without it"]


def test_dropping_the_last_engine_ends_the_run() -> None:
    job = fleet_job(failure="drop", engines=1, simulation=QUICK)
    error = failure(job, faults={"engine-0": [Fault("die", 12.0)]})
    assert str(error) == ("engine-0: the engine failed: engine-0: the simulated engine died; it was the last one")


def test_by_default_a_broken_engine_ends_the_run_and_says_what_to_do() -> None:
    error = failure(fleet_job(simulation=QUICK), faults={"engine-1": [Fault("die", 12.0)]})
    assert str(error) == (
        "engine-1: the engine failed: engine-1: the simulated engine died. See its log, or set core.engine_failure."
    )


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_an_engine_that_hangs_is_replaced_after_the_request_timeout(mode: str) -> None:
    job = fleet_job(mode=mode, failure="replace", simulation=QUICK, request_timeout_s=300.0)
    audit = Audit(job)
    simulate(job, faults={"engine-0": [Fault("hang", 12.0)]}, observers=[audit], on_transition=audit.hear)
    audit.check_training()
    assert "had no answer after 300 s" in audit.warnings[0]


def test_garbage_never_reaches_the_learner() -> None:
    error = failure(fleet_job(simulation=QUICK), faults={"engine-0": [Fault("garbage", 0.0)]})
    assert "has a log-probability that is positive or not finite" in str(error)


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_an_engine_that_acknowledges_a_wrong_version_never_admits_again(mode: str) -> None:
    job = fleet_job(mode=mode, failure="replace", simulation=QUICK)
    audit = Audit(job)
    simulate(job, faults={"engine-0": [Fault("wrong_version", 0.0)]}, observers=[audit], on_transition=audit.hear)
    audit.check_training()
    assert [re.sub(r"version \d", "version N", warning) for warning in audit.warnings] == [
        "engine-0: the engine failed: engine-0: serves version N after version N was loaded. "
        "The engine acknowledged an update that it did not make; see its log.; replacing it"
    ]


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_an_update_over_its_deadline_ends_the_run(mode: str) -> None:
    job = fleet_job(mode=mode, simulation=QUICK, update_timeout_s=60.0)
    error = failure(job, faults={"engine-0": [Fault("stuck_load", 0.0)]})
    assert "the load of a weight update took more than 60 s" in str(error)
    assert "core.engine_update_timeout" in str(error)


@pytest.mark.parametrize("mode", ["barrier", "engine_drain"])
def test_a_drain_over_its_deadline_ends_the_run(mode: str) -> None:
    job = fleet_job(mode=mode, simulation={**QUICK, "length_median": 2000.0, "decode_base_s": 1.0}, drain_timeout_s=5.0)
    error = failure(job)
    assert "requests were still in flight 5 s after admission closed" in str(error)
    assert "core.engine_drain_timeout" in str(error)


def test_a_learner_that_raises_ends_the_run_with_its_own_error() -> None:
    job = fleet_job(simulation=QUICK)
    error = failure(job, learner=SimulatedLearner(job.engine.simulation, fail_at=3))
    assert str(error).startswith("RuntimeError: the simulated learner failed")
    assert isinstance(error.__cause__, RuntimeError)


def test_the_watchdog_says_who_waits_on_whom() -> None:
    job = fleet_job(simulation=QUICK, watchdog_s=600.0)
    error = failure(job, learner=SimulatedLearner(job.engine.simulation, hang_at=3))
    text = str(error)
    assert text.startswith("core.watchdog_seconds: no progress for 6")
    assert "trainer waits" in text and "for optimizer step 3 of 16 samples" in text
    assert "admission waits" in text and "for the trainer: " in text
    assert "engine-0: gate open, " in text and "engine-1: gate open, " in text


def test_an_outage_of_the_verifier_trips_the_breaker() -> None:
    job = fleet_job(simulation={**QUICK, "ungraded_rate": 0.9}, filter=dict(ungraded="zero", ungraded_window=64))
    error = failure(job)
    assert str(error).startswith("verifier simulated: ")
    assert "of the latest 64 responses could not be graded; the last one: the simulated verifier could not decide" in (
        str(error)
    )


def test_a_verifier_that_fails_now_and_then_does_not() -> None:
    job = fleet_job(simulation={**QUICK, "ungraded_rate": 0.1}, filter=dict(ungraded="exclude", ungraded_window=64))
    audit = Audit(job)
    simulate(job, observers=[audit], on_transition=audit.hear)
    audit.check_training()


def test_groups_with_nothing_to_learn_from_end_the_run_with_the_counts() -> None:
    job = fleet_job(simulation={**QUICK, "solve_alpha": 1e-6, "solve_beta": 1e6}, filter=dict(starvation_groups=40))
    error = failure(job)
    assert str(error).startswith(
        "training.filter_zero_std_groups: 40 groups in a row had nothing to learn from; groups ended so far: "
        "{'zero_std': 40}."
    )
