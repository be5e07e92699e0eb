"""Ends a run that makes no progress, and says who waits on whom."""

from __future__ import annotations

import asyncio

from grpo.engine.fleet import Fleet
from grpo.errors import RunFailed, describe
from grpo.waits import Waits


class Watchdog:
    """Looks at the progress counter of :class:`~grpo.waits.Waits`.

    Args:
        limit_s: without progress for so long, the run fails.
    """

    def __init__(self, waits: Waits, fleet: Fleet, limit_s: float) -> None:
        self._waits = waits
        self._fleet = fleet
        self._limit_s = limit_s

    async def run(self) -> None:
        """Wait for time to pass; raises RunFailed with the table of waits when nothing moved for the limit."""
        loop = asyncio.get_running_loop()
        seen, since = self._waits.progress, loop.time()
        while True:
            await asyncio.sleep(self._limit_s / 10)
            if self._waits.progress != seen:
                seen, since = self._waits.progress, loop.time()
            elif loop.time() - since >= self._limit_s:
                raise RunFailed(
                    f"no progress for {loop.time() - since:.0f} s\n{await self.report()}",
                    where="core.watchdog_seconds",
                    fix="Find the last line of the chain above: it is what everything else waits for.",
                )

    async def report(self) -> str:
        """Return one line for every wait, the longest first, and one for every engine."""
        lines = [f"  {wait.who} waits {wait.seconds:.0f} s for {wait.what}" for wait in self._waits.table()]
        for replica in self._fleet.replicas:
            gate = "open" if replica.admitting else "closed"
            try:
                async with asyncio.timeout(5):
                    stats = await replica.engine.stats()
                state = f"version {stats.version}, {stats.running} running, {stats.queued} queued"
            except Exception as error:  # a report about a broken engine must still be a report
                state = f"does not answer ({describe(error)})"
            lines.append(f"  {replica.name}: gate {gate}, {replica.reserved} placed, {state}")
        return "\n".join(lines)
