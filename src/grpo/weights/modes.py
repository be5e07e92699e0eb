"""Chooses the publication mode of a job."""

from __future__ import annotations

from grpo.engine.fleet import Fleet
from grpo.plan.job import SyncSpec
from grpo.weights.engine_drain import EngineDrain
from grpo.weights.publication import Barrier, Publication, Refresh


def make_publication(sync: SyncSpec, fleet: Fleet) -> Publication:
    """Return the publication mode that ``sync`` names, over ``fleet``."""
    if sync.publication_mode == "barrier":
        return Barrier(fleet, drain_timeout_s=sync.drain_timeout_s, update_timeout_s=sync.update_timeout_s)
    if sync.publication_mode == "refresh":
        return Refresh(fleet, update_timeout_s=sync.update_timeout_s)
    return EngineDrain(
        fleet,
        drain_timeout_s=sync.drain_timeout_s,
        update_timeout_s=sync.update_timeout_s,
        snapshot_capacity=sync.snapshot_capacity,
    )
