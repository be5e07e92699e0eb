"""The ledger: what happened to every prompt. A state machine with a conservation law, checked at every transition.

An *attempt* is one generation of a group. Every admitted attempt ends exactly once::

    pending -> in_flight -> graded -> buffered -> trained
                   |           |          +-----> stale
                   |           +-> zero_std | truncated | ungraded
                   +-> failed | cancelled

and at every moment ``admitted == in_flight + graded + buffered + ended``. An attempt that ended ``stale``, ``failed``,
``ungraded`` or ``cancelled`` may put its group back to pending; the group then keeps its id and counts up its attempt.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Where a group is."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    GRADED = "graded"
    BUFFERED = "buffered"
    TRAINED = "trained"
    ZERO_STD = "zero_std"
    TRUNCATED = "truncated"
    STALE = "stale"
    UNGRADED = "ungraded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = (State.IN_FLIGHT, State.GRADED, State.BUFFERED)
OUTSTANDING = (State.IN_FLIGHT, State.GRADED)
"""Live, but not in the buffer yet."""
ENDS = frozenset(State) - {State.PENDING, *LIVE}
RETRYABLE = frozenset({State.STALE, State.UNGRADED, State.FAILED, State.CANCELLED})
ALLOWED: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.IN_FLIGHT}),
    State.IN_FLIGHT: frozenset({State.GRADED, State.FAILED, State.CANCELLED}),
    State.GRADED: frozenset({State.BUFFERED, State.ZERO_STD, State.TRUNCATED, State.UNGRADED, State.CANCELLED}),
    State.BUFFERED: frozenset({State.TRAINED, State.STALE, State.CANCELLED}),
}


class LedgerError(AssertionError):
    """A transition that the state machine does not have, or a broken conservation law: a bug, never a user's error."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One group that has not ended for good.

    Attributes:
        attempt: 0 at the first generation.
        source: the task or file that the prompt comes from.
        version: of the policy when the attempt was admitted; a lower bound of the version of its tokens.
    """

    group_id: int
    prompt_id: str
    state: State = State.PENDING
    attempt: int = 0
    version: int = -1
    source: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the audit trail."""

    group_id: int
    attempt: int
    prompt_id: str
    before: State
    after: State
    version: int
    reason: str = ""
    retried: bool = False
    source: str = ""


