"""Who goes on which node and GPU; what cannot be placed is refused with the nearest that can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.config.load import load
from grpo.config.settings import read_settings
from grpo.plan.job import JobSpec, Placement, TopologySpec
from grpo.plan.resolve import plan
from grpo.plan.topology import DoesNotFit, Request, explain, lay_out, node_size, placement_problems

Write = Callable[..., Path]


def where(topology: TopologySpec) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    return {
        "learner": [(place.node, place.gpus) for place in topology.learner],
        "engines": [(place.node, place.gpus) for place in topology.engines],
    }


def test_a_run_without_gpus_is_one_process_of_each_role() -> None:
    topology = lay_out(Request())
    assert topology == TopologySpec(nodes=1, gpus_per_node=0, learner=(Placement(),), engines=(Placement(),))
    assert topology.gpus == 0
    assert explain(Request(), topology) == "no GPUs are asked for: one process on this machine"


def test_engines_take_what_the_learner_leaves_of_a_node() -> None:
    request = Request(trainer_gpus=4, engine_gpus=4, tensor_parallel=2)
    topology = lay_out(request)
    assert (topology.nodes, topology.gpus_per_node, topology.gpus) == (1, 8, 8)
    assert where(topology) == {
        "learner": [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,))],
        "engines": [(0, (4, 5)), (0, (6, 7))],
    }
    assert explain(request, topology) == (
        "learner 1 x 4 GPUs + 2 engines x 2 GPUs, 8 GPUs a node (the fewest that hold all, at most 8) = 1 nodes"
    )


def test_a_small_run_needs_a_small_node() -> None:
    assert node_size(Request(trainer_gpus=1, engine_gpus=1)) == 2
    assert node_size(Request(trainer_gpus=2, colocated=True)) == 2
    assert node_size(Request(trainer_gpus=4, engine_gpus=8)) == 8
    assert node_size(Request(trainer_gpus=2, trainer_nodes=2)) == 8
    assert node_size(Request(trainer_gpus=1, gpus_per_node=4)) == 4


def test_engines_of_a_three_node_run_have_the_other_two_nodes() -> None:
    topology = lay_out(Request(trainer_gpus=8, engine_gpus=16, tensor_parallel=4, gpus_per_node=8))
    assert (topology.nodes, topology.gpus, len(topology.learner)) == (3, 24, 8)
    assert {place.node for place in topology.learner} == {0}
    assert where(topology)["engines"] == [
        (1, (0, 1, 2, 3)),
        (1, (4, 5, 6, 7)),
        (2, (0, 1, 2, 3)),
        (2, (4, 5, 6, 7)),
    ]


def test_at_most_as_many_gpus_of_a_node_serve_as_are_allowed() -> None:
    topology = lay_out(Request(trainer_gpus=2, engine_gpus=4, engine_gpus_per_node=2, gpus_per_node=8))
    assert where(topology)["engines"] == [(0, (2,)), (0, (3,)), (1, (0,)), (1, (1,))]


def test_colocated_engines_share_the_gpus_of_the_learner_on_every_node() -> None:
    topology = lay_out(Request(trainer_gpus=4, trainer_nodes=2, tensor_parallel=2, colocated=True, gpus_per_node=4))
    assert (topology.nodes, topology.gpus, topology.colocated) == (2, 8, True)
    assert where(topology)["engines"] == [(0, (0, 1)), (0, (2, 3)), (1, (0, 1)), (1, (2, 3))]


@given(
    trainer=st.integers(1, 8),
    nodes=st.integers(1, 3),
    width=st.sampled_from([1, 2, 4, 8]),
    engines=st.integers(1, 9),
    per_node=st.none() | st.integers(1, 8),
)
def test_no_gpu_has_two_roles_and_every_engine_is_whole_on_one_node(
    trainer: int, nodes: int, width: int, engines: int, per_node: int | None
) -> None:
    request = Request(
        trainer_gpus=trainer,
        trainer_nodes=nodes,
        engine_gpus=engines * width,
        tensor_parallel=width,
        engine_gpus_per_node=per_node,
        gpus_per_node=8,
    )
    try:
        topology = lay_out(request)
    except DoesNotFit as error:
        assert per_node is not None and per_node < width, error
        return
    taken = [(place.node, gpu) for place in (*topology.learner, *topology.engines) for gpu in place.gpus]
    assert len(set(taken)) == len(taken) == trainer * nodes + engines * width == topology.gpus
    assert all(0 <= gpu < 8 and 0 <= node < topology.nodes for node, gpu in taken)
    assert [len(place.gpus) for place in topology.engines] == [width] * engines
    assert [len(place.gpus) for place in topology.learner] == [1] * trainer * nodes
    if per_node is not None:
        for node in range(topology.nodes):
            assert sum(len(place.gpus) for place in topology.engines if place.node == node) <= per_node


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    (
        dict(trainer_gpus=16, gpus_per_node=8),
        "trainer.gpus",
        "16 GPUs of the learner on a node of 8",
        "Set it to at most 8, and trainer_num_nodes to 2.",
    ),
    (
        dict(trainer_nodes=2),
        "trainer.trainer_num_nodes",
        "2 nodes of a learner without GPUs, which is one process",
        "Set it to 1, or set trainer.gpus.",
    ),
    (
        dict(trainer_gpus=4, engine_gpus=16, tensor_parallel=16, gpus_per_node=8),
        "inference.rollout_tensor_parallel_size",
        "16 GPUs of one engine on a node of 8; an engine is whole on one node",
        "Set it to at most 8.",
    ),
    (
        dict(trainer_gpus=8, engine_gpus=8, tensor_parallel=4, engine_gpus_per_node=2, gpus_per_node=8),
        "inference.rollout_gpus_per_node",
        "2 GPUs of a node cannot hold an engine of 4",
        "Set it to 4, or rollout_tensor_parallel_size to at most 2.",
    ),
    (
        dict(trainer_gpus=8, engine_gpus=8, engine_gpus_per_node=9, gpus_per_node=8),
        "inference.rollout_gpus_per_node",
        "9 GPUs of engines on a node of 8",
        "Set it to at most 8.",
    ),
    (
        dict(trainer_gpus=6, tensor_parallel=4, colocated=True, gpus_per_node=8),
        "inference.rollout_tensor_parallel_size",
        "4 GPUs of an engine do not divide the 6 of a node",
        "Set it to 3 or 6.",
    ),
    (
        dict(trainer_gpus=8, engine_gpus=4, colocated=True, gpus_per_node=8),
        "inference.gpus",
        "4 GPUs of engines that share the 8 of the learner",
        "Remove it, set it to 8, or set placement_mode to disaggregated.",
    ),
    (dict(gpus_per_node=0), "launch.gpus_per_replica", "a node of 0 GPUs", "Set it to 1 or more."),
    (
        dict(trainer_gpus=2**62, trainer_nodes=2**62),
        "trainer.gpus",
        "more than 65536 GPUs are asked for",
        "Ask for fewer.",
    ),
]


@pytest.mark.parametrize(("asked", "key", "what", "fix"), REFUSED, ids=lambda value: value if "." in str(value) else "")
def test_what_cannot_be_placed_names_the_key_and_the_nearest_that_can(
    asked: dict[str, Any], key: str, what: str, fix: str
) -> None:
    with pytest.raises(DoesNotFit) as error:
        lay_out(Request(**asked))
    assert (error.value.key, error.value.what, error.value.fix) == (key, what, fix)


CLUSTER = """\
[launch]
backend = "slurm"
gpus_per_replica = 8
[trainer]
gpus = 8
[inference]
backend = "vllm"
placement_mode = "disaggregated"
gpus = 8
max_context_length = 64
"""
HEADER = 'schema_version = 1\nname = "plain"\n[model]\nsource = "model"\n[output]\nroot = "out"\n'
TASK = '[[data.tasks]]\ntask = "addition"\ntrain_count = 64\n'


def problems(path: Path, *overrides: str) -> list[str]:
    settings, _ = read_settings(load(path, overrides))
    return [str(problem) for problem in placement_problems(settings)]


def test_the_job_has_the_placement_of_its_settings(write: Write) -> None:
    path = write(CLUSTER + TASK, HEADER)
    resolved = plan(path, ["inference.rollout_tensor_parallel_size=2"])
    # The tiny model has two query heads and one key-value head.
    topology = resolved.job.topology
    assert (topology.nodes, topology.gpus_per_node, len(topology.learner), len(topology.engines)) == (2, 8, 8, 4)
    assert (resolved.job.engine.count, resolved.job.learner.ranks) == (4, 8)
    assert resolved.provenance["topology.nodes"].arithmetic == (
        "learner 1 x 8 GPUs + 4 engines x 2 GPUs, 8 GPUs a node (given) = 2 nodes"
    )
    assert JobSpec.from_json(resolved.job.to_json()).topology == topology


def test_colocated_engines_are_counted_by_the_gpus_of_the_learner(write: Write) -> None:
    text = CLUSTER.replace("gpus = 8\nmax", "max").replace("disaggregated", "colocated")
    job = plan(write(text + TASK, HEADER)).job
    assert (job.engine.count, len(job.topology.engines), job.topology.nodes) == (8, 8, 1)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (
            ["inference.rollout_tensor_parallel_size=4"],
            "--set inference.rollout_tensor_parallel_size: 2 query heads and 1 key-value heads do not divide over 4 "
            "GPUs. Set it to 2.",
        ),
        (
            ["trainer.gpus=6"],
            "--set trainer.gpus: 1 x 6 = 6 ranks do not divide the 64 responses of an optimizer step. Set trainer.gpus "
            "to 4, or the batch to a multiple of 24 responses.",
        ),
        (
            ["trainer.gpus=3", "trainer.trainer_num_nodes=3"],
            "--set trainer.gpus: 3 x 3 = 9 ranks do not divide the 64 responses of an optimizer step. Set "
            "inference.global_batch_size to a multiple of 72 responses.",
        ),
        (
            ['launch.backend="local"'],
            "--set launch.backend: the run needs 2 nodes of 8 GPUs, and local is one machine. Set it to slurm or "
            "beaker, or ask for at most 8 GPUs.",
        ),
        (
            ["trainer.expert_parallel_size=2"],
            "--set trainer.expert_parallel_size: is 2, but the model has no experts. Set it to 1.",
        ),
        (
            ["trainer.gpus=9", "inference.rollout_batch_size=9"],
            "--set trainer.gpus: 9 GPUs of the learner on a node of 8. Set it to at most 8, and trainer_num_nodes to "
            "2.",
        ),
    ],
)
def test_a_placement_that_the_model_or_the_batch_forbids_is_one_exact_line(
    write: Write, overrides: list[str], wanted: str
) -> None:
    path = write(CLUSTER + TASK, HEADER)
    assert problems(path) == []
    assert problems(path, *overrides) == [wanted]


def test_experts_divide_over_the_ranks_that_share_them(write: Write, folder: Path) -> None:
    config = dict(
        model_type="qwen3_moe",
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        vocab_size=40,
        num_experts=12,
    )
    (folder / "model" / "config.json").write_text(json.dumps(config))
    path = write(CLUSTER + TASK, HEADER)
    assert problems(path, "trainer.expert_parallel_size=4") == []
    assert problems(path, "trainer.expert_parallel_size=3") == [
        "--set trainer.expert_parallel_size: 3 ranks do not divide the 8 ranks of the learner and the 12 experts. Set "
        "it to 2 or 4."
    ]


def test_key_value_heads_are_shared_out_or_repeated_evenly(write: Write, folder: Path) -> None:
    file = folder / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | dict(num_attention_heads=12, num_key_value_heads=4)))
    path = write(CLUSTER + TASK, HEADER)
    assert problems(path, "inference.rollout_tensor_parallel_size=4", "inference.gpus=8") == []
    assert problems(path, "inference.rollout_tensor_parallel_size=6", "inference.gpus=6") == [
        "--set inference.rollout_tensor_parallel_size: 12 query heads and 4 key-value heads do not divide over 6 GPUs. "
        "Set it to 4 or 12."
    ]
