"""Memory of one engine: weights, KV cache, and how many whole contexts fit into it."""

from __future__ import annotations

from typing import Any

from grpo.plan.estimate_base import BYTES, Hardware, Part, Quantity
from grpo.plan.job import JobSpec
from grpo.plan.shapes import ModelShape

# The share of a GPU that weights and KV cache may take, by the engines' own names for it.
_MEMORY_OPTIONS = ("gpu_memory_utilization", "mem_fraction_static")
_TOKEN_OPTIONS = ("max_total_tokens",)


def engine_memory(job: JobSpec, shape: ModelShape, hardware: Hardware) -> Part:
    """Return what one engine holds; of a tensor-parallel engine, what each of its GPUs holds."""
    title = "memory of one engine" if job.engine.tensor_parallel_size == 1 else "memory of one GPU of an engine"
    if job.engine.backend == "simulated":
        none = Quantity("engine.weights", "weights", 0, "bytes", "", note="a simulated engine holds no model")
        return Part(title, (none,))
    first = (engine_weights(job, shape), cache_token(job, shape))
    if job.engine.backend == "local":
        return Part(title, (*first, *_rows(job, shape)))
    return Part(title, (*first, *_pool(job, shape, hardware)))


def engine_weights(job: JobSpec, shape: ModelShape) -> Quantity:
    """Weights of the model in the engine's type; each GPU has its share."""
    size, width = BYTES[job.engine.dtype], job.engine.tensor_parallel_size
    inputs: dict[str, Any] = {"s": size, "parameters": shape.parameter_count}
    formula = "s x parameters"
    if width > 1:
        inputs["tensor parallel"] = width
        formula += " / tensor parallel"
    value = -(-size * shape.parameter_count // width)
    return Quantity("engine.weights", "weights", value, "bytes", formula, inputs)


def cache_token(job: JobSpec, shape: ModelShape) -> Quantity:
    """Keys and values of one token, over all layers; heads that do not divide over the GPUs are on all of them."""
    size, width = BYTES[job.engine.dtype], job.engine.tensor_parallel_size
    if shape.latent_dim and job.engine.backend != "local":
        inputs: dict[str, Any] = {"L": shape.layers, "latent": shape.latent_dim, "s": size}
        value, formula = shape.cache_elements * size, "L x latent x s [on every GPU]"
        return Quantity("engine.cache_token", "KV cache of a token", value, "bytes", formula, inputs)
    inputs = {"L": shape.layers, "key-value heads": shape.kv_heads, "D": shape.head_dim, "s": size}
    shares = min(width, shape.kv_heads)
    value, formula = shape.cache_elements * size // shares, "2 x L x key-value heads x D x s"
    if shape.head_dim != shape.value_dim:
        inputs["value D"] = shape.value_dim
        formula = "L x key-value heads x (D + value D) x s"
    if width > 1:
        inputs["GPUs that share them"] = shares
        formula += " / GPUs that share them"
    return Quantity("engine.cache_token", "KV cache of a token", value, "bytes", formula, inputs)


def _rows(job: JobSpec, shape: ModelShape) -> tuple[Quantity, ...]:
    """The local engine's cache has a row of a whole context for each running request."""
    each, rows, context = _token(job, shape), job.engine.running_requests, job.batch.max_context_length
    inputs = {"running requests": rows, "context": context, "KV cache of a token": each}
    return (
        Quantity(
            "engine.cache",
            "KV cache",
            each * rows * context,
            "bytes",
            "running requests x context x KV cache of a token",
            inputs,
            "reserved; a page counts once it is written",
        ),
        Quantity(
            "engine.contexts", "whole contexts", rows, "responses", "running requests", {"running requests": rows}
        ),
    )


def _token(job: JobSpec, shape: ModelShape) -> int:
    return int(cache_token(job, shape).value or 0)


def _option(job: JobSpec, names: tuple[str, ...]) -> tuple[str, Any] | None:
    return next(((name, job.engine.options[name]) for name in names if job.engine.options.get(name)), None)


def _pool(job: JobSpec, shape: ModelShape, hardware: Hardware) -> tuple[Quantity, ...]:
    given = _option(job, _MEMORY_OPTIONS)
    share = float(given[1]) if given else hardware.engine_memory
    weights, memory = int(engine_weights(job, shape).value or 0), hardware.gpu.memory
    pool = int(share * memory) - weights
    note = f"given as {given[0]}" if given else "assumed: the share"
    note += f"; GPU {hardware.gpu.name}"
    if pool <= 0:
        note = f"does not fit: the weights are larger than the share; {note}"
    inputs = {"share": share, "GPU memory": memory, "weights": weights}
    cache = Quantity("engine.cache", "KV cache", max(0, pool), "bytes", "share x GPU memory - weights", inputs, note)
    each, context = _token(job, shape), job.batch.max_context_length
    tokens = max(0, pool) // each
    if limit := _option(job, _TOKEN_OPTIONS):
        tokens = min(tokens, int(limit[1]))
    contexts = Quantity(
        "engine.contexts",
        "whole contexts",
        tokens // context,
        "responses",
        "KV cache / KV cache of a token / context, rounded down",
        {"KV cache": max(0, pool), "KV cache of a token": each, "context": context},
        f"at most {tokens:,} tokens; requests that outgrow it are queued or preempted by the engine",
    )
    return cache, contexts


def running_requests(job: JobSpec, shape: ModelShape, hardware: Hardware, tokens: float) -> int:
    """Return how many responses of ``tokens`` tokens (prompt included, on average while they run) one engine decodes
    at the same time: the least of its own limit, its KV cache and its share of the groups in the system."""
    samples = job.sync.max_groups_in_system * job.batch.samples_per_prompt
    rows = min(job.engine.running_requests, -(-samples // max(1, job.engine.count)))
    if job.engine.backend in ("vllm", "sglang"):
        cache = next(each for each in _pool(job, shape, hardware) if each.name == "engine.cache")
        rows = min(rows, int(int(cache.value or 0) / (_token(job, shape) * max(1.0, tokens))))
    return max(1, rows)
