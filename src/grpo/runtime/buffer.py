"""The buffer owns staleness: it decides which graded groups the trainer takes, and when.

Lag is counted in optimizer steps from the oldest token of a group to the policy version at the moment of taking.

``overtake`` takes groups in the order in which they finished. Long responses then finish late, age out and are thrown
away, which biases training to short ones. ``wait`` avoids that: it takes the oldest first, and waits whenever taking
what is there would make a later loss unavoidable. Let ``N(a)`` be the outstanding groups (in flight, graded or
buffered) whose version is at most ``a``, ``B`` the groups of a collection, ``k`` its optimizer steps, ``L`` the lag
limit and ``v`` the policy version now. After this taking at ``v``, groups of version ``a`` can still be taken at
``v+k, v+2k, ..., <= a+L``, that is ``floor((a+L-v)/k)`` times. So this collection must hold at least
``N(a) - B * floor((a+L-v)/k)`` groups of version at most ``a``, for every ``a``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from grpo.plan.job import BatchSpec, SyncSpec
from grpo.types import Group


class Buffer:
    """Graded groups that wait for the trainer.

    Args:
        outstanding: how many groups of each version are admitted but not in the buffer yet.
    """

    def __init__(self, batch: BatchSpec, sync: SyncSpec, outstanding: Callable[[], Mapping[int, int]]) -> None:
        self._size = batch.rollout_batch_size
        self._steps = batch.steps_per_collection
        self._limit = sync.max_policy_lag
        self._wait = sync.straggler == "wait"
        self._outstanding = outstanding
        self._groups: dict[int, Group] = {}
        self._ages: dict[int, int] = {}  # min_version of each, which is a pass over all its spans
        self._versions: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is held, in the order of arrival."""
        return tuple(self._groups.values())

    def put(self, group: Group) -> None:
        """Add a graded group."""
        oldest = group.min_version
        self._groups[group.group_id] = group
        self._ages[group.group_id] = oldest
        self._versions[oldest] += 1

    def stale(self, version: int) -> tuple[Group, ...]:
        """Remove and return the groups whose lag is over the limit at policy ``version``."""
        return self._remove([group_id for group_id, oldest in self._ages.items() if version - oldest > self._limit])

    def ready(self, version: int, *, overtake: bool = False) -> bool:
        """Whether a collection can be taken at policy ``version``; ``overtake`` lets stragglers be passed."""
        if len(self._groups) < self._size:
            return False
        return overtake or not self._wait or not self._must_wait(version)

    def take(self, version: int) -> tuple[Group, ...]:
        """Remove and return a collection; call only when :meth:`ready` and after :meth:`stale`."""
        if len(self._groups) < self._size:
            raise AssertionError(f"{len(self._groups)} of {self._size} groups are there")
        ids = (
            sorted(self._groups, key=lambda group_id: (self._ages[group_id], group_id)) if self._wait else self._groups
        )
        # By id, not by arrival: the batch does not depend on which response happened to finish first.
        return self._remove(sorted(list(ids)[: self._size]))

    def _remove(self, ids: Sequence[int]) -> tuple[Group, ...]:
        self._versions.subtract(self._ages.pop(group_id) for group_id in ids)
        self._versions = +self._versions
        return tuple(self._groups.pop(group_id) for group_id in ids)

    def _must_wait(self, version: int) -> bool:
        """Whether taking now would make a later loss unavoidable that waiting avoids."""
        waiting = 0
        for oldest, count in sorted(self._outstanding().items()):
            if oldest + self._limit < version:
                continue  # lost already; waiting for it helps nobody
            waiting += count
            here = sum(held for other, held in self._versions.items() if other <= oldest)
            if here >= self._size:
                return False  # this collection is full of groups as old as these, whatever arrives
            if waiting > self._size * ((oldest + self._limit - version) // self._steps):
                return True
        return False
