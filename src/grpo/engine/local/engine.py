"""The local engine: the asynchronous side, which turns decode steps into responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from grpo.engine.local.decoder import Decoder, Sequence
from grpo.errors import GrpoError, RunFailed
from grpo.types import EngineCapacity, EngineStats, Response, SampleRequest
from grpo.weights.protocol import WeightSource

# Passes of the event loop between two inline decode steps. A finished response resumes the task that awaits it in the
# first pass; each task or future between that one and the submission of a next request takes one more.
_SETTLE_PASSES = 16

_T = TypeVar("_T")


class LocalEngine:
    """A rollout engine on the CPU, around any transformers causal LM with full attention.

    Continuous batching: a request joins the batch at the next decode step and leaves it at the step that ends it. One
    step samples one token for every running request. Each response has its own random stream, so that, up to float
    rounding, it depends on its prompt, its parameters and the weights, but not on what it is batched with.

    Behavior log-probabilities are ``log_softmax(logits / temperature)`` at the sampled token, float32, in nats, before
    top-p and top-k. Temperature 0 is greedy, with the log-probabilities of temperature 1.

    Why not transformers' own ``ContinuousBatchingManager`` (``generation/continuous_batching``, read and run at 5.17)?
    It batches continuously on a CPU (given psutil, which transformers does not install), but it has

    - no pause: its thread decodes whenever a request is pending; it can only be stopped, which flushes or fails them;
    - no way to load weights or to drop its KV and prefix cache while requests run, and no policy version of a token;
    - no result for a cancelled request: ``cancel_request`` frees its blocks and delivers nothing, so the tokens so far
      are lost, and whoever waits for them waits for ever;
    - log-probabilities only after top-k and top-p, and sampling or greedy for the whole manager, not for a request;
    - one global random stream (``torch.multinomial``), so that a response depends on what it is batched with, and no
      seed of a request;
    - its own thread only, so that what is batched with what depends on timing.

    Args:
        name: unique in a run.
        model_dir: Hugging Face folder with safetensors weights.
        running_requests: requests in one step; others wait in order of arrival.
        max_context_length: tokens of prompt and response together.
        dtype: of weights and cache; sampling is in float32.
        overlap: False runs the steps on the event loop's thread, and between two of them lets everything run that a
            finished response sets off without leaving that thread. Which requests share a step is then a function of
            the requests alone, and a run repeats bit for bit. True runs the steps on a thread of the engine's own, so
            that generation overlaps other work.
        bucket_bytes: weights are asked for in buckets of at most this size.
    """

    def __init__(
        self,
        name: str,
        model_dir: Path,
        *,
        running_requests: int,
        max_context_length: int,
        dtype: str = "float32",
        overlap: bool = False,
        bucket_bytes: int = 64 << 20,
    ) -> None:
        self._name = name
        self._model_dir = model_dir
        self._running_requests = running_requests
        self._max_context_length = max_context_length
        self._dtype = dtype
        self._bucket_bytes = bucket_bytes
        self._decoder: Decoder | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name) if overlap else None
        self._task: asyncio.Task[None] | None = None
        self._queue: dict[str, Sequence] = {}
        self._waiters: dict[str, asyncio.Future[Response]] = {}
        self._paused = False
        self._closed = False
        self._failure: BaseException | None = None
        self._work = asyncio.Event()  # set: there may be something to decode
        self._idle = asyncio.Event()  # set: nothing is queued or running
        self._idle.set()
        self._decoding = asyncio.Lock()  # held by a step, and by whatever must not happen during one

    @property
    def name(self) -> str:
        """Unique in a run."""
        return self._name

    @property
    def version(self) -> int:
        """Policy version of the weights that it serves now; -1 before :meth:`start`."""
        return -1 if self._decoder is None else self._decoder.version

    @property
    def capacity(self) -> EngineCapacity:
        """What it can hold; every running request may use the whole context."""
        return EngineCapacity(self._running_requests, self._running_requests * self._max_context_length)

    async def start(self, version: int) -> None:
        """Load the weights in ``model_dir`` as ``version`` and begin serving. Raises UserError for a bad folder."""
        if self._decoder is not None or self._closed:
            raise RunFailed("it was started before", where=self._name)

        def build() -> Decoder:
            return Decoder(
                self._model_dir,
                version=version,
                running_requests=self._running_requests,
                max_context_length=self._max_context_length,
                dtype=self._dtype,
            )

        self._decoder = await self._call(build)
        self._task = asyncio.create_task(self._serve(self._decoder), name=f"{self._name} decode")

    async def generate(self, request: SampleRequest) -> Response:
        """Sample one response; waits for a free row, then for the response to end. Cancelling it ends the request.

        Raises:
            RunFailed: if the request cannot be served, or the engine is closed or broken.
        """
        self._check(request)
        waiter: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiters[request.request_id] = waiter
        self._queue[request.request_id] = Sequence.of(request)
        self._idle.clear()
        self._work.set()
        try:
            return await waiter
        except asyncio.CancelledError:
            # A step may be running on the row: the decode loop takes the row back before the next one.
            self._waiters.pop(request.request_id, None)
            self._queue.pop(request.request_id, None)
            self._work.set()
            raise

    async def pause(self) -> None:
        """Stop decoding between two tokens; waits for the step that is running."""
        self._serving()
        self._paused = True
        async with self._decoding:
            pass

    async def resume(self) -> None:
        """Go on decoding."""
        self._serving()
        self._paused = False
        self._work.set()

    async def load(self, weights: WeightSource, version: int) -> None:
        """Copy all weights in place, then acknowledge ``version``. Running requests keep their (now old) cache.

        Raises:
            RunFailed: while decoding; if ``weights`` are of another version; or if they are not exactly the model's
                parameters. After the last of these, or if loading is cancelled, the engine is broken, for it may hold
                weights of two versions.
        """
        async with self._decoding:
            decoder = self._undisturbed("load")
            if weights.version != version:
                raise RunFailed(f"asked for weights {version}, given weights {weights.version}", where=self._name)
            try:
                await self._call(lambda: decoder.load(weights, bucket_bytes=self._bucket_bytes))
            except BaseException as error:
                self._fail(error)
                raise

    async def rebuild(self) -> None:
        """Drop the KV cache; the first step after :meth:`resume` computes it again from prompt and generated tokens."""
        async with self._decoding:
            self._undisturbed("rebuild").rebuild()

    async def drain(self, deadline_s: float) -> None:
        """Wait until no request is queued or running.

        Raises:
            TimeoutError: after ``deadline_s`` seconds. While the engine is paused, requests do not end.
            RunFailed: if the engine is closed or broken.
        """
        self._serving()
        async with asyncio.timeout(deadline_s):
            await self._idle.wait()
        self._serving()

    async def abort(self, request_id: str) -> None:
        """End a request now; its ``generate`` returns the tokens so far. Waits for the step that is running."""
        async with self._decoding:
            queued = self._queue.pop(request_id, None)
            if queued is not None:
                self._answer(queued)
            rows = self._decoder.rows if self._decoder is not None else []
            self._release([s for s in rows if s.request.request_id == request_id])

    async def stats(self) -> EngineStats:
        """Return a moment's figures."""
        decoder = self._serving()
        return EngineStats(
            version=decoder.version,
            running=len(decoder.rows),
            queued=len(self._queue),
            tokens_generated=decoder.tokens_generated,
            kv_used=decoder.cached_tokens / self.capacity.kv_tokens,
        )

    async def close(self) -> None:
        """End every request with RunFailed and free the memory; waits for the step that is running."""
        self._closed = True
        async with self._decoding:
            self._end_all(None)
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
            self._decoder = self._task = None
        if self._executor is not None:
            self._executor.shutdown()

    # -- the decode loop -------------------------------------------------------------------------------------------

    async def _serve(self, decoder: Decoder) -> None:
        """Decode for as long as the engine is open.

        Waits for work (a request, or :meth:`resume`), for :meth:`load` and the like to let go of the decoder, and, when
        inline, for the tasks that a response woke up. Ends when a step fails, with every request failed, or by
        :meth:`close`.
        """
        others_woke_up = True
        while self._failure is None:
            if not self._work.is_set():
                await self._work.wait()
                others_woke_up = True
            for _ in range(_SETTLE_PASSES if others_woke_up and not self._executor else 1):
                await asyncio.sleep(0)
            async with self._decoding:
                self._release([s for s in decoder.rows if s.request.request_id not in self._waiters])
                if self._paused or self._failure is not None or not (self._queue or decoder.rows):
                    self._work.clear()
                    continue
                for request_id in list(islice(self._queue, decoder.free_rows)):
                    decoder.admit(self._queue.pop(request_id))
                try:
                    finished = await self._call(decoder.step)
                except Exception as error:
                    self._fail(error)
                    return
                self._release(finished)
                others_woke_up = bool(finished)

    def _release(self, leaving: list[Sequence]) -> None:
        """Take running requests out, and answer those that somebody still waits for."""
        if leaving and self._decoder is not None:
            self._decoder.release(leaving)
            for sequence in leaving:
                self._answer(sequence)
        if not self._waiters:
            self._idle.set()

    def _answer(self, sequence: Sequence) -> None:
        waiter = self._waiters.pop(sequence.request.request_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(sequence.response())

    async def _call(self, function: Callable[[], _T]) -> _T:
        """Run ``function`` where the steps run: here, or on the engine's own thread, waiting for it."""
        if self._executor is None:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    # -- checks and failures ---------------------------------------------------------------------------------------

    def _check(self, request: SampleRequest) -> None:
        decoder = self._serving()
        params = request.params
        total = len(request.prompt_tokens) + params.max_tokens
        problem = ""
        if total > self._max_context_length:
            problem = (
                f"{len(request.prompt_tokens)} prompt + {params.max_tokens} response tokens are {total}, over the "
                f"context of {self._max_context_length}"
            )
        elif not request.prompt_tokens or params.max_tokens < 1:
            problem = "the prompt and the response need at least one token each"
        elif min(request.prompt_tokens) < 0 or max(request.prompt_tokens) >= decoder.vocab_size:
            problem = f"the prompt has token ids outside the vocabulary of {decoder.vocab_size}"
        elif params.temperature < 0 or not 0 < params.top_p <= 1 or params.top_k < 0:
            problem = f"temperature {params.temperature}, top_p {params.top_p}, top_k {params.top_k} do not sample"
        elif request.request_id in self._waiters:
            problem = "a request with this id is queued or running"
        if problem:
            raise RunFailed(problem, where=f"{self._name} {request.request_id}")

    def _serving(self) -> Decoder:
        """Return the decoder; raise RunFailed if there is none to use."""
        if self._failure is not None:
            raise self._broken(self._failure) from self._failure
        if self._closed:
            raise RunFailed("the engine is closed", where=self._name)
        if self._decoder is None:
            raise RunFailed("the engine is not started", where=self._name)
        return self._decoder

    def _undisturbed(self, action: str) -> Decoder:
        decoder = self._serving()
        if not self._paused and self._waiters:
            raise RunFailed(f"{action} while requests are decoding", where=self._name, fix="Pause or drain it first.")
        return decoder

    def _broken(self, cause: BaseException) -> RunFailed:
        text = str(cause) if isinstance(cause, GrpoError) else f"{type(cause).__name__}: {cause}"
        return RunFailed(f"the engine is broken: {text}", where=self._name)

    def _fail(self, cause: BaseException) -> None:
        self._failure = cause
        self._end_all(cause)

    def _end_all(self, cause: BaseException | None) -> None:
        """Fail every request: with ``cause``, or because the engine is closed."""
        for waiter in self._waiters.values():
            if not waiter.done():
                error = RunFailed("the engine was closed", where=self._name) if cause is None else self._broken(cause)
                error.__cause__ = cause
                waiter.set_exception(error)
        self._waiters.clear()
        self._queue.clear()
        self._idle.set()
        self._work.set()