class Ledger:
    """Owns the state of every group that was drawn and has not ended for good.

    Args:
        listener: called with every transition, after it was made.
    """

    def __init__(self, listener: Callable[[Transition], None] = lambda transition: None) -> None:
        self._listener = listener
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._live: dict[State, int] = dict.fromkeys(LIVE, 0)
        self._ended: Counter[State] = Counter()
        self._outstanding: Counter[int] = Counter()
        self._admitted = 0
        self._drawn = 0
        self._retired = 0

    @property
    def drawn(self) -> int:
        """Groups drawn so far; also the next group id."""
        return self._drawn

    @property
    def admitted(self) -> int:
        """Attempts admitted so far."""
        return self._admitted

    @property
    def ended(self) -> Mapping[State, int]:
        """Attempts ended so far, by outcome; retried ones included."""
        return self._ended

    @property
    def live(self) -> int:
        """Attempts in flight, graded or buffered."""
        return sum(self._live.values())

    @property
    def outstanding(self) -> Mapping[int, int]:
        """How many groups of each admission version are in flight or graded, not in the buffer yet."""
        return self._outstanding

    def count(self, state: State) -> int:
        """Return how many groups are in a state that is not an end."""
        return self._live[state] if state in LIVE else len(self._entries) - self.live

    def entry(self, group_id: int) -> Entry:
        """Return a group that has not ended for good; raises KeyError otherwise."""
        return self._entries[group_id]

    def entries(self) -> tuple[Entry, ...]:
        """Return every group that has not ended for good, in the order in which they were drawn."""
        return tuple(self._entries.values())

    def draw(self, prompt_id: str, source: str = "") -> Entry:
        """Add a new pending group."""
        entry = Entry(self._drawn, prompt_id, source=source)
        self._drawn += 1
        self._entries[entry.group_id] = entry
        return entry

    def admit(self, group_id: int, version: int) -> Entry:
        """Move a pending group into flight under policy ``version``."""
        self._admitted += 1
        return self._move(group_id, State.IN_FLIGHT, version=version)

    def advance(self, group_id: int, state: State) -> Entry:
        """Move a group to ``graded`` or ``buffered``."""
        if state not in LIVE:
            raise LedgerError(f"group {group_id}: {state} is an end; use end()")
        return self._move(group_id, state)

    def end(self, group_id: int, outcome: State, reason: str = "", *, retry: bool = False) -> Entry:
        """End the attempt of a group; with ``retry`` the group goes back to pending with the next attempt."""
        if outcome not in ENDS or (retry and outcome not in RETRYABLE):
            raise LedgerError(f"group {group_id}: {outcome} is not an end{' that may be retried' if retry else ''}")
        return self._move(group_id, outcome, reason=reason, retry=retry)

    def _move(
        self, group_id: int, after: State, *, version: int | None = None, reason: str = "", retry: bool = False
    ) -> Entry:
        old = self._entries.get(group_id)
        if old is None or after not in ALLOWED[old.state]:
            raise LedgerError(f"group {group_id}: {old.state if old else 'unknown'} -> {after} is not a transition")
        version = old.version if version is None else version
        entry = Entry(group_id, old.prompt_id, after, old.attempt, version, old.source)
        if old.state in LIVE:
            self._live[old.state] -= 1
        if old.state in OUTSTANDING:
            self._track(entry.version, -1)
        if after in OUTSTANDING:
            self._track(entry.version, +1)
        if after in LIVE:
            self._live[after] += 1
            self._entries[group_id] = entry
        else:
            self._ended[after] += 1
            if retry:
                self._entries[group_id] = Entry(
                    group_id, old.prompt_id, State.PENDING, old.attempt + 1, version, old.source
                )
            else:
                del self._entries[group_id]
                self._retired += 1
        self.check()
        self._listener(
            Transition(group_id, entry.attempt, entry.prompt_id, old.state, after, version, reason, retry, old.source)
        )
        return entry

    def _track(self, version: int, change: int) -> None:
        self._outstanding[version] += change
        if not self._outstanding[version]:
            del self._outstanding[version]

    def check(self) -> None:
        """Raise LedgerError unless both conservation laws hold: of attempts and of groups."""
        live, ended = sum(self._live.values()), sum(self._ended.values())
        if self._admitted != live + ended:
            raise LedgerError(f"{self._admitted} admitted, but {live} live and {ended} ended")
        if self._drawn != len(self._entries) + self._retired:
            raise LedgerError(f"{self._drawn} drawn, but {len(self._entries)} held and {self._retired} retired")

    def snapshot(self) -> dict[str, Any]:
        """Return a JSON-able state; :meth:`load` cancels every live attempt of it back to pending.

        That is what a checkpoint needs: responses in flight are not saved, their prompts are.
        """
        return {
            "drawn": self._drawn,
            "admitted": self._admitted,
            "retired": self._retired,
            "ended": {state.value: count for state, count in sorted(self._ended.items()) if count},
            "groups": [asdict(entry) for entry in self._entries.values()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`snapshot`, on a ledger that nothing was drawn from; all groups are pending afterwards."""
        if self._drawn:
            raise LedgerError(f"{self._drawn} groups were drawn from it already")
        self._drawn, self._admitted, self._retired = state["drawn"], state["admitted"], state["retired"]
        self._ended = Counter({State(name): count for name, count in state["ended"].items()})
        entries = [Entry(**{**row, "state": State(row["state"])}) for row in state["groups"]]
        for entry in entries:
            self._entries[entry.group_id] = entry
            if entry.state in OUTSTANDING:
                self._track(entry.version, +1)
            if entry.state in LIVE:
                self._live[entry.state] += 1
        self.check()
        for entry in entries:
            if entry.state in LIVE:
                self.end(entry.group_id, State.CANCELLED, "the run stopped", retry=True)
