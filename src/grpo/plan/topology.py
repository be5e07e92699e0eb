"""Which role goes on which node and GPU, and what to change where that cannot be.

Learner ranks take the first GPUs of the first nodes. Engines follow: on the same GPUs where they take turns with the
learner (colocated), else on the GPUs left over, node by node, each engine whole on one node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grpo.config import derive
from grpo.config.settings import BadKey, Settings
from grpo.errors import UserError
from grpo.plan.inspect import planned_config
from grpo.plan.job import Placement, TopologySpec
from grpo.plan.shapes import ModelShape, model_shape

USUAL_GPUS_PER_NODE = 8
"""Of the usual server; taken where a run is too large for fewer and does not say."""
MAX_GPUS = 65_536
"""More than any cluster has; keeps a slip of the keyboard from listing them one by one."""

TOPOLOGY_KEYS = (
    "trainer.gpus",
    "trainer.trainer_num_nodes",
    "inference.gpus",
    "inference.rollout_tensor_parallel_size",
    "inference.placement_mode",
    "launch.gpus_per_replica",
)


@dataclass(frozen=True)
class Request:
    """What a run asks for. ``None`` is not given.

    Attributes:
        trainer_gpus: of the learner on each of ``trainer_nodes``.
        engine_gpus: of all engines. engine_gpus_per_node: at most so many on one node.
        tensor_parallel: GPUs of one engine.
        engine_count: of engines that need no GPU.
    """

    trainer_gpus: int | None = None
    trainer_nodes: int = 1
    engine_gpus: int | None = None
    engine_gpus_per_node: int | None = None
    tensor_parallel: int = 1
    gpus_per_node: int | None = None
    colocated: bool = False
    engine_count: int = 1


class DoesNotFit(Exception):
    """A request that no nodes can hold: the key to change, what is wrong, and the nearest that fits."""

    def __init__(self, key: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.key, self.what, self.fix = key, what, fix


def node_size(request: Request) -> int:
    """Return GPUs of a node: as given, else all that are asked for if one usual server has them, else its eight."""
    if request.gpus_per_node is not None:
        return request.gpus_per_node
    learner = (request.trainer_gpus or 0) * request.trainer_nodes
    total = learner if request.colocated else learner + (request.engine_gpus or 0)
    return total if request.trainer_nodes == 1 and total <= USUAL_GPUS_PER_NODE else USUAL_GPUS_PER_NODE


def lay_out(request: Request) -> TopologySpec:
    """Return who goes where.

    Raises:
        DoesNotFit: no number of nodes can hold it.
    """
    size, trainer = node_size(request), request.trainer_gpus or 0
    if request.gpus_per_node is not None and size < 1:
        raise DoesNotFit("launch.gpus_per_replica", f"a node of {size} GPUs", "Set it to 1 or more.")
    if trainer * request.trainer_nodes + (request.engine_gpus or 0) > MAX_GPUS:
        raise DoesNotFit("trainer.gpus", f"more than {MAX_GPUS} GPUs are asked for", "Ask for fewer.")
    if trainer > size:
        raise DoesNotFit(
            "trainer.gpus",
            f"{trainer} GPUs of the learner on a node of {size}",
            f"Set it to at most {size}, and trainer_num_nodes to {-(-trainer * request.trainer_nodes // size)}.",
        )
    if request.trainer_nodes > 1 and not trainer:
        raise DoesNotFit(
            "trainer.trainer_num_nodes",
            f"{request.trainer_nodes} nodes of a learner without GPUs, which is one process",
            "Set it to 1, or set trainer.gpus.",
        )
    if trainer:
        learner = tuple(
            Placement(node=node, gpus=(gpu,)) for node in range(request.trainer_nodes) for gpu in range(trainer)
        )
    else:
        learner = (Placement(),)
    if request.colocated:
        engines = _colocated(request, trainer)
    elif request.engine_gpus:
        engines = _disaggregated(request, size, trainer)
    else:
        engines = (Placement(),) * request.engine_count
    return TopologySpec(
        nodes=1 + max(place.node for place in (*learner, *engines)),
        gpus_per_node=size,
        colocated=request.colocated,
        learner=learner,
        engines=engines,
    )


def _colocated(request: Request, trainer: int) -> tuple[Placement, ...]:
    width, world = request.tensor_parallel, trainer * request.trainer_nodes
    if not trainer:
        return (Placement(),) * request.engine_count
    if request.engine_gpus is not None and request.engine_gpus != world:
        raise DoesNotFit(
            "inference.gpus",
            f"{request.engine_gpus} GPUs of engines that share the {world} of the learner",
            f"Remove it, set it to {world}, or set placement_mode to disaggregated.",
        )
    if trainer % width:
        raise DoesNotFit(
            "inference.rollout_tensor_parallel_size",
            f"{width} GPUs of an engine do not divide the {trainer} of a node",
            _set_to(_near(width, [each for each in range(1, trainer + 1) if trainer % each == 0])),
        )
    starts = range(0, trainer, width)
    return tuple(
        Placement(node=node, gpus=tuple(range(start, start + width)))
        for node in range(request.trainer_nodes)
        for start in starts
    )


def _disaggregated(request: Request, size: int, trainer: int) -> tuple[Placement, ...]:
    width, wanted = request.tensor_parallel, request.engine_gpus or 0
    limit = size if request.engine_gpus_per_node is None else request.engine_gpus_per_node
    if limit > size:
        raise DoesNotFit(
            "inference.rollout_gpus_per_node",
            f"{limit} GPUs of engines on a node of {size}",
            f"Set it to at most {size}.",
        )
    if width > size:
        raise DoesNotFit(
            "inference.rollout_tensor_parallel_size",
            f"{width} GPUs of one engine on a node of {size}; an engine is whole on one node",
            f"Set it to at most {size}.",
        )
    if limit < width:
        raise DoesNotFit(
            "inference.rollout_gpus_per_node",
            f"{limit} GPUs of a node cannot hold an engine of {width}",
            f"Set it to {width}, or rollout_tensor_parallel_size to at most {limit}.",
        )
    engines: list[Placement] = []
    node, count = 0, wanted // width
    while len(engines) < count:
        first = trainer if node < request.trainer_nodes else 0
        here = min((size - first) // width, limit // width, count - len(engines))
        engines += [
            Placement(node=node, gpus=tuple(range(start, start + width)))
            for start in range(first, first + here * width, width)
        ]
        node += 1
    return tuple(engines) or (Placement(),)


def request_of(settings: Settings) -> Request:
    """Return what the settings ask for. May raise :class:`~grpo.config.settings.BadKey`."""
    colocated = derive.placement_mode(settings).value == "colocated"
    backend = derive.engine_backend(settings).value
    per_node = settings.value("launch.gpus_per_replica")
    if per_node is None:
        per_node = settings.value("miles.num_gpus_per_node")
    return Request(
        trainer_gpus=settings.value("trainer.gpus"),
        trainer_nodes=settings.value("trainer.trainer_num_nodes"),
        # A simulated fleet has no GPUs, whatever it pretends to have.
        engine_gpus=None if backend == "simulated" else settings.value("inference.gpus"),
        engine_gpus_per_node=settings.value("inference.rollout_gpus_per_node"),
        tensor_parallel=settings.value("inference.rollout_tensor_parallel_size"),
        gpus_per_node=per_node,
        colocated=colocated,
        engine_count=max(1, min(derive.engine_count(settings).value, MAX_GPUS)),
    )


def topology(settings: Settings) -> tuple[TopologySpec, str]:
    """Return the placement of settings that have no problems, and its arithmetic."""
    request = request_of(settings)
    result = lay_out(request)
    return result, explain(request, result)


def explain(request: Request, result: TopologySpec) -> str:
    """Return the arithmetic of a placement in words."""
    if not result.gpus_per_node:
        return "no GPUs are asked for: one process on this machine"
    given = "given" if request.gpus_per_node is not None else "the fewest that hold all, at most 8"
    learner = f"learner {request.trainer_nodes} x {request.trainer_gpus or 0} GPUs"
    engines = f"{len(result.engines)} engines x {request.tensor_parallel} GPUs"
    join = "share" if result.colocated else "+"
    return f"{learner} {join} {engines}, {result.gpus_per_node} GPUs a node ({given}) = {result.nodes} nodes"


def placement_problems(settings: Settings) -> list[UserError]:
    """Return everything about the placement that cannot be, each with the nearest that can."""
    problems: list[UserError] = []
    for rule in (_fits, _one_machine, _heads, _experts, _batch):
        try:
            problems += list(rule(settings))
        except BadKey:
            continue
    return problems


def _problem(settings: Settings, key: str, what: str, fix: str) -> UserError:
    return UserError(what, where=settings.where(key), fix=fix)


def _fits(settings: Settings) -> Iterator[UserError]:
    try:
        lay_out(request_of(settings))
    except DoesNotFit as error:
        yield _problem(settings, error.key, error.what, error.fix)


def _one_machine(settings: Settings) -> Iterator[UserError]:
    if derive.launch_backend(settings).value != "local":
        return
    try:
        result = lay_out(request_of(settings))
    except DoesNotFit:
        return
    if result.nodes > 1:
        yield _problem(
            settings,
            "launch.backend",
            f"the run needs {result.nodes} nodes of {result.gpus_per_node} GPUs, and local is one machine",
            f"Set it to slurm or beaker, or ask for at most {result.gpus_per_node} GPUs.",
        )


def _heads(settings: Settings) -> Iterator[UserError]:
    """Tensor parallelism gives each GPU whole heads; key-value heads are shared out, or repeated evenly."""
    width, shape = settings.value("inference.rollout_tensor_parallel_size"), _shape(settings)
    if width == 1 or shape is None:
        return

    def fits(each: int) -> bool:
        kv = shape.kv_heads
        return shape.heads % each == 0 and (kv % each == 0 or each % kv == 0)

    if not fits(width):
        yield _problem(
            settings,
            "inference.rollout_tensor_parallel_size",
            f"{shape.heads} query heads and {shape.kv_heads} key-value heads do not divide over {width} GPUs",
            _set_to(_near(width, [each for each in range(1, shape.heads + 1) if fits(each)])),
        )


def _experts(settings: Settings) -> Iterator[UserError]:
    parallel, shape = settings.value("trainer.expert_parallel_size"), _shape(settings)
    if parallel == 1 or shape is None:
        return
    key, ranks = "trainer.expert_parallel_size", derive.learner_ranks(settings).value
    if not shape.experts:
        yield _problem(settings, key, f"is {parallel}, but the model has no experts", "Set it to 1.")
    elif ranks % parallel or shape.experts % parallel:
        common = math.gcd(ranks, shape.experts)
        yield _problem(
            settings,
            key,
            f"{parallel} ranks do not divide the {ranks} ranks of the learner and the {shape.experts} experts",
            _set_to(_near(parallel, _divisors(common))),
        )


def _batch(settings: Settings) -> Iterator[UserError]:
    """Each rank computes the same number of responses of an optimizer step."""
    ranks, batch = derive.learner_ranks(settings).value, derive.global_batch_size(settings).value
    if ranks == 1 or batch % ranks == 0:
        return
    nodes, samples = settings.value("trainer.trainer_num_nodes"), settings.value("inference.samples_per_prompt")
    gpus = [each for each in range(1, ranks // nodes + 1) if batch % (each * nodes) == 0]
    unit = math.lcm(samples, ranks)
    fix = f"Set trainer.gpus to {gpus[-1]}, or the batch" if gpus else "Set inference.global_batch_size"
    yield _problem(
        settings,
        "trainer.gpus",
        f"{nodes} x {ranks // nodes} = {ranks} ranks do not divide the {batch} responses of an optimizer step",
        f"{fix} to a multiple of {unit} responses.",
    )


def _shape(settings: Settings) -> ModelShape | None:
    config = planned_config(settings)
    return None if config is None else model_shape(config)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _near(value: int, allowed: list[int]) -> list[int]:
    """Return the nearest allowed number on each side."""
    below, above = [each for each in allowed if each <= value], [each for each in allowed if each > value]
    return below[-1:] + above[:1]


def _set_to(values: list[int]) -> str:
    return f"Set it to {' or '.join(map(str, values))}."
