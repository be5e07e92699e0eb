"""One attempt of a group: its requests are sampled and graded side by side, or an engine breaks under it.

Each response is graded as soon as it ends, so a slow verifier works while the siblings decode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from grpo.engine.fleet import Fleet, Replica
from grpo.rewards.grader import Grades
from grpo.runtime.response import check_response
from grpo.types import Grade, Prompt, Response, SampleRequest, Ungraded
from grpo.waits import Wait

ABORT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Responses and grades of one attempt, in sample order."""

    responses: tuple[Response, ...]
    grades: tuple[Grade, ...]


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """Engines that raised, hung, or returned what they cannot have sampled; they are out of use by now."""

    replicas: tuple[Replica, ...]
    error: Exception


class Sampler:
    """Sends requests to the engines where they are placed, and their responses to the grader.

    Args:
        decode: token ids to the text that verifiers read.
        newest: returns the newest policy version that exists.
        timeout_s: for all responses of an attempt; then once more for all of its grades.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        grader: Grades,
        decode: Callable[[tuple[int, ...]], str],
        newest: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self.fleet = fleet
        self.grader = grader
        self.decode = decode
        self.newest = newest
        self.deadlines = Deadlines(timeout_s)
        self._attempts: dict[Attempt, None] = {}

    async def sample(
        self, name: str, prompt: Prompt, requests: Sequence[SampleRequest], places: Sequence[Replica]
    ) -> Answers | EngineFailure:
        """Sample and grade ``requests``, each on its reserved place; gives each reservation back as its response ends.

        Waits for every response and grade, at most ``timeout_s`` for each of the two. An engine that breaks is taken
        out of use, and the requests on other engines are aborted at once, so that nothing is left in flight when this
        returns or raises. A verifier that is too late leaves its responses ungraded.

        Args:
            name: of the attempt, in reports of who waits for what.
        """
        attempt = Attempt(self, name, prompt, requests, places)
        self._attempts[attempt] = None
        try:
            failure = await attempt.outcome
            if failure is None:
                return attempt.answers()
            for replica in failure.replicas:
                self.fleet.fail(replica, failure.error)
            await attempt.abort()
            return failure
        finally:
            await attempt.close()
            del self._attempts[attempt]

    def table(self) -> list[Wait]:
        """Return what every attempt in flight waits for, the longest first."""
        now = asyncio.get_running_loop().time()
        return [Wait(one.name, one.waits_for(), now - one.since) for one in self._attempts]


class Attempt:
    """The requests of one attempt while they are in flight.

    Attributes:
        outcome: None when everything is graded, or the failure that ends the attempt before.
    """

    def __init__(
        self,
        sampler: Sampler,
        name: str,
        prompt: Prompt,
        requests: Sequence[SampleRequest],
        places: Sequence[Replica],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.since = loop.time()
        self.outcome: asyncio.Future[EngineFailure | None] = loop.create_future()
        self._sampler = sampler
        self._prompt = prompt
        self._requests = requests
        self._places = places
        self._responses: list[Response | None] = [None] * len(requests)
        self._grades: list[Grade | None] = [None] * len(requests)
        self._placed = [True] * len(requests)
        self._unanswered = self._ungraded = len(requests)
        self._hears = self._hear_failure
        for replica in dict.fromkeys(places):
            replica.in_flight[self._hears] = None
        sampler.deadlines.start(self)
        self._tasks = [loop.create_task(self._one(index)) for index in range(len(requests))]

    async def _one(self, index: int) -> None:
        """Take one request to its grade; waits for its response, then for its verifier."""
        sampler, request, replica = self._sampler, self._requests[index], self._places[index]
        try:
            response = await replica.engine.generate(request)
            check_response(request, response, newest=sampler.newest())
        except Exception as error:
            self._fail((replica,), error)
            return
        finally:
            self._release(index)
        self._responses[index] = response
        self._unanswered -= 1
        if not self._unanswered:
            sampler.deadlines.start(self)  # again: what is left is grading
        try:
            grade = await sampler.grader.grade(self._prompt, response, sampler.decode(response.tokens))
        except Exception as error:  # a bug, not a verifier that could not decide: that is a grade
            if not self.outcome.done():
                self.outcome.set_exception(error)
            return
        self._grades[index] = grade
        self._ungraded -= 1
        if not self._ungraded and not self.outcome.done():
            self.outcome.set_result(None)

    def answers(self) -> Answers:
        """Return what was sampled; only after ``outcome`` is None."""
        responses = tuple(response for response in self._responses if response is not None)
        return Answers(responses, tuple(grade for grade in self._grades if grade is not None))

    def waits_for(self) -> str:
        """Return in words what the attempt waits for."""
        if self._unanswered:
            return f"{self._unanswered} responses of {', '.join(replica.name for replica in self._silent())}"
        return f"{self._ungraded} grades of verifier {self._prompt.verifier}"

    def expire(self) -> None:
        """The deadline is over: blame the engines that have not answered, or go on without the missing grades."""
        seconds = self._sampler.deadlines.timeout_s
        silent = self._silent()
        if silent:
            self._fail(silent, TimeoutError(f"{self.name} had no answer after {seconds:g} s"))
        elif not self.outcome.done():
            for index, grade in enumerate(self._grades):
                if grade is None:
                    self._grades[index] = Ungraded(
                        f"verifier {self._prompt.verifier!r} did not answer in {seconds:g} s"
                    )
            self.outcome.set_result(None)

    async def abort(self) -> None:
        """End what is left on engines that still work; waits for them to confirm, for a bounded time."""
        calls = [
            replica.engine.abort(request.request_id)
            for request, replica, placed in zip(self._requests, self._places, self._placed, strict=True)
            if placed and not replica.failed
        ]
        if not calls:
            return
        with suppress(Exception):  # the requests are cancelled next, whatever the engines say
            await asyncio.wait_for(asyncio.gather(*calls), ABORT_TIMEOUT_S)

    async def close(self) -> None:
        """Cancel what is left and wait until it is gone."""
        self._sampler.deadlines.stop(self)
        for replica in dict.fromkeys(self._places):
            replica.in_flight.pop(self._hears, None)
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if left:
            for index in range(len(self._placed)):
                self._release(index)  # a task that is cancelled before it began has not

    def _silent(self) -> tuple[Replica, ...]:
        pairs = zip(self._places, self._responses, strict=True)
        return tuple(dict.fromkeys(replica for replica, response in pairs if response is None))

    def _hear_failure(self, replica: Replica, error: Exception) -> None:
        if replica in self._silent():
            self._fail((replica,), error)

    def _fail(self, replicas: tuple[Replica, ...], error: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_result(EngineFailure(replicas, error))

    def _release(self, index: int) -> None:
        if self._placed[index]:
            self._placed[index] = False
            self._sampler.fleet.release(self._places[index], 1)


class Deadlines:
    """Many deadlines of one length under one timer: the attempt that started first expires first."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._due: dict[Attempt, float] = {}
        self._armed = False

    def start(self, attempt: Attempt) -> None:
        """Start the time of an attempt, or start it again."""
        loop = asyncio.get_running_loop()
        self._due.pop(attempt, None)
        self._due[attempt] = loop.time() + self.timeout_s
        if not self._armed:
            self._arm(loop)

    def stop(self, attempt: Attempt) -> None:
        """Forget an attempt."""
        self._due.pop(attempt, None)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._armed = True
        loop.call_at(next(iter(self._due.values())), self._fire)

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        self._armed = False
        while self._due:
            attempt, due = next(iter(self._due.items()))
            if due > loop.time():
                self._arm(loop)
                return
            del self._due[attempt]
            attempt.expire()
