"""Jobs for a simulated fleet, and an audit of what such a run did."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.obs.observer import Observer
from grpo.obs.rows import StepRow
from grpo.plan.job import JobSpec
from grpo.runtime.ledger import ENDS, LIVE, State, Transition
from grpo.types import EvalScore, Group
from support.jobs import make_job


def fleet_job(
    *,
    mode: str = "refresh",
    lag: int = 2,
    groups: int = 4,
    samples: int = 4,
    rollouts: int = 8,
    steps: int = 1,
    engines: int = 2,
    slots: int = 8,
    limit: int = 2048,
    simulation: dict[str, Any] | None = None,
    filter: dict[str, Any] | None = None,
    failure: str = "fail",
    **sync: Any,
) -> JobSpec:
    """Return a job on a simulated fleet; ``sync`` overrides fields of ``SyncSpec``, deadlines are generous."""
    return make_job(
        Path("simulated"),
        batch=dict(
            num_rollouts=rollouts,
            rollout_batch_size=groups,
            samples_per_prompt=samples,
            global_batch_size=groups * samples // steps,
            steps_per_collection=steps,
            max_response_length=limit,
            eval_max_response_length=limit,
            max_context_length=limit + 512,
        ),
        sync={
            **dict(
                asynchronous=lag > 0,
                publication_mode=mode,
                max_policy_lag=lag,
                max_groups_in_system=(lag // steps + 1) * groups,
                buffer_groups=2 * groups,
                drain_timeout_s=1e7,
                update_timeout_s=1e5,
                request_timeout_s=1e7,
                straggler_timeout_s=1e7,
                watchdog_s=1e6,
            ),
            **sync,
        },
        filter=filter or {},
        engine=dict(
            backend="simulated",
            count=engines,
            running_requests=slots,
            failure=failure,
            simulation=simulation or {},
        ),
        evaluation=dict(initial=False, final=False),
    )


@dataclass
class Audit(Observer):
    """Hears everything that a run says, and checks what must hold at every moment."""

    job: JobSpec
    transitions: list[Transition] = field(default_factory=list)
    ended: list[tuple[Group, str, int | None]] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    retried: set[int] = field(default_factory=set)
    scores: list[EvalScore] = field(default_factory=list)

    def hear(self, transition: Transition) -> None:
        """Take a transition of the ledger."""
        self.transitions.append(transition)

    def group_ended(self, group: Group, outcome: str, lag: int | None) -> None:
        self.ended.append((group, outcome, lag))

    def step(self, row: StepRow) -> None:
        self.rows.append(row)

    def evaluation(self, score: EvalScore) -> None:
        self.scores.append(score)

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    @property
    def trained(self) -> list[Group]:
        """The groups that were trained, in the order of their taking."""
        return [group for group, outcome, _ in self.ended if outcome == "trained"]

    def check_attempts(self) -> None:
        """Replay the audit trail: every attempt goes through the states in order and ends exactly once."""
        where: dict[tuple[int, int], State] = {}
        for one in self.transitions:
            key = (one.group_id, one.attempt)
            assert where.get(key, State.PENDING) == one.before, one
            where[key] = one.after
        left = {key: state for key, state in where.items() if state not in ENDS}
        assert left == {}, f"still live at the end: {left}"
        assert not any(one.after in LIVE for one in self.transitions[-1:])

    def check_admission(self) -> None:
        """Replay admission: retries come first, in order; pacing and the buffer bound it; versions do not go back."""
        sync = self.job.sync
        retries: deque[int] = deque()
        states: Counter[State] = Counter()
        newest = 0
        for one in self.transitions:
            if one.before is State.PENDING:
                assert one.group_id == (retries.popleft() if retries else one.group_id), one
                assert (one.attempt == 0) or one.group_id in self.retried, one
                assert sum(states[state] for state in LIVE) < sync.max_groups_in_system
                assert states[State.BUFFERED] < sync.buffer_groups
                if sync.publication_mode != "engine_drain":
                    assert one.version >= newest, one
                    newest = one.version
            else:
                states[one.before] -= 1
            states[one.after] += 1
            if one.retried:
                retries.append(one.group_id)
                self.retried.add(one.group_id)

    def check_groups(self, retries: bool) -> None:
        """Every drawn group ended for good, or waits for a retry that the end of the run made needless."""
        self.check_admission()
        last: dict[int, Transition] = {one.group_id: one for one in self.transitions}
        for one in last.values():
            if one.after is State.STALE and retries and not one.retried:
                assert one.attempt + 1 == self.job.filter.max_attempts, one
            assert one.after in ENDS, one
        trained = Counter(one.group_id for one in self.transitions if one.after is State.TRAINED)
        assert set(trained.values()) <= {1}

    def check_training(self) -> None:
        """Batches are full, within the lag limit, and made of consistent groups."""
        batch, sync = self.job.batch, self.job.sync
        assert len(self.trained) == batch.num_rollouts * batch.rollout_batch_size
        for group, outcome, lag in self.ended:
            assert len(group.responses) == batch.samples_per_prompt
            for response in group.responses:
                # The simulated engine's token ids say which version sampled them, apart from the spans.
                assert response.token_versions() == list(response.tokens)
                assert list(response.tokens) == sorted(response.tokens)
                assert set(response.logprobs) == {-0.5}
            if outcome == "trained":
                assert lag is not None and 0 <= lag <= sync.max_policy_lag
            if sync.publication_mode != "refresh":
                assert len({version for response in group.responses for version in response.tokens}) == 1
        assert [row.learner.samples for row in self.rows] == [batch.global_batch_size] * batch.total_steps
        assert [row.step for row in self.rows] == list(range(1, batch.total_steps + 1))
