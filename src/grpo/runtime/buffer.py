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
        self._groups: list[Group] = []
        self._versions: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is held, in the order of arrival."""
        return tuple(self._groups)

    def put(self, group: Group) -> None:
        """Add a graded group."""
        self._groups.append(group)
        self._versions[group.min_version] += 1

    def stale(self, version: int) -> tuple[Group, ...]:
        """Remove and return the groups whose lag is over the limit at policy ``version``."""
        stale = tuple(group for group in self._groups if version - group.min_version > self._limit)
        self._remove(stale)
        return stale

    def ready(self, version: int, *, overtake: bool = False) -> bool:
        """Whether a collection can be taken at policy ``version``; ``overtake`` lets stragglers be passed."""
        if len(self._groups) < self._size:
            return False
        return overtake or not self._wait or not self._must_wait(version)

    def take(self, version: int) -> tuple[Group, ...]:
        """Remove and return a collection; call only when :meth:`ready` and after :meth:`stale`."""
        if len(self._groups) < self._size:
            raise AssertionError(f"{len(self._groups)} of {self._size} groups are there")
        chosen = self._oldest_first()[: self._size] if self._wait else self._groups[: self._size]
        self._remove(chosen)
        # By id, not by arrival: the batch does not depend on which response happened to finish first.
        return tuple(sorted(chosen, key=lambda group: group.group_id))

    def _remove(self, groups: Sequence[Group]) -> None:
        ids = {group.group_id for group in groups}
        self._groups = [group for group in self._groups if group.group_id not in ids]
        self._versions.subtract(group.min_version for group in groups)
        self._versions = +self._versions

    def _oldest_first(self) -> list[Group]:
        return sorted(self._groups, key=lambda group: (group.min_version, group.group_id))

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
