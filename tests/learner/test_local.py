"""The learner in the controller's process, and the weights that it hands out."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo.errors import RunFailed
from grpo.learner.local import LocalLearner
from grpo.learner.protocol import Learner
from grpo.learner.rank import LearnerRank
from grpo.types import TrainBatch
from grpo.weights.in_process import InProcessWeights
from grpo.weights.protocol import WeightSource
from support.jobs import make_job
from support.plain_objective import random_samples


def tensors(source: WeightSource, max_bytes: int = 1 << 30) -> dict[str, torch.Tensor]:
    pairs = [pair for bucket in source.buckets(max_bytes) for pair in bucket]
    named = dict(pairs)
    assert len(named) == len(pairs)
    return named


def test_it_steps_scores_saves_loads_and_exports_as_its_rank_does(tmp_path: Path, llama: Path) -> None:
    job = make_job(tmp_path, model=llama)
    samples = random_samples(6, seed=1)

    async def run() -> None:
        learner: Learner = LocalLearner(job)
        assert learner.version == 0
        await learner.start()
        rank = LearnerRank(job)
        assert await learner.score(samples) == rank.score(samples)
        metrics, expected = await learner.step(TrainBatch(1, samples)), rank.step(TrainBatch(1, samples))
        assert (metrics.version, metrics.loss, learner.version) == (1, expected.loss, 1)
        (await learner.capture()).write(tmp_path / "checkpoint")
        await learner.export_hf(tmp_path / "export")
        scores = await learner.score(samples)
        await learner.step(TrainBatch(2, samples))
        await learner.load(tmp_path / "checkpoint")
        assert learner.version == 1
        assert await learner.score(samples) == scores
        await learner.close()
        await learner.close()
        with pytest.raises(RunFailed, match="the learner is closed"):
            await learner.step(TrainBatch(2, samples))

    asyncio.run(run())
    assert (tmp_path / "export" / "model.safetensors").is_file()


def test_a_learner_that_was_not_started_says_so(tmp_path: Path, llama: Path) -> None:
    async def run() -> None:
        learner = LocalLearner(make_job(tmp_path, model=llama))
        with pytest.raises(RunFailed, match="the learner was not started"):
            await learner.weights()
        await learner.close()

    asyncio.run(run())


def test_the_event_loop_lives_while_it_steps(tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow_step(self: LearnerRank, batch: TrainBatch) -> str:
        began.set()
        assert go_on.wait(30), "the event loop did not run while the learner was stepping"
        return "stepped"

    monkeypatch.setattr(LearnerRank, "step", slow_step)

    async def run() -> None:
        learner = LocalLearner(make_job(tmp_path, model=llama))
        await learner.start()
        stepping = asyncio.create_task(learner.step(TrainBatch(1, ())))
        while not began.is_set():
            await asyncio.sleep(0.001)
        weights = asyncio.create_task(learner.weights())
        await asyncio.sleep(0.01)
        assert not stepping.done() and not weights.done()  # Weights wait for the step, or they would be half of it.
        go_on.set()
        assert await stepping == "stepped"
        assert (await weights).version == 0
        await learner.close()

    asyncio.run(run())


def test_weights_follow_the_learner_and_a_snapshot_does_not(tmp_path: Path, llama: Path) -> None:
    async def run() -> None:
        learner = LocalLearner(make_job(tmp_path, model=llama))
        await learner.start()
        live, snapshot = await learner.weights(), await learner.weights(snapshot=True)
        start = load_file(llama / "model.safetensors")
        assert (live.version, snapshot.version) == (0, 0)
        assert all(torch.equal(tensor, start[name]) for name, tensor in tensors(live).items())
        await learner.step(TrainBatch(1, random_samples(4, seed=1)))
        assert all(torch.equal(tensor, start[name]) for name, tensor in tensors(snapshot).items())
        assert all(not torch.equal(tensor, start[name]) for name, tensor in tensors(live).items())
        assert (await learner.weights()).version == 1
        await learner.close()

    asyncio.run(run())


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("max_bytes", [1, 20_000, 100_000, 1 << 30])
def test_buckets_hold_every_stored_tensor_once_and_no_more_than_their_limit(
    family: str, max_bytes: int, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(family)
    source = InProcessWeights(3, AutoModelForCausalLM.from_pretrained(folder))
    stored = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in stored) == (family == "llama")  # The Qwen2 model's head is tied.
    got = tensors(source, max_bytes)
    assert got.keys() == stored.keys()
    assert all(torch.equal(got[name], stored[name]) for name in stored)
    assert not any(tensor.requires_grad for tensor in got.values())
    buckets = [[tensor.nbytes for _, tensor in bucket] for bucket in source.buckets(max_bytes)]
    assert all(len(bucket) == 1 or sum(bucket) <= max_bytes for bucket in buckets)
    assert all(sum(a) + b[0] > max_bytes for a, b in pairwise(buckets))  # None is cut short.
    assert source.version == 3
