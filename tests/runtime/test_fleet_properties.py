"""The promises of the asynchronous core, over random fleets, delays, failures and modes, on a virtual clock."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from grpo.errors import RunFailed
from grpo.learner.simulated import SimulatedLearner
from grpo.runtime.simulation import simulate
from support.fleets import Audit, fleet_job

# No shrinking: an example may take a second, and the seed that hypothesis prints repeats it.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
RELAXED = settings(max_examples=60, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def fleets(draw: st.DrawFn, *, failures: bool) -> dict[str, Any]:
    mode = draw(st.sampled_from(["barrier", "refresh", "engine_drain"]))
    steps = draw(st.sampled_from([1, 1, 2]))
    simulation = dict(
        decode_base_s=draw(st.sampled_from([0.001, 0.02])),
        decode_per_request_s=draw(st.sampled_from([0.0, 0.002])),
        prefill_tokens_per_s=draw(st.sampled_from([1e3, 1e6])),
        load_s=draw(st.sampled_from([0.0, 0.5, 30.0])),
        train_base_s=draw(st.sampled_from([0.0, 1.0, 60.0])),
        train_tokens_per_s=draw(st.sampled_from([1e3, 1e6])),
        grade_s=draw(st.sampled_from([0.0, 0.1, 20.0])),
        length_median=draw(st.sampled_from([1.0, 100.0, 700.0])),
        length_sigma=draw(st.sampled_from([0.0, 0.5, 1.5])),
        prompt_tokens=4,
    )
    if failures:
        simulation["engine_failure_rate"] = draw(st.sampled_from([0.0, 0.002]))
        simulation["ungraded_rate"] = draw(st.sampled_from([0.0, 0.2]))
    return dict(
        mode=mode,
        lag=draw(st.integers(0, 6)),
        groups=draw(st.sampled_from([2, 4, 6])),
        samples=draw(st.integers(2, 4)),
        rollouts=draw(st.integers(2, 6)),
        steps=steps,
        engines=draw(st.integers(1, 5)),
        slots=draw(st.sampled_from([1, 3, 16])),
        limit=1000,
        simulation=simulation,
        filter=dict(
            zero_std=draw(st.booleans()),
            exclude_truncated=draw(st.booleans()),
            ungraded=draw(st.sampled_from(["zero", "exclude"])),
            max_attempts=20,
            starvation_groups=100_000,
        ),
        failure="replace" if failures else "fail",
        stale=draw(st.sampled_from(["retry", "drop"])),
        straggler=draw(st.sampled_from(["wait", "overtake"])),
        submission=draw(st.sampled_from(["group", "sample"])) if mode != "engine_drain" else "group",
        paced=draw(st.sampled_from([True, True, False])),
    )


def audited(fleet: dict[str, Any]) -> Audit:
    job = fleet_job(**fleet)
    audit = Audit(job)
    learner = SimulatedLearner(job.engine.simulation)
    simulate(job, prompts=50, learner=learner, observers=[audit], on_transition=audit.hear)
    audit.check_attempts()
    audit.check_groups(retries=fleet["stale"] == "retry")
    audit.check_training()
    # What the learner saw is what the ledger says was trained, in whole groups.
    seen = [sample.rsplit(".", 1)[0] for batch in learner.batches for sample in batch]
    told = [f"{group.group_id}.{group.attempt}" for group in audit.trained for _ in range(job.batch.samples_per_prompt)]
    assert seen == told
    return audit


@RELAXED
@given(fleets(failures=False))
def test_every_promise_holds_under_any_interleaving(fleet: dict[str, Any]) -> None:
    audit = audited(fleet)
    if fleet["paced"] and fleet["straggler"] == "wait":
        assert "stale" not in {outcome for _, outcome, _ in audit.ended}


@RELAXED
@given(fleets(failures=True))
def test_every_promise_holds_when_engines_break_and_verifiers_fail(fleet: dict[str, Any]) -> None:
    try:
        audited(fleet)
    except RunFailed as error:
        assert "it was replaced 3 times" in str(error)


@settings(max_examples=10, deadline=None, phases=PHASES)
@given(fleets(failures=False))
def test_a_simulation_is_the_same_for_a_seed(fleet: dict[str, Any]) -> None:
    job = fleet_job(**fleet)
    assert simulate(job, prompts=50) == simulate(job, prompts=50)
