"""The ``engine_drain`` publication mode: a rolling update, engine by engine."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpo.engine.fleet import Fleet, Replica
from grpo.weights.protocol import WeightSource
from grpo.weights.publication import Weights, update, wait_until_idle


class EngineDrain:
    """Each engine drains and loads the newest snapshot while its peers keep working.

    At most half of the engines (one at least) are out of service at a time. At most ``snapshot_capacity`` snapshots are
    held: those that engines are loading now, those on lease, and the newest. A newest one that no engine has begun to
    load gives way to a newer one.

    Args:
        drain_timeout_s: for the requests of one engine to end.
        update_timeout_s: for one engine to load.
        snapshot_capacity: at least 1.
    """

    def __init__(
        self, fleet: Fleet, *, drain_timeout_s: float, update_timeout_s: float, snapshot_capacity: int
    ) -> None:
        self._fleet = fleet
        self.drain_timeout_s = drain_timeout_s
        self.update_timeout_s = update_timeout_s
        self.snapshot_capacity = snapshot_capacity
        self.version = 0
        self._newest: WeightSource | None = None  # its snapshot, while an engine may still need it
        self._loading: Counter[int] = Counter()  # by version
        self._updating: set[Replica] = set()
        self._queue: deque[Replica] = deque()  # behind, in the order in which they are updated
        self._leased = 0

    @property
    def held(self) -> int:
        """Snapshots held now."""
        return len(self._versions_held()) + self._leased

    def _versions_held(self) -> set[int]:
        newest = {self._newest.version} if self._newest is not None else set()
        return {version for version, count in self._loading.items() if count} | newest

    async def publish(self, version: int, weights: Weights) -> None:
        """Hand over a snapshot; waits for a place for it, which an engine that ends its load gives."""
        self.version = version
        self._newest = None  # no engine begins to load it any more; where one is loading it, it is held until that ends
        await self._fleet.waits.until(
            "publication", "a place for a snapshot", lambda: self.held < self.snapshot_capacity
        )
        self._newest = await weights(True)
        # The oldest first, and among equals the one that is soonest empty. Those that update now queue again after it.
        behind = [replica for replica in self._behind() if replica not in self._updating]
        self._queue = deque(sorted(behind, key=lambda replica: (replica.engine.version, replica.reserved)))
        self._drop_unneeded()
        self._fleet.waits.notify()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """Hold a snapshot of one's own while the block runs; waits for a place for it."""
        await self._fleet.waits.until(
            "supervisor", "a place for a snapshot", lambda: self.held < self.snapshot_capacity
        )
        self._leased += 1
        try:
            yield
        finally:
            self._leased -= 1
            self._fleet.waits.notify()

    async def settle(self) -> None:
        """Wait until every working engine serves the newest snapshot and admits."""
        await self._fleet.waits.until(
            "publication",
            lambda: f"{len(self._behind())} engines to reach version {self.version}",
            lambda: not self._updating and not self._behind(),
        )

    async def run(self) -> None:
        """Start an update where an engine is behind and few enough are out of service; waits for either to change."""
        async with asyncio.TaskGroup() as updates:
            while True:
                replica = await self._fleet.waits.until(
                    "engine updates", "a new snapshot", self._next, ready=self._has_next
                )
                self._fleet.close_gate(replica)
                self._updating.add(replica)
                updates.create_task(self._update(replica), name=f"update-{replica.name}")

    def _has_next(self) -> bool:
        return self._newest is not None and bool(self._queue) and self._updates_allowed() > 0

    def _updates_allowed(self) -> int:
        return max(1, self._fleet.working // 2) - len(self._updating)

    def _next(self) -> Replica | None:
        while self._has_next():
            replica = self._queue.popleft()
            if not replica.failed:
                return replica
        self._drop_unneeded()
        return None

    def _drop_unneeded(self) -> None:
        """Let go of the newest snapshot if no engine will load it any more."""
        if self._newest is not None and not self._queue and not self._updating:
            self._newest = None
            self._fleet.waits.notify()

    def _behind(self) -> list[Replica]:
        return [replica for replica in self._fleet.replicas if replica.engine.version < self.version]

    async def _update(self, replica: Replica) -> None:
        """Drain one engine, load the newest snapshot of that moment, open its gate.

        Waits for its own requests and for its own load. At a deadline the run fails and the gate stays closed.
        """
        fleet = self._fleet
        try:
            await wait_until_idle(fleet, (replica,), self.drain_timeout_s)
            await fleet.waits.until("engine updates", "the next snapshot", lambda: self._newest is not None)
            snapshot = self._newest
            assert snapshot is not None
            self._loading[snapshot.version] += 1
            try:
                await update(fleet, (replica,), snapshot, self.update_timeout_s)
            finally:
                self._loading[snapshot.version] -= 1
            fleet.open_gate(replica)
        finally:
            self._updating.discard(replica)
            if not replica.failed and replica.engine.version < self.version:
                self._queue.append(replica)  # a newer snapshot came while it loaded
            self._drop_unneeded()
            fleet.waits.notify()
