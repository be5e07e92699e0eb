"""Time and cost: how long a collection takes, which side waits, and the GPU-hours of the run.

Each input is measured where ``--rates`` gives it; otherwise it is an assumption and says so. The assumed rates are the
usual rooflines: training computes ``6 x N`` operations a token (8 with recompute) at a share of the GPU's peak (Kaplan
et al. 2020, arXiv 2001.08361; ``N`` the parameters that a token is multiplied with); decoding reads the weights and
the caches of all running responses once a token, at a share of the memory bandwidth (Pope et al. 2022,
arXiv 2211.05102).
"""

from __future__ import annotations

import math
from typing import Any

from grpo.plan.estimate_base import BYTES, Hardware, Part, Quantity
from grpo.plan.estimate_engine import cache_token, engine_weights, running_requests
from grpo.plan.job import JobSpec
from grpo.plan.rates import Rates
from grpo.plan.shapes import ModelShape

NO_RATE = "give --rates: a CPU has no assumed speed"


def time_and_cost(job: JobSpec, shape: ModelShape, hardware: Hardware, rates: Rates | None) -> Part:
    """Return lengths, rates, times, balance and cost, each measured or assumed as its note says."""
    known = rates or Rates(source="")
    response, prompt = _lengths(job, known)
    redone = _redone(job, known)
    engine = _engine_rate(job, shape, hardware, known, response, prompt)
    rank = _rank_rate(job, shape, hardware, known)
    publish = _publish(job, known)
    generation, training = _generation(job, engine, response, redone), _training(job, rank, response, prompt)
    collection = _collection(job, generation, training, publish)
    rest = (_balance(job, generation, training, publish), _hours(job, collection))
    inputs = (response, prompt, redone, engine, rank, publish)
    title = "time and cost" + (f", rates of {rates.source}" if rates else ", assumed rates")
    return Part(title, (*inputs, generation, training, collection, *(each for each in rest if each is not None)))


def _measured(name: str, label: str, value: float, unit: str, known: Rates) -> Quantity:
    return Quantity(name, label, value, unit, "", {}, f"measured: {known.source}")


def _lengths(job: JobSpec, known: Rates) -> tuple[Quantity, Quantity]:
    name, label = "time.response_tokens", "mean response"
    if known.response_tokens is not None:
        # A shorter limit cuts what was measured under a longer one.
        value = min(known.response_tokens, float(job.batch.max_response_length))
        response = _measured(name, label, value, "tokens", known)
    else:
        note = "assumed: every response reaches the limit"
        response = Quantity(name, label, job.batch.max_response_length, "tokens", "response limit", {}, note)
    name, label = "time.prompt_tokens", "mean prompt"
    if known.prompt_tokens is not None:
        prompt = _measured(name, label, min(known.prompt_tokens, float(job.batch.max_prompt_length)), "tokens", known)
    else:
        note = "assumed: every prompt reaches the limit"
        prompt = Quantity(name, label, job.batch.max_prompt_length, "tokens", "prompt limit", {}, note)
    return response, prompt


def _redone(job: JobSpec, known: Rates) -> Quantity:
    name, label = "time.generated_per_trained", "groups generated for one trained"
    if known.generated_per_trained is not None:
        return _measured(name, label, known.generated_per_trained, "groups", known)
    return Quantity(name, label, 1, "groups", "", {}, "assumed: none is filtered out or too old")


def _engine_rate(
    job: JobSpec, shape: ModelShape, hardware: Hardware, known: Rates, response: Quantity, prompt: Quantity
) -> Quantity:
    name, label, unit = "time.generate_rate", "generation of one engine", "tokens/s"
    if known.generate_tokens_per_s is not None:
        return _measured(name, label, known.generate_tokens_per_s, unit, known)
    if not any(place.gpus for place in job.topology.engines):
        return Quantity(name, label, None, unit, "", {}, NO_RATE)
    # A response that runs has on average half of its tokens.
    context = float(prompt.value or 0) + float(response.value or 0) / 2
    rows = running_requests(job, shape, hardware, context)
    weights, each = int(engine_weights(job, shape).value or 0), int(cache_token(job, shape).value or 0)
    bandwidth = hardware.bandwidth_share * hardware.gpu.bandwidth
    inputs: dict[str, Any] = {
        "running": rows,
        "share": hardware.bandwidth_share,
        "bandwidth (bytes/s)": hardware.gpu.bandwidth,
        "weights": weights,
        "context": context,
        "KV cache of a token": each,
    }
    formula = "running x share x bandwidth / (weights + running x context x KV cache of a token)"
    note = f"assumed: bound by memory of the {hardware.gpu.name}; prefill aside"
    return Quantity(name, label, rows * bandwidth / (weights + rows * context * each), unit, formula, inputs, note)


