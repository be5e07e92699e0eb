"""A rollout engine without a model: right in what it promises, simulated in how long it takes.

Run it under :func:`~grpo.engine.virtual_clock.run_virtual`. A decode step with ``n`` running requests takes
``decode_base_s + n * decode_per_request_s`` and gives each one token, so all running requests share one clock that
counts tokens: a request that joined when it stood at ``c`` and is ``m`` tokens long ends when it stands at ``c + m``.
Events cost O(log n), however long the responses are.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

from grpo.errors import RunFailed
from grpo.plan.job import SimulationSpec
from grpo.types import (
    EngineCapacity,
    EngineStats,
    FinishReason,
    PolicySpan,
    Response,
    SampleRequest,
)
from grpo.weights.protocol import WeightSource

FOREVER_S = 1e12
MASK_64 = (1 << 64) - 1
STANDARD_NORMAL = NormalDist()
FaultKind = Literal["die", "hang", "garbage", "wrong_version", "stuck_load"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong ``at_s`` seconds after the engine started.

    ``die``: every request raises. ``hang``: no token comes any more. ``garbage``: responses have a log-probability that
    is not a number. ``wrong_version``: updates are acknowledged with the version before. ``stuck_load``: loading never
    ends.
    """

    kind: FaultKind
    at_s: float


@dataclass(slots=True)
class _Running:
    request: SampleRequest
    future: asyncio.Future[Response]
    length: int
    joined: float = 0.0  # the token clock when it joined
    spans: list[PolicySpan] = field(default_factory=list)
    ids: tuple[int, ...] = ()  # what was sampled before the latest load
    gone: bool = False


