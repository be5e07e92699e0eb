"""What the controller asks of a rollout engine. Every engine passes the same conformance tests."""

from __future__ import annotations

from typing import Protocol

from grpo.types import EngineCapacity, EngineStats, Response, SampleRequest
from grpo.weights.protocol import WeightSource


class Engine(Protocol):
    """One replica of the rollout policy.

    Requests may join and leave at any decode step. ``load`` and ``rebuild`` may only be called while the engine is
    paused or empty.
    """

    @property
    def name(self) -> str:
        """Unique in a run: ``engine-0``."""
        ...

    @property
    def version(self) -> int:
        """Policy version of the weights that it serves now."""
        ...

    @property
    def capacity(self) -> EngineCapacity:
        """What it can hold."""
        ...

    async def start(self, version: int) -> None:
        """Load the starting weights as ``version`` and begin serving."""
        ...

    async def generate(self, request: SampleRequest) -> Response:
        """Sample one response; waits for a free slot, then for the response to end.

        Returns a response with ``FinishReason.ABORT`` and the tokens so far if the request is aborted.
        Raises :class:`~grpo.errors.RunFailed` if the engine is closed or broken.
        """
        ...

    async def pause(self) -> None:
        """Stop decoding between two tokens; requests stay where they are. Returns when no step is running."""
        ...

    async def load(self, weights: WeightSource, version: int) -> None:
        """Replace the weights. Requests in flight keep their tokens and behavior log-probabilities."""
        ...

    async def rebuild(self) -> None:
        """Drop KV and prefix caches; requests in flight are prefilled again from prompt and generated tokens."""
        ...

    async def resume(self) -> None:
        """Go on decoding after :meth:`pause`."""
        ...

    async def drain(self, deadline_s: float) -> None:
        """Wait until no request is queued or running. Raises TimeoutError after ``deadline_s`` seconds."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request now; an unknown or finished id is no error."""
        ...

    async def stats(self) -> EngineStats:
        """Return a moment's figures."""
        ...

    async def close(self) -> None:
        """Abort everything and free the memory. May be called twice."""
        ...
