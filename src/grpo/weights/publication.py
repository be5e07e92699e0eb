"""Making weights live in the engines: one small class a mode, written against the Engine protocol.

============  ======================================================================================================
barrier       admission closes fleet-wide, every request in flight finishes on its version, the fleet loads, admission
              opens. Each response, and each group, has exactly one version.
refresh       decoding pauses, the fleet loads, caches are rebuilt under the new weights, decoding goes on. A response
              can span versions; its spans say so.
engine_drain  engine by engine: stop admitting, finish what is placed, load an immutable snapshot, check the version,
              admit again, while the peers keep working. Each group has exactly one version.
============  ======================================================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from grpo.engine.fleet import Fleet, Replica
from grpo.errors import RunFailed
from grpo.weights.protocol import WeightSource

Weights = Callable[[bool], Awaitable[WeightSource]]
"""Gives the learner's weights; called with True, an immutable snapshot of them."""


class Publication(Protocol):
    """A publication mode.

    Attributes:
        version: the policy version whose publication began last; where every engine is or is going.
    """

    version: int

    async def publish(self, version: int, weights: Weights) -> None:
        """Begin to make the learner's weights live as ``version``, and return when the learner may change them.

        Raises RunFailed at a deadline, with the gates that it closed left closed.
        """
        ...

    async def settle(self) -> None:
        """Wait until every working engine serves the weights published last."""
        ...

    def lease(self) -> AbstractAsyncContextManager[None]:
        """Enter to hold a snapshot of one's own while the block runs; waits for a place for it."""
        ...

    async def run(self) -> None:
        """Do background work for ever; ends by cancellation."""
        ...


class Barrier:
    """Drain the whole fleet, load, open.

    Args:
        drain_timeout_s: for all requests in flight to end.
        update_timeout_s: for every engine to load.
    """

    def __init__(self, fleet: Fleet, *, drain_timeout_s: float, update_timeout_s: float) -> None:
        self._fleet = fleet
        self.version = 0
        self.drain_timeout_s = drain_timeout_s
        self.update_timeout_s = update_timeout_s

    async def publish(self, version: int, weights: Weights) -> None:
        """Wait for every reservation to end, then for every engine to load."""
        self.version = version
        fleet, replicas = self._fleet, self._fleet.replicas  # one that joins later has the new weights already
        fleet.close_gates()
        await wait_until_idle(fleet, replicas, self.drain_timeout_s)
        await update(fleet, replicas, await weights(False), self.update_timeout_s)
        fleet.open_gates()

    async def settle(self) -> None:
        """Nothing is ever under way between two calls of :meth:`publish`."""

    def lease(self) -> AbstractAsyncContextManager[None]:
        """Snapshots are not counted: this mode holds none."""
        return nullcontext()

    async def run(self) -> None:
        """There is no background work."""


class Refresh:
    """Pause every engine between two tokens, load, rebuild serving state, resume.

    Args:
        update_timeout_s: for every engine to pause, load and rebuild.
    """

    def __init__(self, fleet: Fleet, *, update_timeout_s: float) -> None:
        self._fleet = fleet
        self.version = 0
        self.update_timeout_s = update_timeout_s

    async def publish(self, version: int, weights: Weights) -> None:
        """Wait for the slowest engine at each stage: no engine decodes under ``v`` while another still serves v-1."""
        self.version = version
        fleet, replicas = self._fleet, self._fleet.replicas  # one that joins later has the new weights already
        fleet.close_gates()
        await each(fleet, replicas, "pause", lambda replica: replica.engine.pause(), self.update_timeout_s)
        await update(fleet, replicas, await weights(False), self.update_timeout_s)
        await each(fleet, replicas, "resume", lambda replica: replica.engine.resume(), self.update_timeout_s)
        fleet.open_gates()

    async def settle(self) -> None:
        """Nothing is ever under way between two calls of :meth:`publish`."""

    def lease(self) -> AbstractAsyncContextManager[None]:
        """Snapshots are not counted: this mode holds none."""
        return nullcontext()

    async def run(self) -> None:
        """There is no background work."""


async def wait_until_idle(fleet: Fleet, replicas: tuple[Replica, ...], timeout_s: float) -> None:
    """Wait until no request is placed on these replicas, failed ones aside; raises RunFailed at the deadline."""

    busy = list(replicas)

    def pending() -> int:
        return sum(replica.reserved for replica in busy if not replica.failed)

    def idle() -> bool:
        # Behind a closed gate an idle replica stays idle, so each is looked at once, however often this is called.
        while busy and (busy[-1].failed or not busy[-1].reserved):
            busy.pop()
        return not busy

    try:
        await fleet.waits.until(
            "publication", lambda: f"{pending()} requests in flight to end", idle, timeout_s=timeout_s
        )
    except TimeoutError:
        raise RunFailed(
            f"{pending()} requests were still in flight {timeout_s:g} s after admission closed",
            where=", ".join(replica.name for replica in replicas if replica.reserved and not replica.failed),
            fix="Raise core.engine_drain_timeout or lower inference.max_response_length.",
        ) from None


async def update(fleet: Fleet, replicas: tuple[Replica, ...], weights: WeightSource, timeout_s: float) -> None:
    """Load ``weights`` into paused or empty engines, rebuild their caches and check the version they acknowledge."""

    async def one(replica: Replica) -> None:
        await replica.engine.load(weights, weights.version)
        await replica.engine.rebuild()
        if replica.engine.version != weights.version:
            raise RunFailed(
                f"serves version {replica.engine.version} after version {weights.version} was loaded",
                where=replica.name,
                fix="The engine acknowledged an update that it did not make; see its log.",
            )

    with fleet.waits.doing("publication", f"{len(replicas)} engines to load version {weights.version}"):
        await each(fleet, replicas, "load", one, timeout_s)


async def each(
    fleet: Fleet,
    replicas: tuple[Replica, ...],
    stage: str,
    call: Callable[[Replica], Awaitable[None]],
    timeout_s: float,
) -> None:
    """Await ``call`` for all working replicas side by side.

    A replica whose call raises has failed, and the others go on; at the deadline the run fails.
    """

    async def guarded(replica: Replica) -> None:
        try:
            await call(replica)
        except Exception as error:
            fleet.fail(replica, error)

    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(guarded(replica) for replica in replicas if not replica.failed))
    except TimeoutError:
        raise RunFailed(
            f"the {stage} of a weight update took more than {timeout_s:g} s",
            where=", ".join(replica.name for replica in replicas),
            fix="Raise core.engine_update_timeout, or see the engines' logs for what holds them up.",
        ) from None
