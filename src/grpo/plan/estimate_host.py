"""The batch, the admission and the lag, host memory, bytes of a publication, and what is written to disk."""

from __future__ import annotations

import math

from grpo.plan.estimate_base import BYTES, Part, Quantity
from grpo.plan.estimate_learner import ADAM_BYTES, STEP_BYTES
from grpo.plan.job import JobSpec
from grpo.plan.shapes import ModelShape

TOKEN_BYTES = 72
"""One generated token in CPython: two tuple slots of 8, an int of 32 (allocated in sixteens), a float of 24."""
RANDOM_STATE_BYTES = 5056
"""torch's CPU generator."""
VERSION_BYTES = 8


def batch_geometry(job: JobSpec) -> Part:
    """Return prompts, responses, steps and micro-batches."""
    batch, learner = job.batch, job.learner
    responses = batch.rollout_batch_size * batch.samples_per_prompt
    each = -(-batch.global_batch_size // learner.ranks)
    shared = {"ranks": learner.ranks} if learner.ranks > 1 else {}
    per_rank = Quantity(
        "batch.responses_per_rank",
        "responses of a rank in one step",
        each,
        "responses",
        "global batch / ranks" if shared else "global batch",
        {"global batch": batch.global_batch_size, **shared},
    )
    return Part(
        "batch",
        (
            Quantity(
                "batch.responses",
                "responses of a collection",
                responses,
                "responses",
                "prompts x samples",
                {"prompts": batch.rollout_batch_size, "samples": batch.samples_per_prompt},
            ),
            Quantity(
                "batch.tokens",
                "tokens of a collection, at most",
                responses * batch.max_context_length,
                "tokens",
                "responses x context",
                {"responses": responses, "context": batch.max_context_length},
            ),
            Quantity(
                "batch.steps",
                "optimizer steps of a collection",
                batch.steps_per_collection,
                "steps",
                "responses / global batch",
                {"responses": responses, "global batch": batch.global_batch_size},
            ),
            Quantity(
                "batch.total_steps",
                "optimizer steps of the run",
                batch.total_steps,
                "steps",
                "collections x steps of a collection",
                {"collections": batch.num_rollouts, "steps of a collection": batch.steps_per_collection},
            ),
            per_rank,
            *_micro_batches(job, each),
        ),
    )


def _micro_batches(job: JobSpec, responses: int) -> tuple[Quantity, ...]:
    learner, size = job.learner, job.learner.micro_batch_size
    rows, inputs, packs = responses, {"responses of a rank": responses}, ()
    formula = "responses of a rank / micro-batch, rounded up"
    if learner.sequence_packing:
        fit = learner.packing_max_tokens // job.batch.max_context_length
        rows = -(-responses // max(1, fit))
        most = Quantity(
            "batch.packs",
            "packs of a rank in one step, at most",
            rows,
            "packs",
            "responses of a rank / contexts that fit into a pack, rounded up",
            inputs | {"contexts that fit into a pack": fit},
            "fewer where responses are shorter than the context",
        )
        packs, inputs, formula = (most,), {"packs": rows}, "packs / micro-batch, rounded up"
    micro = Quantity(
        "batch.micro_batches",
        "micro-batches of a rank in one step" + (", at most" if packs else ""),
        -(-rows // size),
        "micro-batches",
        formula,
        inputs | {"micro-batch": size},
    )
    return (*packs, micro)


def admission(job: JobSpec) -> Part:
    """Return what is under way at one time, and how old it may become."""
    sync, batch = job.sync, job.batch
    return Part(
        "admission and lag",
        (
            Quantity(
                "sync.responses_in_system",
                "responses in the system, at most",
                sync.max_groups_in_system * batch.samples_per_prompt,
                "responses",
                "groups in the system x samples",
                {"groups in the system": sync.max_groups_in_system, "samples": batch.samples_per_prompt},
            ),
            Quantity("sync.buffer_groups", "buffer of graded groups", sync.buffer_groups, "groups", ""),
            lag(job),
        ),
    )


def lag(job: JobSpec) -> Quantity:
    """Return the most lag that a group can have when it is trained.

    A group with ``n`` others ahead of it is taken ``floor(n / B)`` takings after the next, and a step may be under way
    when it is admitted.
    """
    sync, batch = job.sync, job.batch
    if not sync.asynchronous:
        note = "every group is trained at the version that sampled it"
        return Quantity("sync.lag", "lag", 0, "optimizer steps", "synchronous", {}, note)
    ahead = (sync.max_groups_in_system - 1) // batch.rollout_batch_size
    value = min(sync.max_policy_lag, batch.steps_per_collection * (ahead + 1))
    inputs = {
        "limit": sync.max_policy_lag,
        "k": batch.steps_per_collection,
        "groups in the system": sync.max_groups_in_system,
        "B": batch.rollout_batch_size,
    }
    formula = "0 to min(limit, k x (floor((groups in the system - 1) / B) + 1))"
    note = "near 0 where generation is the slower side, near the top where training is"
    return Quantity("sync.lag", "lag, up to", value, "optimizer steps", formula, inputs, note)


def host_memory(job: JobSpec, shape: ModelShape) -> Part:
    """Return what the controller's host holds, and what a publication moves."""
    sync, batch, size = job.sync, job.batch, BYTES[job.learner.dtype]
    responses = sync.max_groups_in_system * batch.samples_per_prompt
    whole = size * shape.parameter_count
    drains = sync.publication_mode == "engine_drain"
    snapshots = Quantity(
        "host.snapshots",
        "snapshots of weights",
        sync.snapshot_capacity * whole if drains else 0,
        "bytes",
        "snapshots x s x parameters" if drains else "",
        {"snapshots": sync.snapshot_capacity, "s": size, "parameters": shape.parameter_count} if drains else {},
        "" if drains else f"{sync.publication_mode} needs none: engines load while the weights stand still",
    )
    rollouts = Quantity(
        "host.rollouts",
        "responses in the system, at most",
        TOKEN_BYTES * responses * batch.max_response_length,
        "bytes",
        "72 bytes [id and log-probability in Python] x responses x response limit",
        {"responses": responses, "response limit": batch.max_response_length},
    )
    parts = [snapshots, rollouts]
    if job.checkpoint.save:
        copy, ranks = int(checkpoint(job, shape).value or 0), job.learner.ranks
        inputs = {"learner checkpoint": copy} | ({"ranks": ranks} if ranks > 1 else {})
        formula = "learner checkpoint" + (" / ranks" if ranks > 1 else "")
        note = "while one is written"
        parts.append(Quantity("host.copy", "copy for a checkpoint", -(-copy // ranks), "bytes", formula, inputs, note))
    return Part("host memory and publication", (*parts, *publication(job, shape)))


def publication(job: JobSpec, shape: ModelShape) -> tuple[Quantity, Quantity]:
    """Return the bytes that a publication moves, and the buckets that it moves them in."""
    size, engines = BYTES[job.learner.dtype], job.engine.count
    limit = job.sync.update_weight_buffer_bytes
    moved = Quantity(
        "publication.bytes",
        "bytes moved by a publication",
        size * shape.parameter_count * engines,
        "bytes",
        "s x parameters x engines",
        {"s": size, "parameters": shape.parameter_count, "engines": engines},
    )
    buckets = Quantity(
        "publication.buckets",
        "buckets of a publication",
        bucket_count(shape, size, limit),
        "buckets",
        "tensors in order, each bucket filled up to its limit",
        {"tensors": len(shape.parameters), "limit (bytes)": limit},
    )
    return moved, buckets


def bucket_count(shape: ModelShape, size: int, limit: int) -> int:
    """Return the buckets of ``weights/in_process.py``: a tensor over the limit is one of its own."""
    buckets = filled = 0
    for parameter in shape.parameters:
        each = size * parameter.size
        if not buckets or (filled and filled + each > limit):
            buckets, filled = buckets + 1, 0
        filled += each
    return buckets


def checkpoint(job: JobSpec, shape: ModelShape) -> Quantity:
    """Return the bytes of all tensors of the learner's state, over all ranks."""
    count, tensors = shape.parameter_count, len(shape.parameters)
    value = (4 + ADAM_BYTES) * count + STEP_BYTES * tensors + VERSION_BYTES + RANDOM_STATE_BYTES
    return Quantity(
        "disk.checkpoint",
        "learner checkpoint",
        value,
        "bytes",
        "12 bytes x parameters [masters and moments] + 4 bytes x tensors + 5,064 bytes [version, random state]",
        {"parameters": count, "tensors": tensors},
        "tensors only; each adds some bytes of file format",
    )


def disk(job: JobSpec, shape: ModelShape) -> Part:
    """Return the size of a checkpoint, of all that are kept, and of an export."""
    count, one = shape.parameter_count, checkpoint(job, shape)
    value, parts = int(one.value or 0), [one]
    if job.checkpoint.save:
        kept = kept_checkpoints(job)
        parts.append(
            Quantity(
                "disk.checkpoints",
                "checkpoints kept",
                kept * value,
                "bytes",
                "checkpoints x learner checkpoint",
                {"checkpoints": kept, "learner checkpoint": value},
            )
        )
    if job.output.export_hf:
        size = BYTES[job.learner.dtype]
        inputs = {"s": size, "parameters": count}
        parts.append(Quantity("disk.export", "export", size * count, "bytes", "s x parameters", inputs))
    return Part("disk", tuple(parts))


def kept_checkpoints(job: JobSpec) -> int:
    """Return how many checkpoints a whole run leaves: one each interval and the last, less those let go."""
    rollouts, spec = job.batch.num_rollouts, job.checkpoint
    if not spec.interval:
        return 1
    written = rollouts // spec.interval + (rollouts % spec.interval > 0)
    if not spec.keep_last or written <= spec.keep_last:
        return written
    # The older ones are at the multiples of the interval, and stay where they are multiples of keep_every too.
    newest_of_old = spec.interval * (written - spec.keep_last)
    apart = math.lcm(spec.interval, spec.keep_every)
    return spec.keep_last + (newest_of_old // apart if apart else 0)
