"""What the trainer takes from the buffer, and when it waits."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from grpo.plan.job import JobSpec
from grpo.runtime.buffer import Buffer
from grpo.types import FinishReason, Graded, Group, PolicySpan, Prompt, Response
from support.jobs import make_job

PROMPT = Prompt("p", (1,), "p", "1", "integer", "test")


def group(group_id: int, *versions: int) -> Group:
    """A group of one response, with one token of each version."""
    spans = tuple(PolicySpan(start, version) for start, version in enumerate(versions))
    response = Response(str(group_id), tuple(range(len(spans))), (-1.0,) * len(spans), spans, FinishReason.STOP)
    return Group(group_id, 0, PROMPT, (response,), (Graded(1.0),))


def buffer(
    tmp_path: Path, outstanding: Counter[int], *, size: int, lag: int, steps: int = 1, straggler="wait"
) -> Buffer:
    job: JobSpec = make_job(tmp_path)
    batch = job.batch.model_copy(update={"rollout_batch_size": size, "steps_per_collection": steps})
    sync = job.sync.model_copy(update={"max_policy_lag": lag, "straggler": straggler})
    return Buffer(batch, sync, lambda: outstanding)


def test_groups_over_the_limit_are_found_by_their_oldest_token(tmp_path: Path) -> None:
    held = buffer(tmp_path, Counter(), size=1, lag=2)
    for one in (group(0, 5), group(1, 2, 5), group(2, 3, 4)):
        held.put(one)
    assert [one.group_id for one in held.stale(5)] == [1]
    assert [one.group_id for one in held.groups] == [0, 2]


def test_a_batch_is_ordered_by_id_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    held = buffer(tmp_path, Counter(), size=3, lag=1)
    for number in (4, 2, 9):
        held.put(group(number, 1))
    assert [one.group_id for one in held.take(1)] == [2, 4, 9]
    assert len(held) == 0


def test_wait_takes_the_oldest_and_overtake_the_first_to_finish(tmp_path: Path) -> None:
    for straggler, expected in (("wait", [1, 3]), ("overtake", [2, 3])):
        held = buffer(tmp_path, Counter(), size=2, lag=3, straggler=straggler)
        for one in (group(2, 3), group(3, 2), group(1, 1)):
            held.put(one)
        assert [one.group_id for one in held.take(3)] == expected


def test_the_trainer_waits_for_a_straggler_at_the_lag_edge_only(tmp_path: Path) -> None:
    outstanding = Counter({4: 1})
    held = buffer(tmp_path, outstanding, size=2, lag=2)
    held.put(group(0, 6))
    held.put(group(1, 6))
    assert held.ready(5)  # version 4 can still be taken at 6
    assert not held.ready(6)  # at 7 it would be lost
    assert held.ready(6, overtake=True)
    assert held.ready(7)  # lost already


def test_it_waits_earlier_when_later_collections_cannot_hold_all_stragglers(tmp_path: Path) -> None:
    held = buffer(tmp_path, Counter({4: 3}), size=2, lag=2)
    held.put(group(0, 5))
    held.put(group(1, 5))
    assert not held.ready(5)  # 3 groups of version 4 do not fit into the one collection at 6


def test_it_does_not_wait_when_the_batch_is_full_of_groups_as_old(tmp_path: Path) -> None:
    held = buffer(tmp_path, Counter({4: 3}), size=2, lag=2)
    held.put(group(0, 4))
    held.put(group(1, 4))
    assert held.ready(6)


def test_several_optimizer_steps_a_collection_shorten_the_time_that_is_left(tmp_path: Path) -> None:
    held = buffer(tmp_path, Counter({4: 1}), size=1, lag=3, steps=2)
    held.put(group(0, 6))
    assert held.ready(4)  # next takings at 6 and 8; 6 - 4 is within 3
    assert not held.ready(6)  # at 8 the lag would be 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("lag", "steps"), [(0, 1), (1, 1), (2, 1), (6, 1), (4, 2), (3, 2)])
def test_waiting_never_loses_a_group_under_pacing(tmp_path: Path, seed: int, lag: int, steps: int) -> None:
    """Against any order of completion: groups finish at random times, and none goes over the limit."""
    rng = random.Random(seed)
    size = 3
    cap = (lag // steps + 1) * size
    outstanding: Counter[int] = Counter()
    held = buffer(tmp_path, outstanding, size=size, lag=lag, steps=steps)
    version, serial, in_training = 0, 0, 0
    flight: list[Group] = []
    trained: list[int] = []
    while len(trained) < 60 * size:
        # What the trainer does: publish, refill, then wait for a batch.
        in_training = 0
        while len(flight) + len(held) + in_training < cap:
            flight.append(group(serial, version))
            outstanding[version] += 1
            serial += 1
        while not held.ready(version):
            done = flight.pop(rng.randrange(len(flight)) if rng.random() < 0.5 else -1)
            outstanding[done.min_version] -= 1
            held.put(done)
        assert held.stale(version) == ()
        taken = held.take(version)
        assert all(version - one.min_version <= lag for one in taken)
        trained += [one.group_id for one in taken]
        in_training = len(taken)
        while len(flight) + len(held) + in_training < cap:  # admitted under the old version, while the trainer trains
            flight.append(group(serial, version))
            outstanding[version] += 1
            serial += 1
        version += steps
    assert len(set(trained)) == len(trained)