def _rank_rate(job: JobSpec, shape: ModelShape, hardware: Hardware, known: Rates) -> Quantity:
    name, label, unit = "time.train_rate", "training of one rank", "tokens/s"
    if known.train_tokens_per_s is not None:
        return _measured(name, label, known.train_tokens_per_s, unit, known)
    if not any(place.gpus for place in job.topology.learner):
        return Quantity(name, label, None, unit, "", {}, NO_RATE)
    operations = 8 if job.learner.activation_recompute else 6
    # The data sheet's peak is for bfloat16; float32 goes through TF32 at half of it, at best.
    peak = hardware.gpu.flops * (1.0 if BYTES[job.learner.dtype] == 2 else 0.5)
    inputs = {"share": hardware.flops_share, "peak (1/s)": peak, "N": shape.active_matrix_parameters}
    value = hardware.flops_share * peak / (operations * shape.active_matrix_parameters)
    note = f"assumed: the share of the {hardware.gpu.name}'s peak; attention scores aside"
    return Quantity(name, label, value, unit, f"share x peak / ({operations} x N)", inputs, note)


def _publish(job: JobSpec, known: Rates) -> Quantity:
    name, label = "time.publish", "publication"
    if known.publish_s is not None:
        return _measured(name, label, known.publish_s, "s", known)
    return Quantity(name, label, 0, "s", "", {}, "assumed: hidden; measure it")


def _generation(job: JobSpec, engine: Quantity, response: Quantity, redone: Quantity) -> Quantity:
    responses = job.batch.rollout_batch_size * job.batch.samples_per_prompt
    inputs = {
        "responses": responses,
        "mean response": response.value,
        "generated for one trained": redone.value,
        "engines": job.engine.count,
        "rate": engine.value,
    }
    value = None
    if engine.value is not None:
        tokens = responses * float(response.value or 0) * float(redone.value or 1)
        value = tokens / (job.engine.count * engine.value)
    formula = "responses x mean response x generated for one trained / (engines x rate)"
    return Quantity("time.generation", "generation of a collection", value, "s", formula, inputs, _why(value))


def _training(job: JobSpec, rank: Quantity, response: Quantity, prompt: Quantity) -> Quantity:
    responses = job.batch.rollout_batch_size * job.batch.samples_per_prompt
    each = float(response.value or 0) + float(prompt.value or 0)
    inputs = {"responses": responses, "tokens": each, "ranks": job.learner.ranks, "rate": rank.value}
    value = None if rank.value is None else responses * each / (job.learner.ranks * rank.value)
    formula = "responses x tokens / (ranks x rate)"
    return Quantity("time.training", "training of a collection", value, "s", formula, inputs, _why(value))


def _why(value: float | None) -> str:
    return NO_RATE if value is None else ""


def _collection(job: JobSpec, generation: Quantity, training: Quantity, publish: Quantity) -> Quantity:
    """Asynchronous: the slower side sets the pace. Synchronous: one after the other."""
    inputs = {"generation": generation.value, "training": training.value, "publication": publish.value}
    overlap = job.sync.asynchronous
    formula = "max(generation, training + publication)" if overlap else "generation + training + publication"
    value = None
    if generation.value is not None and training.value is not None:
        trainer = training.value + float(publish.value or 0)
        value = max(generation.value, trainer) if overlap else generation.value + trainer
    note = _why(value) or "evaluations and checkpoints aside"
    return Quantity("time.collection", "a collection", value, "s", formula, inputs, note)


def _balance(job: JobSpec, generation: Quantity, training: Quantity, publish: Quantity) -> Quantity | None:
    """How much slower generation is than training; an asynchronous run wants 1."""
    if not job.sync.asynchronous or generation.value is None or training.value is None:
        return None
    trainer = training.value + float(publish.value or 0)
    if not trainer:
        return None
    value = generation.value / trainer
    wanted = max(1, math.ceil(job.engine.count * value - 1e-9))
    if value > 1:
        note = f"generation-bound: {wanted} engines of this speed would keep the learner busy"
    else:
        note = f"trainer-bound: {wanted} of {job.engine.count} engines would do"
    inputs = {"generation": generation.value, "training": training.value, "publication": publish.value}
    formula = "generation / (training + publication)"
    return Quantity("time.balance", "learner:engine balance", value, "", formula, inputs, note)


def _hours(job: JobSpec, collection: Quantity) -> Quantity:
    gpus, unit = job.topology.gpus, "GPU-hours"
    formula = "collections x seconds of one x GPUs / 3600"
    if not gpus:
        unit, formula = "hours", "collections x seconds of one / 3600"
    inputs = {"collections": job.batch.num_rollouts, "seconds of one": collection.value}
    value = None
    if collection.value is not None:
        value = job.batch.num_rollouts * collection.value * max(1, gpus) / 3600
    inputs |= {"GPUs": gpus} if gpus else {}
    return Quantity("cost.hours", "cost of the run", value, unit, formula, inputs, _why(value))
