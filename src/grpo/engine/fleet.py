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

OnFailure = Callable[["Replica", Exception], None]


class Replica:
    """One engine with its gate. Only its :class:`Fleet` changes it.

    Attributes:
        admitting: whether new groups may be placed here.
        reserved: requests that are placed here and have not ended.
        failed: the engine is dead; it is never used again.
        in_flight: called with the replica and the error when it fails; one for each attempt that has requests here.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.admitting = False
        self.reserved = 0
        self.failed = False
        self.in_flight: dict[OnFailure, None] = {}
        # Of the engine, when its gate opened: it loads behind a closed gate only.
        self.gate_version = self.slots = 0

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name


class _OpenGates:
    """The admitting replicas of one policy version, by how many requests are placed on each.

    Finding the least loaded costs no more with more replicas: they lie in buckets by load, and a cursor stands at or
    below the first bucket that is not empty.
    """

    def __init__(self) -> None:
        self._buckets: list[dict[Replica, None]] = []  # dicts, as sets that keep their order: runs are repeatable
        self._cursor = 0
        self.count = 0

    def add(self, replica: Replica) -> None:
        self.count += 1
        while len(self._buckets) <= replica.reserved:
            self._buckets.append({})
        self._buckets[replica.reserved][replica] = None
        self._cursor = min(self._cursor, replica.reserved)

    def remove(self, replica: Replica) -> None:
        self.count -= 1
        del self._buckets[replica.reserved][replica]

    def least_loaded(self) -> Replica | None:
        while self._cursor < len(self._buckets):
            bucket = self._buckets[self._cursor]
            if bucket:
                return next(iter(bucket))
            self._cursor += 1
        return None


class Fleet:
    """All replicas; their gates are closed until :meth:`open_gates`, because engines have no version until they start.

    Args:
        waits: notified whenever a gate or a reservation changes.

    Attributes:
        on_failure: called once with a replica that broke and its error, after its gate was closed for good; may raise.
    """

    def __init__(self, engines: Sequence[Engine], waits: Waits) -> None:
        self._replicas = [Replica(engine) for engine in engines]
        self._working = len(self._replicas)
        self._open: dict[int, _OpenGates] = {}
        self.waits = waits
        self.on_failure: OnFailure = _fail_the_run

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Those that work."""
        return tuple(replica for replica in self._replicas if not replica.failed)

    @property
    def working(self) -> int:
        """How many work."""
        return self._working

    @property
    def version(self) -> int:
        """The oldest policy version that a working engine serves; -1 when none works."""
        return min((replica.engine.version for replica in self._replicas if not replica.failed), default=-1)

    def place(self, requests: int, *, min_version: int = 0, queue: bool = False) -> Replica | None:
        """Reserve places on the least loaded admitting replica that serves ``min_version`` or newer; None without one.

        A replica takes a group as long as it has a free slot: what would only queue there is better admitted later,
        under newer weights. With ``queue`` the replica may be full. Costs the same however many replicas there are.
        """
        best = self.find(min_version=min_version, queue=queue)
        if best is not None:
            self._reserve(best, requests)
        return best

    def find(self, *, min_version: int = 0, queue: bool = False) -> Replica | None:
        """Return where :meth:`place` would reserve now, without reserving."""
        best: Replica | None = None
        for version, gates in self._open.items():
            if version >= min_version:
                least = gates.least_loaded()
                if least is not None and (best is None or least.reserved < best.reserved):
                    best = least
        return best if best is not None and (queue or best.reserved < best.slots) else None

    def release(self, replica: Replica, requests: int) -> None:
        """Give back reserved places."""
        if replica.reserved < requests:
            raise AssertionError(f"{replica.name}: more places given back than were reserved")
        self._reserve(replica, -requests)
        self.waits.notify()

    def fail(self, replica: Replica, error: Exception) -> None:
        """Take a broken replica out of use, end what is in flight on it, and tell ``on_failure``; all of it once."""
        if replica.failed:
            return
        self.close_gate(replica)
        replica.failed = True
        self._working -= replica in self._replicas
        in_flight, replica.in_flight = tuple(replica.in_flight), {}
        for hear in in_flight:
            hear(replica, error)
        self.waits.notify()
        self.on_failure(replica, error)

    def add(self, replica: Replica) -> None:
        """Add a replica whose engine is started and serves the current version, with its gate open."""
        self._replicas = [*self.replicas, replica]
        self._working = len(self._replicas)
        self.open_gate(replica)

    def open_gate(self, replica: Replica) -> None:
        """Admit on a replica, at the version that it serves now; nothing happens to a failed one."""
        if not replica.failed and not replica.admitting:
            replica.admitting = True
            replica.gate_version = replica.engine.version
            replica.slots = replica.engine.capacity.running_requests
            self._open.setdefault(replica.gate_version, _OpenGates()).add(replica)
        self.waits.notify()

    def close_gate(self, replica: Replica) -> None:
        """Stop admission on a replica; what is placed goes on."""
        if replica.admitting:
            replica.admitting = False
            gates = self._open[replica.gate_version]
            gates.remove(replica)
            if not gates.count:
                del self._open[replica.gate_version]

    def close_gates(self) -> None:
        """Stop admission everywhere."""
        for replica in self.replicas:
            self.close_gate(replica)

    def open_gates(self) -> None:
        """Admit everywhere again, except on failed replicas."""
        for replica in self.replicas:
            self.open_gate(replica)

    def _reserve(self, replica: Replica, requests: int) -> None:
        if replica.admitting:
            gates = self._open[replica.gate_version]
            gates.remove(replica)
            replica.reserved += requests
            gates.add(replica)
        else:
            replica.reserved += requests


def _fail_the_run(replica: Replica, error: Exception) -> None:
    raise RunFailed(f"the engine failed: {describe(error)}", where=replica.name) from error
