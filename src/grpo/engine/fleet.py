"""The engines of a run, each with its admission gate and its reservations.

Publication modes close and open gates and wait for reservations to end; the controller reserves places. A reservation
is taken when a group is admitted and given back when its last response has ended, so an engine without reservations
has nothing in flight and nothing on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo.engine.protocol import Engine
from grpo.errors import RunFailed, describe
from grpo.waits import Waits


class Replica:
    """One engine with its gate.

    Attributes:
        admitting: whether new groups may be placed here.
        reserved: requests that are placed here and have not ended.
        failed: the engine is dead; it is never used again.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.admitting = True
        self.failed = False
        self.reserved = 0

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name


class Fleet:
    """All replicas, in a fixed order.

    Args:
        waits: notified whenever a gate or a reservation changes.

    Attributes:
        on_failure: called once with a replica that broke and its error, after its gate was closed for good; may raise.
    """

    def __init__(self, engines: Sequence[Engine], waits: Waits) -> None:
        self._replicas = [Replica(engine) for engine in engines]
        self.waits = waits
        self.on_failure: Callable[[Replica, Exception], None] = _fail_the_run

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Those that work."""
        return tuple(replica for replica in self._replicas if not replica.failed)

    @property
    def version(self) -> int:
        """The oldest policy version that a working engine serves; -1 when none works."""
        return min((replica.engine.version for replica in self._replicas if not replica.failed), default=-1)

    def place(self, requests: int, *, min_version: int = 0) -> Replica | None:
        """Reserve places on the least loaded admitting replica that serves ``min_version`` or newer; None without one.

        Costs one pass over the replicas, with no allocation.
        """
        best: Replica | None = None
        for replica in self._replicas:
            if (
                replica.admitting
                and (best is None or replica.reserved < best.reserved)
                and replica.engine.version >= min_version
            ):
                best = replica
        if best is not None:
            best.reserved += requests
        return best

    def release(self, replica: Replica, requests: int) -> None:
        """Give back reserved places."""
        replica.reserved -= requests
        if replica.reserved < 0:
            raise AssertionError(f"{replica.name}: more places given back than were reserved")
        self.waits.notify()

    def fail(self, replica: Replica, error: Exception) -> None:
        """Take a broken replica out of use and tell ``on_failure``, once."""
        if replica.failed:
            return
        replica.failed = True
        replica.admitting = False
        self.waits.notify()
        self.on_failure(replica, error)

    def add(self, replica: Replica) -> None:
        """Add a replica whose engine is started and serves the current version."""
        self._replicas = [*self.replicas, replica]
        self.waits.notify()

    def close_gates(self) -> None:
        """Stop admission everywhere; what is placed goes on."""
        for replica in self.replicas:
            replica.admitting = False

    def open_gates(self) -> None:
        """Admit everywhere again, except on failed replicas."""
        for replica in self.replicas:
            replica.admitting = True
        self.waits.notify()


def _fail_the_run(replica: Replica, error: Exception) -> None:
    raise RunFailed(f"the engine failed: {describe(error)}", where=replica.name) from error
