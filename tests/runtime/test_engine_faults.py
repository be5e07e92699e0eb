"""Engines that break under requests, updates and evaluations: who is blamed, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from grpo.engine.fleet import Fleet, Replica
from grpo.engine.simulated import Fault, SimulatedEngine
from grpo.engine.virtual_clock import run_virtual
from grpo.errors import RunFailed
from grpo.learner.simulated import SimulatedLearner
from grpo.plan.job import SimulationSpec
from grpo.runtime.ledger import Transition
from grpo.runtime.simulation import simulate, simulated_prompts
from grpo.waits import Waits
from grpo.weights.engine_drain import EngineDrain
from grpo.weights.publication import Barrier, Publication, Refresh
from support.fleets import Audit, fleet_job

QUICK = dict(length_median=400.0, length_sigma=0.5, prompt_tokens=4, train_base_s=2.0, load_s=1.0)


def audited(job, **rig: Any) -> Audit:
    audit = Audit(job)
    simulate(job, observers=[audit], on_transition=audit.hear, **rig)
    audit.check_attempts()
    audit.check_groups(retries=True)
    audit.check_training()
    return audit


def test_only_the_engine_that_hangs_is_blamed_when_siblings_are_on_several() -> None:
    job = fleet_job(submission="sample", failure="replace", engines=3, simulation=QUICK, request_timeout_s=300.0)
    for number in range(3):
        audit = audited(job, faults={f"engine-{number}": [Fault("hang", 12.0)]})
        assert [warning.partition(":")[0] for warning in audit.warnings] == [f"engine-{number}"]


def test_siblings_on_other_engines_are_aborted_at_the_first_failure() -> None:
    job = fleet_job(
        submission="sample", failure="replace", groups=2, samples=2, slots=2, limit=5000,
        simulation={**QUICK, "length_median": 3000.0, "length_sigma": 0.0},
    )  # fmt: skip
    failed: list[float] = []

    def hear(transition: Transition) -> None:
        if transition.after == "failed":
            failed.append(asyncio.get_running_loop().time())

    # A response takes half a minute. The engine dies in the middle of one, and its groups end at that moment.
    simulate(job, faults={"engine-1": [Fault("die", 12.0)]}, on_transition=hear)
    assert failed and set(failed) == {15.0}  # it is up after 3 s: the learner and engine-0 start before it


def test_what_is_in_flight_on_an_engine_that_failed_an_update_goes_back_to_pending() -> None:
    job = fleet_job(mode="refresh", failure="replace", simulation=QUICK)
    audit = audited(job, faults={"engine-0": [Fault("wrong_version", 0.0)]})
    failed = [one for one in audit.transitions if one.after == "failed"]
    assert failed and all(one.retried for one in failed)
    assert all(one.reason.startswith("engine-0: ") for one in failed)


@pytest.mark.parametrize("mode", ["barrier", "refresh"])
@pytest.mark.parametrize("load_s", [2.0, 7.0])
@pytest.mark.parametrize("at", range(4, 60, 4))
def test_a_replacement_admits_only_at_the_version_of_its_peers(mode: str, load_s: float, at: int) -> None:
    # So few groups under so large a limit that pacing would admit on an engine that is left behind.
    job = fleet_job(
        mode=mode,
        lag=6,
        max_groups_in_system=8,
        rollouts=10,
        failure="replace",
        engines=3,
        simulation={**QUICK, "load_s": load_s, "length_median": 50.0},
    )
    audited(job, faults={"engine-1": [Fault("die", float(at))]})


@pytest.mark.parametrize("kind", ["die", "hang", "garbage"])
def test_an_evaluation_survives_the_loss_of_an_engine_and_is_of_one_version(kind: Any) -> None:
    job = fleet_job(failure="replace", simulation=QUICK, request_timeout_s=300.0, rollouts=4)
    job = job.model_copy(update={"evaluation": job.evaluation.model_copy(update=dict(initial=True, interval=2))})
    audit = Audit(job)
    prompts = simulated_prompts(40, job.engine.simulation)
    simulate(
        job,
        observers=[audit],
        on_transition=audit.hear,
        evals={"held-out": prompts},
        faults={"engine-0": [Fault(kind, 2.0)], "engine-1": [Fault(kind, 60.0)]},
    )
    audit.check_attempts()
    assert [(score.version, score.prompts) for score in audit.scores] == [(0, 40), (2, 40)]
    assert {warning.partition(":")[0] for warning in audit.warnings} == {"engine-0", "engine-1"}


class Watched(SimulatedEngine):
    """Notes what is left in flight when it is closed, and what it was asked to abort."""

    left: list[tuple[int, int]]
    aborted: list[tuple[str, str]]

    async def abort(self, request_id: str) -> None:
        Watched.aborted.append((self.name, request_id))
        await super().abort(request_id)

    async def close(self) -> None:
        stats = await self.stats()
        if self._broken is None:
            Watched.left.append((stats.running, stats.queued))
        await super().close()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    Watched.left, Watched.aborted = [], []
    yield


def test_engines_that_work_are_told_to_abort_the_siblings_of_a_failed_request() -> None:
    job = fleet_job(submission="sample", failure="replace", engines=2, simulation=QUICK, request_timeout_s=300.0)
    audit = audited(job, engine=Watched, faults={"engine-0": [Fault("garbage", 12.0)]})
    failed = {f"{one.group_id}.{one.attempt}" for one in audit.transitions if one.after == "failed"}
    assert Watched.aborted
    assert {name for name, _ in Watched.aborted} == {"engine-1"}
    assert {request.rpartition(".")[0] for _, request in Watched.aborted} <= failed


class Stuck(SimulatedEngine):
    """Cannot be closed once it hangs, like a process that no longer answers."""

    async def close(self) -> None:
        if self._stopped and self._broken is None:
            await asyncio.get_running_loop().create_future()
        await super().close()


def test_all_requests_on_a_hung_engine_go_back_at_the_first_timeout() -> None:
    job = fleet_job(failure="replace", simulation=QUICK, request_timeout_s=300.0, update_timeout_s=900.0)
    times: list[float] = []

    def hear(transition: Transition) -> None:
        if transition.after == "failed":
            times.append(asyncio.get_running_loop().time())

    simulate(job, engine=Stuck, faults={"engine-0": [Fault("hang", 12.0)]}, on_transition=hear)
    assert len(times) > 1 and len(set(times)) == 1


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_the_end_of_a_run_leaves_nothing_in_flight(mode: str) -> None:
    simulate(fleet_job(mode=mode, straggler="overtake", stale="drop", simulation=QUICK), engine=Watched)
    assert Watched.left == [(0, 0)] * 2


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_a_failed_run_leaves_nothing_in_flight_either(mode: str) -> None:
    job = fleet_job(mode=mode, simulation=QUICK)
    with pytest.raises(RunFailed, match="the simulated learner failed"):
        simulate(job, engine=Watched, learner=SimulatedLearner(job.engine.simulation, fail_at=3))
    assert Watched.left == [(0, 0)] * 2


def publications(fleet: Fleet) -> dict[str, Publication]:
    return {
        "barrier": Barrier(fleet, drain_timeout_s=60.0, update_timeout_s=60.0),
        "refresh": Refresh(fleet, update_timeout_s=60.0),
        "engine_drain": EngineDrain(fleet, drain_timeout_s=60.0, update_timeout_s=60.0, snapshot_capacity=2),
    }


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_an_engine_whose_update_ran_out_of_time_does_not_admit(mode: str) -> None:
    spec = SimulationSpec()

    async def main() -> list[tuple[str, bool, int]]:
        faults = {0: (Fault("stuck_load", 0.0),)}
        engines = [
            SimulatedEngine(f"engine-{index}", spec, running_requests=4, context=64, faults=faults.get(index, ()))
            for index in range(4)
        ]
        for engine in engines:
            await engine.start(0)
        fleet = Fleet(engines, Waits())
        fleet.open_gates()
        publication = publications(fleet)[mode]
        learner = SimulatedLearner(spec)
        learner._version = 1
        work = asyncio.ensure_future(publication.run())
        with pytest.raises(BaseException) as caught:  # engine_drain fails in the background
            await publication.publish(1, lambda snapshot: learner.weights(snapshot=snapshot))
            await work
            raise AssertionError("the update did not fail")
        assert "the load of a weight update took more than 60 s" in str(caught.getrepr())
        return [(replica.name, replica.admitting, replica.engine.version) for replica in fleet.replicas]

    after = run_virtual(main())
    assert not any(admitting for _, admitting, version in after if version != 1)
    assert ("engine-0", False, 0) in after
    if mode == "engine_drain":  # the others were not held up
        assert after[1:] == [(f"engine-{index}", True, 1) for index in (1, 2, 3)]


def test_a_replica_takes_groups_while_it_has_a_free_slot_and_serves_the_version() -> None:
    async def main() -> None:
        spec = SimulationSpec(load_s=0.0)
        engines = [SimulatedEngine(name, spec, running_requests=4, context=64) for name in ("a", "b", "c")]
        for version, engine in enumerate(engines):
            await engine.start(version)
        fleet = Fleet(engines, Waits())
        assert fleet.place(1) is None  # every gate is closed
        fleet.open_gates()
        a, b, c = fleet.replicas

        def names(count: int, **options: Any) -> list[str]:
            places: list[Replica | None] = [fleet.place(3, **options) for _ in range(count)]
            return [place.name if place else "-" for place in places]

        assert names(3, min_version=1) == ["b", "c", "b"]
        assert names(2) == ["a", "a"]  # the first of equals
        assert (a.reserved, b.reserved, c.reserved) == (6, 6, 3)
        assert names(2, min_version=1) == ["c", "-"]
        assert names(1, min_version=1, queue=True) in (["b"], ["c"])
        fleet.close_gate(a)
        assert names(1) == ["-"]
        fleet.release(a, 6)
        fleet.open_gate(a)
        assert names(1) == ["a"]
        fleet.on_failure = lambda replica, error: None
        fleet.fail(a, RuntimeError("broken"))
        fleet.open_gates()
        assert names(1) == ["-"]
        assert (fleet.working, [replica.name for replica in fleet.replicas]) == (2, ["b", "c"])

    run_virtual(main())


def test_engine_drain_holds_one_snapshot_at_a_time_if_that_is_its_capacity() -> None:
    async def main() -> None:
        spec = SimulationSpec(load_s=5.0)
        engines = [SimulatedEngine(f"engine-{index}", spec, running_requests=4, context=64) for index in range(2)]
        for engine in engines:
            await engine.start(0)
        fleet = Fleet(engines, Waits())
        fleet.open_gates()
        publication = EngineDrain(fleet, drain_timeout_s=60.0, update_timeout_s=60.0, snapshot_capacity=1)
        learner = SimulatedLearner(spec)
        now = asyncio.get_running_loop().time

        async def publish(version: int) -> float:
            learner._version = version
            await publication.publish(version, lambda snapshot: learner.weights(snapshot=snapshot))
            assert publication.held == 1
            return now()

        work = asyncio.ensure_future(publication.run())
        start = await publish(1)
        async with publication.lease():  # both engines load version 1 first, one after the other
            assert (now() - start, publication.held) == (10.0, 1)
            second = asyncio.ensure_future(publish(2))
            await asyncio.sleep(3.0)
            assert not second.done()
        assert await second - start == 13.0
        await asyncio.sleep(1.0)
        third = await publish(3)  # engine-0 is loading version 2, and engine-1 skips it
        assert third - start == 18.0
        await publication.settle()
        assert [engine.version for engine in engines] == [3, 3]
        assert publication.held == 0
        work.cancel()

    run_virtual(main())
