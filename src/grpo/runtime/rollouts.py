"""Admission, generation, grading, filtering: from a prompt to a group in the buffer.

One loop admits groups; every group is a task of its own. All of it runs on the controller's event loop and shares one
:class:`~grpo.runtime.ledger.Ledger`, so no lock is needed: between two awaits nothing changes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo.crash import crash_point
from grpo.data.source import PromptSource, SourceState
from grpo.engine.fleet import Fleet, Replica
from grpo.errors import RunFailed, UserError, describe
from grpo.obs.observer import Observer
from grpo.plan.job import JobSpec
from grpo.rewards.truncation import Outcome, judge
from grpo.runtime.breaker import Breaker
from grpo.runtime.buffer import Buffer
from grpo.runtime.ledger import LIVE, Entry, Ledger, State
from grpo.runtime.sampler import EngineFailure, Sampler
from grpo.types import Group, Prompt, SampleRequest, SamplingParams
from grpo.waits import Waits

ENDS = {Outcome.ZERO_STD: State.ZERO_STD, Outcome.TRUNCATED: State.TRUNCATED, Outcome.UNGRADED: State.UNGRADED}


def response_seed(seed: int, group_id: int, attempt: int, index: int) -> int:
    """Return the 63-bit seed of one response: a function of what it is, not of when or where it is sampled."""
    digest = hashlib.blake2b(f"{seed}/{group_id}/{attempt}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True)
class Taken:
    """One collection as the trainer got it.

    Attributes:
        groups: by id; exactly ``rollout_batch_size`` of them.
        lags: of each, in optimizer steps, at the moment of taking.
        seen: every group graded since the last taking, dropped ones included; what reward metrics describe.
        outcomes: groups that ended since the last taking, by outcome. The groups taken here are not among them.
    """

    groups: tuple[Group, ...]
    lags: tuple[int, ...]
    seen: tuple[Group, ...]
    outcomes: Counter[str]


class Rollouts:
    """Keeps the buffer filled, paced by lag.

    Args:
        policy_version: returns the learner's version now.
        stop_token_ids: end a response.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        fleet: Fleet,
        sampler: Sampler,
        source: PromptSource,
        ledger: Ledger,
        waits: Waits,
        observer: Observer,
        policy_version: Callable[[], int],
        stop_token_ids: tuple[int, ...],
    ) -> None:
        self._job = job
        self._fleet = fleet
        self._sampler = sampler
        self._source = source
        self._ledger = ledger
        self._waits = waits
        self._observer = observer
        self._policy_version = policy_version
        self._stop_token_ids = stop_token_ids
        self.buffer = Buffer(job.batch, job.sync, lambda: ledger.outstanding)
        self._prompts: dict[int, Prompt] = {}
        self._retries: deque[int] = deque()
        self._in_training = 0
        self._taken = 0
        self._next_version = policy_version()
        self._seen: list[Group] = []
        self._outcomes: Counter[str] = Counter()
        self._fruitless = 0
        self._breaker = Breaker(job.filter)
        self.tokens_generated = 0

    # -- admission ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Admit groups for ever; ends by cancellation, and then cancels every group in flight.

        Waits for room (pacing, the buffer, the demand that is left) and for an open gate. The trainer taking groups, a
        publication opening gates and groups ending each unblock it.
        """
        try:
            async with asyncio.TaskGroup() as groups:
                while True:
                    places = await self._waits.until("admission", self._blocked_by, self._place, ready=self._has_place)
                    entry = self._next_entry()
                    self._ledger.admit(entry.group_id, min([replica.gate_version for replica in places]))
                    crash_point("group.admitted")
                    groups.create_task(self._follow(entry, places), name=f"group-{entry.group_id}")
        finally:
            for entry in self._ledger.entries():
                if entry.state in LIVE:  # graded or buffered, and nobody will take it any more
                    self._ledger.end(entry.group_id, State.CANCELLED, "the run ended")

    def _full(self) -> bool:
        """Whether there is no room for another group.

        The capacity of the buffer holds at admission: groups in flight when it fills up still find a place.
        """
        sync, live = self._job.sync, self._ledger.live
        return (
            live + self._in_training >= sync.max_groups_in_system
            or live >= self._groups_to_train()
            or len(self.buffer) >= sync.buffer_groups
        )

    def _groups_to_train(self) -> int:
        return (self._job.batch.num_rollouts - self._taken) * self._job.batch.rollout_batch_size

    def _oldest_version_admitted(self) -> int:
        """The oldest version that a group admitted now may have, so as not to age out before it is taken.

        With ``n`` groups before it and ``B`` taken at a time, it is taken ``floor(n / B)`` takings after the next one,
        each ``k`` optimizer steps later; at that moment its lag must be within the limit.
        """
        batch = self._job.batch
        takings = self._ledger.live // batch.rollout_batch_size
        return self._next_version + batch.steps_per_collection * takings - self._job.sync.max_policy_lag

    def _blocked_by(self) -> str:
        sync, live = self._job.sync, self._ledger.live
        if live >= self._groups_to_train():
            return "nothing: enough groups are admitted to finish the run"
        if live + self._in_training >= sync.max_groups_in_system:
            return f"the trainer: {live} groups live and {self._in_training} in training of {sync.max_groups_in_system}"
        if len(self.buffer) >= sync.buffer_groups:
            return f"the trainer: the buffer is full with {len(self.buffer)} groups"
        return f"a free slot behind an open gate, at version {self._oldest_version_admitted()} or newer"

    def _has_place(self) -> bool:
        return not self._full() and self._fleet.find(min_version=self._min_version()) is not None

    def _min_version(self) -> int:
        return self._oldest_version_admitted() if self._job.sync.paced else 0

    def _place(self) -> list[Replica] | None:
        if self._full():
            return None
        oldest = self._min_version()
        samples = self._job.batch.samples_per_prompt
        if self._job.sync.submission == "group":
            replica = self._fleet.place(samples, min_version=oldest)
            return [replica] * samples if replica else None
        first = self._fleet.place(1, min_version=oldest)
        if first is None:
            return None
        # Gates and versions change only between awaits, so the siblings find a place too; they may queue for a slot.
        more = [self._fleet.place(1, min_version=oldest, queue=True) for _ in range(samples - 1)]
        return [first, *(place for place in more if place is not None)]

    def _next_entry(self) -> Entry:
        if self._retries:
            return self._ledger.entry(self._retries.popleft())
        prompt = self._source.next()
        entry = self._ledger.draw(prompt.id, prompt.source)
        self._prompts[entry.group_id] = prompt
        return entry

    # -- one group ------------------------------------------------------------------------------------------------

    async def _follow(self, entry: Entry, places: list[Replica]) -> None:
        """Take one attempt of a group from its reservation to its end or to the buffer.

        Waits for its responses and grades. An attempt that an engine failed goes back to pending.
        """
        prompt = self._prompts[entry.group_id]
        requests = [
            SampleRequest(f"{entry.group_id}.{entry.attempt}.{index}", prompt.tokens, self._params(entry, index))
            for index in range(len(places))
        ]
        try:
            answers = await self._sampler.sample(f"group {entry.group_id}", prompt, requests, places)
        except asyncio.CancelledError:
            self._ledger.end(entry.group_id, State.CANCELLED, "the run ended")
            raise
        if isinstance(answers, EngineFailure):
            self._end_failed(entry, answers)
            return
        self.tokens_generated += sum(len(response.tokens) for response in answers.responses)
        self._ledger.advance(entry.group_id, State.GRADED)
        crash_point("group.graded")
        group = Group(entry.group_id, entry.attempt, prompt, answers.responses, answers.grades)
        self._seen.append(group)
        self._breaker.see(group)
        self._settle(group)
        self._waits.notify()

    def _end_failed(self, entry: Entry, failure: EngineFailure) -> None:
        retry = entry.attempt + 1 < self._job.filter.max_attempts
        names = ", ".join(replica.name for replica in failure.replicas)
        reason = f"{names}: {describe(failure.error)}"
        self._ledger.end(entry.group_id, State.FAILED, reason, retry=retry)
        self._outcomes[State.FAILED.value] += 1
        if retry:
            self._retries.append(entry.group_id)
        else:
            self._give_up(entry.group_id, entry.attempt, f"{State.FAILED} ({reason})")
        self._waits.notify()

    def _params(self, entry: Entry, index: int) -> SamplingParams:
        sampling = self._job.sampling
        return SamplingParams(
            max_tokens=self._job.batch.max_response_length,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=self._stop_token_ids,
            seed=response_seed(sampling.seed, entry.group_id, entry.attempt, index),
        )

    def _settle(self, group: Group) -> None:
        """Decide what becomes of a graded group."""
        outcome = judge(group, self._job.filter)
        if outcome is Outcome.TRAIN:
            self._fruitless = 0
            self._ledger.advance(group.group_id, State.BUFFERED)
            crash_point("group.buffered")
            if self._lag(group) > self._job.sync.max_policy_lag:
                self._end_stale(group)
            else:
                self.buffer.put(group)
            return
        self._fruitless += 1
        self._end(group, ENDS[outcome], retry=outcome is Outcome.UNGRADED)
        if self._fruitless >= self._job.filter.starvation_groups:
            ends = {state.value: count for state, count in sorted(self._ledger.ended.items())}
            raise RunFailed(
                f"{self._fruitless} groups in a row had nothing to learn from; groups ended so far: {ends}",
                where="training.filter_zero_std_groups",
                fix="All-wrong groups: the task is too hard or the verifier never agrees; look at the rollouts. "
                "All-right groups: the task is solved.",
            )

    def _lag(self, group: Group) -> int:
        return self._policy_version() - group.min_version

    def _end_stale(self, group: Group) -> None:
        self._end(group, State.STALE, lag=self._lag(group), retry=self._job.sync.stale == "retry")

    def _end(self, group: Group, state: State, *, lag: int | None = None, retry: bool = False) -> None:
        again = retry and group.attempt + 1 < self._job.filter.max_attempts
        self._ledger.end(group.group_id, state, retry=again)
        if again:
            self._retries.append(group.group_id)
        elif retry:
            self._give_up(group.group_id, group.attempt, state)
        else:
            del self._prompts[group.group_id]
        if state is not State.TRAINED:
            self._outcomes[state.value] += 1
        self._observer.group_ended(group, state.value, lag)

    def _give_up(self, group_id: int, attempt: int, outcome: str) -> None:
        prompt = self._prompts.pop(group_id)
        self._observer.warning(f"prompt {prompt.id} is given up after {attempt + 1} attempts; the last one: {outcome}")

    # -- the trainer's side ---------------------------------------------------------------------------------------

    async def take(self, stopping: Callable[[], bool] = lambda: False) -> Taken | None:
        """Return one collection for the policy version of now; None, with nothing taken, once ``stopping`` says so.

        Waits for enough groups within the lag limit, and under ``straggler = "wait"`` for groups that would be lost if
        they were passed, at most ``straggler_timeout_s``.
        """
        version = self._next_version = self._policy_version()
        for group in self.buffer.stale(version):
            self._end_stale(group)
        self._waits.notify()
        size = self._job.batch.rollout_batch_size
        await self._waits.until(
            "trainer",
            lambda: f"a full batch: {len(self.buffer)} of {size} groups",
            lambda: len(self.buffer) >= size or stopping(),
        )
        try:
            await self._waits.until(
                "trainer",
                "a group at the lag edge",
                lambda: stopping() or self.buffer.ready(version),
                timeout_s=self._job.sync.straggler_timeout_s,
            )
        except TimeoutError:
            timeout = self._job.sync.straggler_timeout_s
            self._observer.warning(f"step {version + 1}: passed a straggler after waiting {timeout:g} s for it")
        if stopping():
            return None
        groups = self.buffer.take(version)
        taken = Taken(groups, tuple(map(self._lag, groups)), tuple(self._seen), self._outcomes)
        self._seen, self._outcomes = [], Counter()
        self._taken += 1
        self._next_version = version + self._job.batch.steps_per_collection
        self._in_training = len(groups)
        for group, lag in zip(groups, taken.lags, strict=True):
            self._end(group, State.TRAINED, lag=lag)
        self._waits.notify()
        return taken

    def release(self) -> None:
        """Say that the taken collection is trained and published: its groups no longer count for pacing."""
        self._in_training = 0
        self._waits.notify()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to know of data and ledger, as JSON values."""
        cursor = self._source.state()
        return {
            "cursor": {"epoch": cursor.epoch, "position": cursor.position},
            "ledger": self._ledger.snapshot(),
            "retries": list(self._retries),
            "taken": self._taken,
            "outcomes": dict(self._outcomes),
        }

    def restore(self, state: Mapping[str, Any], prompts: Mapping[str, Prompt]) -> None:
        """Go on from :meth:`state`: what was live then is generated again, from its pristine prompt.

        Args:
            prompts: the training prompts by id.

        Raises UserError if a prompt of the checkpoint is not among them.
        """
        self._ledger.load(state["ledger"])
        self._source.restore(SourceState(**state["cursor"]))
        waiting = [entry.group_id for entry in self._ledger.entries()]
        for group_id in waiting:
            prompt_id = self._ledger.entry(group_id).prompt_id
            if prompt_id not in prompts:
                raise UserError(
                    f"the checkpoint holds prompt {prompt_id!r}, which the data no longer has",
                    fix="Resume with the data that the run was started with.",
                )
            self._prompts[group_id] = prompts[prompt_id]
        before = set(state["retries"])
        self._retries = deque([*state["retries"], *(group_id for group_id in waiting if group_id not in before)])
        self._taken = state["taken"]
        self._outcomes = Counter(state["outcomes"])
        self._next_version = self._policy_version()
