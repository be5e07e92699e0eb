"""Every number of a plan, with its arithmetic: what a run will need before it costs anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from grpo.plan.estimate_base import Hardware, Part, Quantity
from grpo.plan.estimate_engine import engine_memory
from grpo.plan.estimate_host import admission, batch_geometry, disk, host_memory
from grpo.plan.estimate_learner import learner_memory
from grpo.plan.estimate_time import time_and_cost
from grpo.plan.inspect import config_of
from grpo.plan.job import JobSpec
from grpo.plan.rates import Rates
from grpo.plan.shapes import ModelShape, model_shape


@dataclass(frozen=True, slots=True)
class Estimate:
    """All parts, in reading order."""

    hardware: Hardware
    parts: tuple[Part, ...]

    def get(self, name: str) -> Quantity:
        """Return a quantity by its name. Raises KeyError."""
        for part in self.parts:
            for quantity in part.quantities:
                if quantity.name == name:
                    return quantity
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """Return what ``grpo plan --json`` has under ``estimate``: quantities by their names."""
        quantities = [quantity for part in self.parts for quantity in part.quantities]
        gpu = self.hardware.gpu
        return {
            "assumptions": {
                "gpu": gpu.name,
                "gpu_memory_bytes": gpu.memory,
                "gpu_bandwidth_bytes_per_s": gpu.bandwidth,
                "gpu_flops": gpu.flops,
                "flops_share": self.hardware.flops_share,
                "bandwidth_share": self.hardware.bandwidth_share,
                "engine_memory_share": self.hardware.engine_memory,
            },
            "quantities": {quantity.name: quantity.as_json() for quantity in quantities},
        }


def estimate(job: JobSpec, hardware: Hardware | None = None, rates: Rates | None = None) -> Estimate:
    """Return the estimates of a job; reads the model's ``config.json`` and nothing else.

    Where the model's shape is not known, what depends on it is left out.
    """
    hardware = hardware or Hardware()
    config = config_of(job.model.source, job.model.plan_config)
    shape = None if config is None else model_shape(config)
    parts = [placement(job), batch_geometry(job), admission(job)]
    if shape is None:
        note = "no config.json of a known kind was found; memory and time are left out"
        parts.append(Part("memory", (Quantity("model.parameters", "parameters", None, "", "", {}, note),)))
        return Estimate(hardware, tuple(parts))
    parts += [
        model(shape),
        learner_memory(job, shape),
        engine_memory(job, shape, hardware),
        *_fit(job, shape, hardware),
        host_memory(job, shape),
        disk(job, shape),
        time_and_cost(job, shape, hardware, rates),
    ]
    return Estimate(hardware, tuple(parts))


def placement(job: JobSpec) -> Part:
    """Return nodes, GPUs and who is where."""
    topology = job.topology
    inputs = {"nodes": topology.nodes, "GPUs of a node": topology.gpus_per_node}
    how = "colocated" if topology.colocated else "disaggregated"
    parts = [
        Quantity("placement.nodes", "nodes", topology.nodes, "nodes", "", {}, how),
        Quantity(
            "placement.gpus",
            "GPUs",
            topology.nodes * topology.gpus_per_node,
            "GPUs",
            "nodes x GPUs of a node",
            inputs,
            f"{topology.gpus} of them with a role" if topology.gpus_per_node else "everything runs on the CPU",
        ),
        Quantity("placement.ranks", "learner ranks", len(topology.learner), "ranks", "", {}, _where(topology.learner)),
        Quantity(
            "placement.engines",
            "engines",
            len(topology.engines),
            "engines",
            "",
            {"GPUs of one": max(1, job.engine.tensor_parallel_size)} if topology.gpus_per_node else {},
            _where(topology.engines),
        ),
    ]
    return Part("placement", tuple(parts))


def _where(places: tuple[Any, ...]) -> str:
    """Return ``node 0: GPUs 0-7; node 1: GPUs 0-3``."""
    taken: dict[int, list[int]] = {}
    for place in places:
        taken.setdefault(place.node, []).extend(place.gpus)
    counts = Counter(place.node for place in places)
    texts = []
    for node in sorted(taken):
        gpus = sorted(taken[node])
        names = f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {gpus[0]}-{gpus[-1]}" if gpus else "CPU"
        texts.append(f"node {node}: {counts[node]} on {names}")
    return "; ".join(texts if len(texts) <= 4 else [*texts[:3], f"and {len(texts) - 3} nodes more"])


def model(shape: ModelShape) -> Part:
    """Return the size of the model."""
    count = Quantity(
        "model.parameters",
        "parameters",
        shape.parameter_count,
        "",
        "sum over tensors",
        {"tensors": len(shape.parameters)},
    )
    active = Quantity(
        "model.active",
        "multiplied with a token",
        shape.active_matrix_parameters,
        "",
        "matrices, without the lookup" + (", of the experts only those of a token" if shape.experts else ""),
        {"experts": shape.experts, "experts of a token": shape.experts_per_token} if shape.experts else {},
    )
    return Part("model", (count, active))


def _fit(job: JobSpec, shape: ModelShape, hardware: Hardware) -> list[Part]:
    """Say how full a GPU of the learner is; nothing on a CPU."""
    if not any(place.gpus for place in job.topology.learner):
        return []
    peak = int(next(each for each in learner_memory(job, shape).quantities if each.name == "learner.peak").value or 0)
    memory = hardware.gpu.memory
    if peak > memory:
        note = "does not fit: use more ranks, recompute, or a smaller micro-batch or context"
    else:
        note = "colocated engines sleep while it trains" if job.topology.colocated else ""
    inputs = {"peak": peak, "memory": memory}
    share = Quantity("learner.share", "share of a GPU", peak / memory, "", "peak / memory", inputs, note)
    return [Part(f"a GPU of the learner, {hardware.gpu.name}", (share,))]
