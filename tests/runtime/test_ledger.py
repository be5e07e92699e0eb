"""The ledger's state machine and its conservation law."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from grpo.runtime.ledger import ALLOWED, ENDS, LIVE, RETRYABLE, Ledger, LedgerError, State, Transition


def test_a_group_goes_from_pending_to_trained_and_every_step_is_told() -> None:
    heard: list[Transition] = []
    ledger = Ledger(heard.append)
    entry = ledger.draw("addition/1+2")
    ledger.admit(entry.group_id, version=3)
    ledger.advance(entry.group_id, State.GRADED)
    ledger.advance(entry.group_id, State.BUFFERED)
    ledger.end(entry.group_id, State.TRAINED)
    assert heard == [
        Transition(0, 0, "addition/1+2", State.PENDING, State.IN_FLIGHT, 3),
        Transition(0, 0, "addition/1+2", State.IN_FLIGHT, State.GRADED, 3),
        Transition(0, 0, "addition/1+2", State.GRADED, State.BUFFERED, 3),
        Transition(0, 0, "addition/1+2", State.BUFFERED, State.TRAINED, 3),
    ]
    assert ledger.entries() == ()
    assert ledger.ended == {State.TRAINED: 1}


def test_a_retried_group_keeps_its_id_and_counts_up_its_attempt() -> None:
    ledger = Ledger()
    ledger.draw("a")
    ledger.admit(0, 1)
    ledger.end(0, State.FAILED, "engine died", retry=True)
    assert (ledger.entry(0).state, ledger.entry(0).attempt) == (State.PENDING, 1)
    ledger.admit(0, 2)
    assert (ledger.admitted, ledger.drawn, ledger.ended) == (2, 1, {State.FAILED: 1})


@pytest.mark.parametrize("outcome", sorted(ENDS - RETRYABLE))
def test_an_outcome_that_is_final_cannot_be_retried(outcome: State) -> None:
    ledger = Ledger()
    ledger.draw("a")
    ledger.admit(0, 0)
    with pytest.raises(LedgerError, match="is not an end that may be retried"):
        ledger.end(0, outcome, retry=True)


def test_a_group_cannot_end_twice() -> None:
    ledger = Ledger()
    ledger.draw("a")
    ledger.admit(0, 0)
    ledger.end(0, State.CANCELLED)
    with pytest.raises(LedgerError, match="unknown -> cancelled is not a transition"):
        ledger.end(0, State.CANCELLED)


class Model(RuleBasedStateMachine):
    """Any allowed sequence of transitions, mirrored in plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Transition] = []
        self.ledger = Ledger(self.heard.append)
        self.states: dict[int, State] = {}
        self.versions: dict[int, int] = {}
        self.ended: Counter[State] = Counter()
        self.admitted = 0
        self.drawn = 0

    @rule()
    def draw(self) -> None:
        entry = self.ledger.draw(f"prompt-{self.drawn}")
        assert entry.group_id == self.drawn
        self.states[entry.group_id] = State.PENDING
        self.drawn += 1

    @precondition(lambda self: self.states)
    @rule(data=st.data(), version=st.integers(0, 5), retry=st.booleans())
    def move(self, data: st.DataObject, version: int, retry: bool) -> None:
        group = data.draw(st.sampled_from(sorted(self.states)))
        after = data.draw(st.sampled_from(sorted(ALLOWED[self.states[group]])))
        if after is State.IN_FLIGHT:
            self.ledger.admit(group, version)
            self.versions[group] = version
            self.admitted += 1
        elif after in LIVE:
            self.ledger.advance(group, after)
        else:
            retry = retry and after in RETRYABLE
            self.ledger.end(group, after, retry=retry)
            self.ended[after] += 1
            if retry:
                self.states[group] = State.PENDING
            else:
                del self.states[group]
            return
        self.states[group] = after

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.states)))
        before = self.ledger.snapshot()
        forbidden = sorted((frozenset(LIVE) - {State.IN_FLIGHT}) - ALLOWED[self.states[group]])
        if forbidden:
            with pytest.raises(LedgerError):
                self.ledger.advance(group, data.draw(st.sampled_from(forbidden)))
        assert self.ledger.snapshot() == before

    @invariant()
    def counts_agree(self) -> None:
        counts = Counter(self.states.values())
        assert {state: self.ledger.count(state) for state in (State.PENDING, *LIVE)} == {
            state: counts[state] for state in (State.PENDING, *LIVE)
        }
        assert dict(self.ledger.ended) == dict(self.ended)
        assert self.ledger.admitted == self.admitted == sum(counts[state] for state in LIVE) + self.ended.total()
        outstanding = Counter(
            self.versions[group] for group, state in self.states.items() if state in (State.IN_FLIGHT, State.GRADED)
        )
        assert dict(self.ledger.outstanding) == dict(outstanding)

    @invariant()
    def a_restored_snapshot_holds_every_group_as_pending(self) -> None:
        restored = Ledger()
        restored.load(json.loads(json.dumps(self.ledger.snapshot())))
        assert [entry.group_id for entry in restored.entries()] == sorted(self.states)
        assert {entry.state for entry in restored.entries()} <= {State.PENDING}
        assert restored.drawn == self.drawn
        assert all(
            entry.attempt == self.ledger.entry(entry.group_id).attempt + (self.states[entry.group_id] in LIVE)
            for entry in restored.entries()
        )


TestAnySequence = Model.TestCase