class SimulatedEngine:
    """The Engine protocol over :class:`~grpo.plan.job.SimulationSpec`.

    Token ids say which version sampled them, and log-probabilities are a function of the token's index, so that a test
    sees any change.

    Made inside the event loop that it lives on.

    Args:
        faults: planned ones; ``spec.engine_failure_rate`` adds random ones, drawn from the requests' seeds.
    """

    def __init__(
        self, name: str, spec: SimulationSpec, *, running_requests: int, context: int, faults: tuple[Fault, ...] = ()
    ) -> None:
        self._name = name
        self._spec = spec
        self._slots = running_requests
        self._context = context
        self._faults = faults
        self._version = -1
        self._started = 0.0
        self._broken: Exception | None = None
        self._paused = False
        self._stopped = False  # for ever: it hangs or is broken
        self._waiting: deque[_Running] = deque()
        self._heap: list[tuple[float, int, _Running]] = []
        self._by_id: dict[str, _Running] = {}
        self._running = 0
        self._serial = 0
        self._clock = 0.0  # tokens that a request running all the time would have got
        self._clock_time = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        self.tokens_generated = 0
        self.busy_s = 0.0

    @property
    def name(self) -> str:
        """The engine's name."""
        return self._name

    @property
    def version(self) -> int:
        """Policy version of the weights."""
        return self._version

    @property
    def capacity(self) -> EngineCapacity:
        """Slots, and a full context for each."""
        return EngineCapacity(self._slots, self._slots * self._context)

    async def start(self, version: int) -> None:
        """Serve ``version``, after as long as a load takes."""
        loop = self._loop
        await asyncio.sleep(self._spec.load_s)
        self._version = version
        self._started = self._clock_time = loop.time()
        for fault in self._faults:
            if fault.kind == "die":
                loop.call_later(fault.at_s, self._die, RuntimeError("the simulated engine died"))
            elif fault.kind == "hang":
                loop.call_later(fault.at_s, self._stop_for_ever)

    async def generate(self, request: SampleRequest) -> Response:
        """Sample one response; waits for a slot, then for as many decode steps as it has tokens."""
        if self._broken is not None:
            raise RunFailed(str(self._broken), where=self._name)
        one = _Running(request, self._loop.create_future(), self._length(request))
        self._by_id[request.request_id] = one
        self._empty.clear()
        self._waiting.append(one)
        self._admit()
        try:
            return await one.future
        except asyncio.CancelledError:
            self._drop(one)
            self._admit()
            raise

    async def pause(self) -> None:
        """Stop the token clock."""
        self._advance()
        self._paused = True
        self._arm()

    async def resume(self) -> None:
        """Start the token clock."""
        self._advance()
        self._paused = False
        self._admit()

    async def load(self, weights: WeightSource, version: int) -> None:
        """Take ``load_s`` seconds, then serve ``version``."""
        self._check_still()
        self._advance()
        for _, _, one in self._heap:
            if not one.gone:
                self._sample(one, self._done(one))
        await asyncio.sleep(FOREVER_S if self._has("stuck_load") else self._spec.load_s)
        self._version = version - 1 if self._has("wrong_version") else version

    async def rebuild(self) -> None:
        """Take as long as a prefill of everything in flight takes."""
        self._check_still()
        self._advance()
        tokens = sum(len(one.request.prompt_tokens) + self._done(one) for _, _, one in self._heap if not one.gone)
        if tokens:
            await asyncio.sleep(tokens / self._spec.prefill_tokens_per_s)
        for _, _, one in self._heap:
            if not one.gone:
                _open_span(one, self._done(one), self._version)

    async def drain(self, deadline_s: float) -> None:
        """Wait until nothing is queued or running."""
        async with asyncio.timeout(deadline_s):
            await self._empty.wait()

    async def abort(self, request_id: str) -> None:
        """End a request with the tokens that it has."""
        one = self._by_id.get(request_id)
        if one is None or one.gone:
            return
        self._advance()
        tokens = self._done(one) if one.spans else 0
        self._drop(one)
        if not one.future.done():
            one.future.set_result(self._response(one, tokens, FinishReason.ABORT))
        self._admit()

    async def stats(self) -> EngineStats:
        """Return a moment's figures."""
        self._advance()
        queued = sum(not one.gone for one in self._waiting)
        tokens = self.tokens_generated + sum(self._done(one) for _, _, one in self._heap if not one.gone)
        return EngineStats(self._version, self._running, queued, tokens, self._running / self._slots)

    async def close(self) -> None:
        """Fail what is left."""
        self._die(RunFailed("the engine was closed", where=self._name))

    # -- the token clock --------------------------------------------------------------------------------------------

    def _step_s(self) -> float:
        return self._spec.decode_base_s + self._running * self._spec.decode_per_request_s

    def _advance(self) -> None:
        now = self._loop.time()
        if not self._paused and not self._stopped and self._running:
            self._clock += (now - self._clock_time) / self._step_s()
            self.busy_s += now - self._clock_time
        self._clock_time = now

    def _done(self, one: _Running) -> int:
        return min(one.length, int(self._clock - one.joined + 1e-6))

    def _admit(self) -> None:
        """Fill free slots, and set the timer for the next end."""
        static_busy = self._spec.batching == "static" and self._running > 0
        if self._waiting and self._running < self._slots and not self._paused and not self._stopped and not static_busy:
            self._advance()
            while self._waiting and self._running < self._slots:
                one = self._waiting.popleft()
                if one.gone:
                    continue
                one.joined = self._clock
                _open_span(one, 0, self._version)
                self._serial += 1
                heapq.heappush(self._heap, (one.joined + one.length, self._serial, one))
                self._running += 1
        self._arm()

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].gone:
            heapq.heappop(self._heap)
        if not self._heap or self._paused or self._stopped:
            self._disarm()
            return
        at = self._clock_time + max(0.0, self._heap[0][0] - self._clock) * self._step_s()
        if at < self._timer_at:  # one that is early finds nothing to end and sets the next: cheaper than setting it now
            self._disarm()
            self._timer_at = at
            self._timer = self._loop.call_at(at, self._fire)

    def _disarm(self) -> None:
        self._timer_at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._advance()
        while self._heap and (self._heap[0][2].gone or self._heap[0][0] <= self._clock + 1e-6):
            one = heapq.heappop(self._heap)[2]
            if one.gone:
                continue
            self._finish(one)
        self._admit()

    def _finish(self, one: _Running) -> None:
        if _uniform(one.request.params.seed ^ 0x5EED) < self._spec.engine_failure_rate:
            self._die(RuntimeError("the simulated engine broke under a request"))  # this one among its requests
            return
        self._forget(one)
        self._running -= 1
        finish = FinishReason.LENGTH if one.length >= one.request.params.max_tokens else FinishReason.STOP
        self.tokens_generated += one.length
        if not one.future.done():
            one.future.set_result(self._response(one, one.length, finish))

    def _drop(self, one: _Running) -> None:
        if one.gone:
            return
        self._advance()
        if one.spans:
            self._running -= 1
        self._forget(one)
        self._arm()

    def _forget(self, one: _Running) -> None:
        one.gone = True
        self._by_id.pop(one.request.request_id, None)
        if not self._by_id:
            self._empty.set()

    def _sample(self, one: _Running, tokens: int) -> None:
        """Sample under the weights of now until there are ``tokens`` ids."""
        one.ids += (self._version,) * (tokens - len(one.ids))

    # -- what is in a response ----------------------------------------------------------------------------------------

    def _length(self, request: SampleRequest) -> int:
        # By inverting the distribution function at a number that the seed gives; seeding a generator would cost more
        # than the rest of the request.
        normal = self._spec.length_sigma * STANDARD_NORMAL.inv_cdf(_uniform(request.params.seed))
        return max(1, min(request.params.max_tokens, round(self._spec.length_median * math.exp(normal))))

    def _response(self, one: _Running, tokens: int, finish: FinishReason) -> Response:
        self._sample(one, tokens)
        spans = tuple(one.spans if tokens else ())
        if spans and spans[-1].start >= tokens:  # opened by a load, but never sampled from
            spans = tuple(span for span in spans if span.start < tokens)
        logprob = math.nan if self._has("garbage") else -0.5
        return Response(one.request.request_id, one.ids, (logprob,) * tokens, spans, finish)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _has(self, kind: FaultKind) -> bool:
        if not self._faults:
            return False
        age = self._loop.time() - self._started
        return any(fault.kind == kind and age >= fault.at_s for fault in self._faults)

    def _die(self, error: Exception) -> None:
        self._stop_for_ever(error)
        for one in tuple(self._by_id.values()):
            self._forget(one)
            if not one.future.done():
                one.future.set_exception(RunFailed(str(error), where=self._name))
        self._waiting.clear()
        self._heap.clear()
        self._running = 0

    def _stop_for_ever(self, error: Exception | None = None) -> None:
        self._advance()
        self._stopped = True
        self._broken = self._broken or error
        self._disarm()

    def _check_still(self) -> None:
        if self._broken is not None:
            raise RunFailed(str(self._broken), where=self._name)
        if self._running and not self._paused and not self._stopped:
            raise AssertionError(f"{self._name}: weights must not change under a running decode")


def _uniform(seed: int) -> float:
    """Return a number in (0, 1) that looks independent for every 64-bit seed (the finalizer of splitmix64)."""
    mixed = (seed + 0x9E3779B97F4A7C15) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return ((mixed ^ (mixed >> 31)) >> 11 | 1) * 2.0**-53


def _open_span(one: _Running, start: int, version: int) -> None:
    """From token ``start`` on, ``version`` samples; a span without a token gives way."""
    while one.spans and one.spans[-1].start >= start:
        one.spans.pop()
    if not one.spans or one.spans[-1].version != version:
        one.spans.append(PolicySpan(start, version))
