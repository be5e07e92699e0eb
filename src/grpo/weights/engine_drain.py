"""The ``engine_drain`` publication mode: a rolling update, engine by engine."""

from __future__ import annotations

import asyncio
from collections import Counter

from grpo.engine.fleet import Fleet, Replica
from grpo.weights.protocol import WeightSource
from grpo.weights.publication import Weights, update, wait_until_idle


class EngineDrain:
    """Each engine drains and loads the newest snapshot while its peers keep working.

    At most half of the engines (one at least) are out of service at a time. At most ``snapshot_capacity`` snapshots are
    held: those that engines are loading now, and the newest. A newest one that no engine has begun to load gives way to
    a newer one.

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

    @property
    def held(self) -> int:
        """Snapshots held now."""
        return len(self._versions_held())

    def _versions_held(self) -> set[int]:
        newest = {self._newest.version} if self._newest is not None else set()
        return {version for version, count in self._loading.items() if count} | newest

    async def publish(self, version: int, weights: Weights) -> None:
        """Hand over a snapshot; waits for a place for it, which an engine that ends its load gives."""
        self.version = version
        if self._newest is not None and not self._loading[self._newest.version]:
            self._newest = None  # no engine has begun to load it, and now none will
        await self._fleet.waits.until(
            "publication", "a place for a snapshot", lambda: self.held < self.snapshot_capacity
        )
        self._newest = await weights(True)
        self._fleet.waits.notify()

    async def settle(self) -> None:
        """Wait until every working engine serves the newest snapshot and admits."""
        await self._fleet.waits.until(
            "publication",
            lambda: f"{len(self._behind())} engines to reach version {self.version}",
            lambda: not self._behind() and not self._updating,
        )

    async def run(self) -> None:
        """Start an update where an engine is behind and few enough are out of service; waits for either to change."""
        async with asyncio.TaskGroup() as updates:
            while True:
                replica = await self._fleet.waits.until("engine updates", "a new snapshot", self._next)
                replica.admitting = False
                self._updating.add(replica)
                updates.create_task(self._update(replica), name=f"update-{replica.name}")

    def _next(self) -> Replica | None:
        if self._newest is None or len(self._updating) >= max(1, len(self._fleet.replicas) // 2):
            return None
        behind = [replica for replica in self._behind() if replica.admitting]
        # The oldest first, and among equals the one that is soonest empty.
        return min(behind, key=lambda replica: (replica.engine.version, replica.reserved), default=None)

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
            replica.admitting = not replica.failed
        finally:
            self._updating.discard(replica)
            if not self._behind():
                self._newest = None
            fleet.waits.notify()
