"""What becomes of a broken engine: ``core.engine_failure = "replace" | "drop" | "fail"``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from grpo.engine.fleet import Fleet, Replica
from grpo.engine.protocol import Engine
from grpo.errors import RunFailed, describe
from grpo.learner.protocol import Learner
from grpo.obs.observer import Observer
from grpo.plan.job import EngineSpec
from grpo.weights.publication import Publication, update

MAX_REPLACEMENTS = 3
"""Of one engine; one that keeps dying has a cause that a new process does not cure."""


class Supervisor:
    """Hears of broken replicas from the fleet and replaces or drops them, or fails the run.

    Args:
        make_engine: makes an engine, not started, that takes the place and the name of a broken one.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        fleet: Fleet,
        learner: Learner,
        make_engine: Callable[[str], Engine],
        publication: Publication,
        update_timeout_s: float,
        observer: Observer,
    ) -> None:
        self._spec = spec
        self._fleet = fleet
        self._learner = learner
        self._make_engine = make_engine
        self._publication = publication
        self._update_timeout_s = update_timeout_s
        self._observer = observer
        self._broken: asyncio.Queue[tuple[Replica, Exception]] = asyncio.Queue()
        self._replaced: Counter[str] = Counter()
        fleet.on_failure = self._on_failure

    def _on_failure(self, replica: Replica, error: Exception) -> None:
        text = f"the engine failed: {describe(error)}"
        if self._spec.failure == "fail":
            raise RunFailed(text, where=replica.name, fix="See its log, or set core.engine_failure.") from error
        if self._spec.failure == "drop" and not self._fleet.replicas:
            raise RunFailed(f"{text}; it was the last one", where=replica.name) from error
        if self._spec.failure == "replace" and self._replaced[replica.name] >= MAX_REPLACEMENTS:
            raise RunFailed(f"{text}; it was replaced {MAX_REPLACEMENTS} times", where=replica.name) from error
        verb = "replacing it" if self._spec.failure == "replace" else "going on without it"
        self._observer.warning(f"{replica.name}: {text}; {verb}")
        self._broken.put_nowait((replica, error))

    async def run(self) -> None:
        """Tend to broken replicas for ever; waits for one to break."""
        async with asyncio.TaskGroup() as repairs:
            while True:
                replica, _ = await self._broken.get()
                repairs.create_task(self._repair(replica), name=f"repair-{replica.name}")

    async def _repair(self, replica: Replica) -> None:
        """Close the broken engine; then start another, bring it to the current version, and open its gate.

        Waits for the new engine. A replacement that fails to start breaks like any other.
        """
        with suppress(Exception):  # it is broken; what counts is that its memory is freed if it can be
            await asyncio.wait_for(replica.engine.close(), self._update_timeout_s)
        if self._spec.failure != "replace":
            return
        self._replaced[replica.name] += 1
        fresh = Replica(self._make_engine(replica.name))
        try:
            with self._fleet.waits.doing("supervisor", f"a replacement of {fresh.name} to start"):
                await fresh.engine.start(0)
            await self._join(fresh)
        except Exception as error:
            self._fleet.fail(fresh, error)

    async def _join(self, fresh: Replica) -> None:
        """Bring a started engine to the version that its peers serve or are loading, then let it admit.

        Waits for weights of just that version: the learner may be a step ahead of what is published.
        """
        waits, publication, learner = self._fleet.waits, self._publication, self._learner
        while not fresh.failed:
            target = publication.version
            if fresh.engine.version != target:
                # A snapshot: the learner may step while the engine loads.
                await waits.until("supervisor", "the next publication", lambda: publication.version == learner.version)
                async with publication.lease():
                    weights = await learner.weights(snapshot=True)
                    if weights.version != publication.version:
                        continue  # the learner stepped meanwhile
                    target = weights.version
                    await update(self._fleet, (fresh,), weights, self._update_timeout_s)
            if publication.version == target and not fresh.failed:
                self._fleet.add(fresh)
                return
