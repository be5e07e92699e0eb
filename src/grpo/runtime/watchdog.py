"""Ends a run that makes no progress, and says who waits on whom."""

from __future__ import annotations

import asyncio

from grpo.engine.fleet import Fleet, Replica
from grpo.errors import RunFailed, describe
from grpo.runtime.sampler import Sampler
from grpo.types import EngineStats
from grpo.waits import Wait, Waits

GROUPS_SHOWN = 8
STATS_TIMEOUT_S = 5.0


class Watchdog:
    """Looks at the progress counter of :class:`~grpo.waits.Waits`, and at the tokens that engines generate.

    A long response is progress for as long as its engine gives it tokens.

    Args:
        limit_s: without progress for so long, the run fails.
    """

    def __init__(self, waits: Waits, fleet: Fleet, sampler: Sampler, limit_s: float) -> None:
        self._waits = waits
        self._fleet = fleet
        self._sampler = sampler
        self._limit_s = limit_s

    async def run(self) -> None:
        """Wait for time to pass; raises RunFailed with the table of waits when nothing moved for the limit."""
        loop = asyncio.get_running_loop()
        seen, since = await self._progress(), loop.time()
        while True:
            await asyncio.sleep(self._limit_s / 10)
            if (now := await self._progress()) != seen:
                seen, since = now, loop.time()
            elif loop.time() - since >= self._limit_s:
                raise RunFailed(
                    f"no progress for {loop.time() - since:.0f} s\n{await self.report()}",
                    where="core.watchdog_seconds",
                    fix="Find the last line of the chain above: it is what everything else waits for.",
                )

    async def _progress(self) -> tuple[object, ...]:
        """Return something that differs whenever anything has moved."""
        stats = await self._stats()
        tokens = [(replica.name, one.tokens_generated) for replica, one in stats if isinstance(one, EngineStats)]
        return (self._waits.progress, *tokens)

    async def report(self) -> str:
        """Return one line for every wait, the longest first, and one for every engine."""
        lines = [_line(wait) for wait in self._waits.table()]
        groups = self._sampler.table()
        lines += [_line(wait) for wait in groups[:GROUPS_SHOWN]]
        if len(groups) > GROUPS_SHOWN:
            lines.append(f"  {len(groups) - GROUPS_SHOWN} more groups wait like these, but not as long")
        for replica, one in await self._stats():
            gate = "open" if replica.admitting else "closed"
            if isinstance(one, EngineStats):
                state = f"version {one.version}, {one.running} running, {one.queued} queued"
            else:  # a report about a broken engine must still be a report
                state = f"does not answer ({describe(one)})"
            lines.append(f"  {replica.name}: gate {gate}, {replica.reserved} placed, {state}")
        return "\n".join(lines)

    async def _stats(self) -> list[tuple[Replica, EngineStats | BaseException]]:
        """Return the figures of every working engine, or why there are none; waits for a bounded time."""
        replicas = self._fleet.replicas
        answers = await asyncio.gather(
            *(asyncio.wait_for(replica.engine.stats(), STATS_TIMEOUT_S) for replica in replicas), return_exceptions=True
        )
        return list(zip(replicas, answers, strict=True))


def _line(wait: Wait) -> str:
    return f"  {wait.who} waits {wait.seconds:.0f} s for {wait.what}"
