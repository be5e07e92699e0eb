"""What the plan says about engines, publication and checkpoints is what the real ones hold and move."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo.engine.local.decoder import Decoder
from grpo.learner.local import LocalLearner
from grpo.learner.packing import micro_batches
from grpo.learner.rank import LearnerRank
from grpo.plan.estimate import estimate
from grpo.plan.estimate_base import GPUS, Hardware
from grpo.plan.estimate_engine import cache_token, engine_memory, engine_weights, running_requests
from grpo.plan.estimate_host import (
    TOKEN_BYTES,
    admission,
    batch_geometry,
    bucket_count,
    checkpoint,
    disk,
    host_memory,
    kept_checkpoints,
    lag,
    publication,
)
from grpo.plan.job import CheckpointSpec, JobSpec
from grpo.plan.shapes import ModelShape, model_shape
from grpo.types import FinishReason, PolicySpan, Response, TrainSample
from support.jobs import make_job
from support.models import make_model

CPU = torch.device("cpu")
LARGE: dict[str, Any] = dict(
    model_type="llama",
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=128256,
)


def large() -> ModelShape:
    shape = model_shape(LARGE)
    assert shape is not None
    return shape


def shape_of(folder: Path) -> ModelShape:
    shape = model_shape(json.loads((folder / "config.json").read_text()))
    assert shape is not None
    return shape


def values(part: Any) -> dict[str, Any]:
    return {quantity.name: quantity.value for quantity in part.quantities}


def server(tmp_path: Path, *, tensor_parallel: int = 1, **options: Any) -> JobSpec:
    engine = dict(
        backend="vllm",
        count=2,
        tensor_parallel_size=tensor_parallel,
        dtype="bfloat16",
        options=options,
        running_requests=256,
    )
    batch = dict(max_context_length=8192, max_response_length=4096, max_prompt_length=4096)
    return make_job(tmp_path, engine=engine, batch=batch, sync=dict(max_groups_in_system=512))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_and_cache_of_the_local_engine_are_exact(tmp_path: Path, dtype: str, family: Any, tied: bool) -> None:
    model = make_model(tmp_path / "model", family, tied=tied)
    job, shape = make_job(tmp_path, model=model, engine=dict(dtype=dtype)), shape_of(model)
    spec, context = job.engine, job.batch.max_context_length
    real = Decoder(
        model, version=0, running_requests=spec.running_requests, max_context_length=context, dtype=spec.dtype
    )
    said = values(engine_memory(job, shape, Hardware()))
    assert said["engine.weights"] == sum(parameter.nbytes for parameter in real.model.parameters())
    assert said["engine.cache"] == real._cache.kv.nbytes
    assert said["engine.cache_token"] == real._cache.kv[:, :, 0, :, 0].nbytes
    assert said["engine.contexts"] == real.free_rows


def test_the_pool_of_a_server_engine_is_its_share_of_the_gpu_less_the_weights(tmp_path: Path) -> None:
    shape, hardware = large(), Hardware(GPUS["h200"])
    said = values(engine_memory(server(tmp_path), shape, hardware))
    pool = int(0.9 * 141e9) - 2 * 8_030_261_248
    token = 2 * 32 * 8 * 128 * 2
    assert said == {
        "engine.weights": 2 * 8_030_261_248,
        "engine.cache_token": token,
        "engine.cache": pool,
        "engine.contexts": pool // token // 8192,
    }
    given = values(engine_memory(server(tmp_path, gpu_memory_utilization=0.5), shape, hardware))
    assert given["engine.cache"] == int(0.5 * 141e9) - 2 * 8_030_261_248
    assert values(engine_memory(server(tmp_path, max_total_tokens=20_000), shape, hardware))["engine.contexts"] == 2


def test_tensor_parallel_gpus_share_weights_and_as_many_heads_as_there_are(tmp_path: Path) -> None:
    shape = large()
    for width, shares in ((2, 2), (8, 8), (16, 8)):
        job = server(tmp_path, tensor_parallel=width)
        assert engine_weights(job, shape).value == -(-2 * 8_030_261_248 // width)
        assert cache_token(job, shape).value == 2 * 32 * 8 * 128 * 2 // shares


def test_weights_that_do_not_fit_say_so_and_leave_no_cache(tmp_path: Path) -> None:
    part = engine_memory(server(tmp_path, gpu_memory_utilization=0.1), large(), Hardware())
    cache = next(each for each in part.quantities if each.name == "engine.cache")
    assert (cache.value, values(part)["engine.contexts"]) == (0, 0)
    assert cache.note.startswith("does not fit: the weights are larger than the share")


def test_an_engine_runs_what_its_limit_its_cache_and_its_share_of_the_work_allow(tmp_path: Path) -> None:
    shape, hardware = large(), Hardware(GPUS["h100"])
    pool, token = int(0.9 * 80e9) - 2 * 8_030_261_248, 2 * 32 * 8 * 128 * 2
    assert running_requests(server(tmp_path), shape, hardware, 1000) == 256
    assert running_requests(server(tmp_path), shape, hardware, 8192) == pool // (token * 8192)
    few = server(tmp_path)
    few = few.model_copy(update={"sync": few.sync.model_copy(update={"max_groups_in_system": 8})})
    assert running_requests(few, shape, hardware, 1000) == 8 * 4 // 2


@pytest.mark.parametrize("limit", [1, 5_000, 20_000, 267_520, 60_000, 1 << 30])
def test_a_publication_moves_what_the_learner_really_sends(tmp_path: Path, limit: int) -> None:
    model = make_model(tmp_path / "model")
    job = make_job(tmp_path, model=model, sync=dict(update_weight_buffer_bytes=limit), engine=dict(count=3))

    async def sent() -> list[int]:
        learner = LocalLearner(job)
        await learner.start()
        weights = await learner.weights()
        buckets = [sum(tensor.nbytes for _, tensor in bucket) for bucket in weights.buckets(limit)]
        await learner.close()
        return buckets

    buckets = asyncio.run(sent())
    moved, count = publication(job, shape_of(model))
    assert (moved.value, count.value) == (3 * sum(buckets), len(buckets))
    assert bucket_count(shape_of(model), 4, limit) == len(buckets)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_has_the_bytes_that_were_said_and_some_of_file_format(tmp_path: Path, dtype: str) -> None:
    model = make_model(tmp_path / "model")
    job = make_job(tmp_path, model=model, learner=dict(dtype=dtype))
    rank = LearnerRank(job, device=CPU)
    said = int(checkpoint(job, shape_of(model)).value or 0)
    state = rank.capture()
    assert said == sum(tensor.nbytes for tensor in state.tensors.values())
    state.write(tmp_path / "checkpoint")
    written = sum(path.stat().st_size for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert said < written < said + 2000 * len(state.tensors)


def test_an_export_has_the_bytes_that_were_said(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    job = make_job(tmp_path, model=model, output=dict(export_hf=True), learner=dict(dtype="bfloat16"))
    LearnerRank(job, device=CPU).export_hf(tmp_path / "export")
    said = values(disk(job, shape_of(model)))["disk.export"]
    written = (tmp_path / "export" / "model.safetensors").stat().st_size
    assert said < written < said + 4096


@pytest.mark.parametrize(
    ("rollouts", "interval", "keep_last", "keep_every"),
    [
        (7, 0, 0, 0),
        (10, 3, 0, 0),
        (9, 3, 0, 0),
        (10, 3, 2, 0),
        (10, 1, 2, 4),
        (100, 5, 3, 20),
        (100, 4, 3, 6),
        (5, 5, 2, 1),
    ],
)
def test_the_checkpoints_kept_are_those_that_the_rule_leaves(
    tmp_path: Path, rollouts: int, interval: int, keep_last: int, keep_every: int
) -> None:
    job = make_job(
        tmp_path,
        batch=dict(num_rollouts=rollouts),
        checkpoint=dict(save=True, interval=interval, keep_last=keep_last, keep_every=keep_every),
    )
    assert isinstance(job.checkpoint, CheckpointSpec)
    written = [each for each in range(1, rollouts + 1) if each == rollouts or (interval and each % interval == 0)]
    old = written[:-keep_last] if keep_last else []
    kept = [each for each in written if each not in old or (keep_every and each % keep_every == 0)]
    assert kept_checkpoints(job) == len(kept)


def test_responses_in_memory_take_what_was_said() -> None:
    count = 20_000

    def make() -> Response:
        tokens = torch.arange(1000, 1000 + count).tolist()
        logprobs = torch.rand(count).tolist()
        return Response("r", tuple(tokens), tuple(logprobs), (PolicySpan(0, 0),), FinishReason.STOP)

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    response = make()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held == pytest.approx(TOKEN_BYTES * len(response.tokens), rel=0.02)


def test_host_memory_has_snapshots_only_where_engines_drain_one_by_one(tmp_path: Path) -> None:
    shape = large()
    drain = make_job(tmp_path, sync=dict(publication_mode="engine_drain", snapshot_capacity=3))
    barrier = make_job(tmp_path, checkpoint=dict(save=True))
    said = values(host_memory(drain, shape))
    assert said["host.snapshots"] == 3 * 4 * 8_030_261_248
    assert said["host.rollouts"] == 72 * 8 * 4 * 16
    assert "host.copy" not in said
    assert values(host_memory(barrier, shape))["host.snapshots"] == 0
    assert values(host_memory(barrier, shape))["host.copy"] == checkpoint(barrier, shape).value


@pytest.mark.parametrize(("packed", "micro"), [(False, 3), (True, 1), (True, 2)])
def test_micro_batches_are_those_of_the_learner_when_every_response_fills_the_context(
    tmp_path: Path, packed: bool, micro: int
) -> None:
    job = make_job(
        tmp_path,
        batch=dict(rollout_batch_size=7, samples_per_prompt=2, global_batch_size=14, num_rollouts=5),
        learner=dict(sequence_packing=packed, packing_max_tokens=3 * 48 + 10, micro_batch_size=micro),
    )
    sample = TrainSample("s", (5,) * 48, 32, (-1.0,) * 16, 1.0)
    real = list(micro_batches([sample] * 14, job.learner, lambda _: 1.0))
    said = values(batch_geometry(job))
    assert said["batch.micro_batches"] == len(real)
    assert said.get("batch.packs") == (sum(len(each.input_ids) for each in real) if packed else None)
    assert (said["batch.responses"], said["batch.tokens"], said["batch.total_steps"]) == (14, 14 * 48, 5)


def test_the_lag_reaches_what_the_groups_ahead_make_of_it(tmp_path: Path) -> None:
    def said(**sync: Any) -> Any:
        return lag(make_job(tmp_path, sync=dict(asynchronous=True) | sync)).value

    assert lag(make_job(tmp_path, sync=dict(max_policy_lag=6))).value == 0
    assert said(max_policy_lag=6, max_groups_in_system=56) == 6
    assert said(max_policy_lag=6, max_groups_in_system=16) == 2
    assert said(max_policy_lag=6, max_groups_in_system=8) == 1
    capacity = values(admission(make_job(tmp_path, sync=dict(max_groups_in_system=24, buffer_groups=16))))
    assert (capacity["sync.responses_in_system"], capacity["sync.buffer_groups"]) == (96, 16)


def test_a_whole_estimate_is_json_and_every_number_has_its_arithmetic(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    result = estimate(make_job(tmp_path, model=model))
    read = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert read["assumptions"]["gpu_memory_bytes"] == 80 * 10**9
    assert read["quantities"]["learner.gradients"] == {
        "name": "learner.gradients",
        "value": 4 * 66_880,
        "unit": "bytes",
        "formula": "4 bytes x parameters [float32]",
        "inputs": {"parameters": 66_880},
    }
    for name, quantity in read["quantities"].items():
        assert quantity["formula"] or quantity.get("note") or name == "sync.buffer_groups", name
    assert result.get("learner.gradients").text() == "261 KiB = 4 bytes x parameters [float32] (parameters 66,880)"


def test_a_model_of_an_unknown_kind_leaves_out_what_needs_its_shape(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "rwkv"}')
    result = estimate(make_job(tmp_path, model=tmp_path / "model"))
    assert [part.title for part in result.parts] == ["placement", "batch", "admission and lag", "memory"]
    assert result.get("model.parameters").value is None
