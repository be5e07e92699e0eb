"""Whole runs of the shipped policy on a real engine and a real learner, in every mode."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from grpo.data.load import load_prompts, load_tokenizer
from grpo.errors import UserError
from grpo.learner.local import LocalLearner
from grpo.obs.jsonl import read_rows
from grpo.plan.job import JobSpec, Placement
from grpo.plan.paths import RunPaths, model_dir
from grpo.runtime import entry
from grpo.types import Group
from grpo.weights.protocol import WeightSource
from support.fleets import Audit
from support.jobs import make_job


def job_of(tmp_path: Path, *, mode: str = "barrier", lag: int = 0, **overrides: Any) -> JobSpec:
    groups = 8
    sync = dict(
        asynchronous=lag > 0,
        publication_mode=mode,
        max_policy_lag=lag,
        max_groups_in_system=(lag + 1) * groups,
        buffer_groups=2 * groups,
        drain_timeout_s=300.0,
        update_timeout_s=300.0,
        request_timeout_s=300.0,
        straggler_timeout_s=300.0,
        watchdog_s=300.0,
    )
    return make_job(tmp_path, sync={**sync, **overrides.pop("sync", {})}, **overrides)


class RecordingLearner(LocalLearner):
    """Keeps a copy of the weights of every version that it publishes."""

    def __init__(self, job: JobSpec) -> None:
        super().__init__(job)
        self.history: dict[int, dict[str, torch.Tensor]] = {}

    async def weights(self, *, snapshot: bool = False) -> WeightSource:
        source = await super().weights(snapshot=True)
        self.history[source.version] = {
            name: tensor.clone() for bucket in source.buckets(1 << 30) for name, tensor in bucket
        }
        return source


def run_recorded(job: JobSpec) -> tuple[Audit, RecordingLearner]:
    audit, learner = Audit(job), RecordingLearner(job)
    tokenizer = load_tokenizer(model_dir(job.model.source))
    asyncio.run(entry.run(job, tokenizer, observer=audit, learner=learner, on_transition=audit.hear))
    audit.check_attempts()
    audit.check_groups(retries=True)
    return audit, learner


def recomputed(group: Group, models: dict[int, Any], temperature: float) -> list[tuple[float, float]]:
    """Pairs of an engine's log-probability and a plain full forward's, under the version that the span names."""
    pairs = []
    for response in group.responses:
        ids = torch.tensor([group.prompt.tokens + response.tokens])
        start = len(group.prompt.tokens)
        logprobs = {}
        for version in set(response.token_versions()):
            with torch.no_grad():
                logits = models[version](ids).logits[0].float() / temperature
            logprobs[version] = torch.log_softmax(logits, dim=-1)
        for index, (token, version) in enumerate(zip(response.tokens, response.token_versions(), strict=True)):
            pairs.append((response.logprobs[index], float(logprobs[version][start + index - 1, token])))
    return pairs


MODES = [("barrier", 0), ("barrier", 2), ("refresh", 2), ("engine_drain", 2)]


@pytest.mark.parametrize(("mode", "lag"), MODES)
def test_engine_log_probs_are_the_learners_on_every_token_of_a_run(tmp_path: Path, mode: str, lag: int) -> None:
    job = job_of(
        tmp_path,
        mode=mode,
        lag=lag,
        batch=dict(num_rollouts=6),
        engine=dict(running_requests=10, count=2 if mode == "engine_drain" else 1),  # fewer slots than requests
        sampling=dict(temperature=1.5 if mode == "barrier" else 1.0),
        optimizer=dict(learning_rate=1e-3),
    )
    audit, learner = run_recorded(job)
    models: dict[int, Any] = {0: AutoModelForCausalLM.from_pretrained(model_dir(job.model.source)).eval()}
    for version, tensors in learner.history.items():
        models[version] = AutoModelForCausalLM.from_pretrained(model_dir(job.model.source)).eval()
        models[version].load_state_dict(tensors, strict=False)
    pairs = [
        pair for group, outcome, lag_ in audit.ended for pair in recomputed(group, models, job.sampling.temperature)
    ]
    assert len(pairs) > 500
    assert max(abs(engine - plain) for engine, plain in pairs) < 1e-4
    crossed = sum(len(response.spans) > 1 for group, _, _ in audit.ended for response in group.responses)
    assert (crossed > 0) == (mode == "refresh")
    if lag == 0:
        # On-policy, learner and engine agree: every weight is 1.
        assert max(row.learner.logprob_diff_max for row in audit.rows) < 1e-4


def without_times(path: Path) -> list[dict[str, Any]]:
    rows = read_rows(path)
    for row in rows:
        row.pop("time", None)
    return rows


def test_the_same_seed_gives_the_same_metrics_and_ledger_twice(tmp_path: Path) -> None:
    jobs = [job_of(tmp_path / name, output=dict(rollout_sample_rate=1.0)) for name in ("a", "b")]
    for job in jobs:
        entry.train(job, json_output=True)
    first, second = (RunPaths(Path(job.output.root)) for job in jobs)
    rows = without_times(first.metrics)
    assert [row["kind"] for row in rows] == ["eval", "step", "step", "step", "step", "eval"]
    assert json.dumps(rows) == json.dumps(without_times(second.metrics))
    assert first.ledger.read_bytes() == second.ledger.read_bytes()
    captured = [sorted((paths.rollouts / "groups.jsonl").read_bytes().splitlines()) for paths in (first, second)]
    assert captured[0] == captured[1]


def test_the_exported_model_scores_what_the_run_says(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, output=dict(export_hf=True), data=dict(tasks=(dict(task="addition", train_count=64, eval_count=40),))
    )
    result = entry.train(job, json_output=True)
    model: Any = AutoModelForCausalLM.from_pretrained(job.output.hf_dir).eval()
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(job.output.hf_dir)
    prompts = load_prompts(job, tokenizer).evals["addition"]
    right = 0
    for prompt in prompts:
        ids = torch.tensor([prompt.tokens])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)
        text = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
        right += text == prompt.ground_truth
    assert result.eval_after == right / len(prompts)
    assert result.steps == 4
    assert result.eval_before is not None


def test_several_optimizer_steps_a_collection_use_the_log_probs_before_the_first(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        batch=dict(num_rollouts=2, global_batch_size=8, steps_per_collection=4),
        optimizer=dict(learning_rate=1e-3),
        objective=dict(clip_low=0.02, clip_high=0.02),
    )
    audit, _ = run_recorded(job)
    assert [row.step for row in audit.rows] == list(range(1, 9))
    assert [row.learner.samples for row in audit.rows] == [8] * 8
    # The first step of a collection is on-policy; by the last, the policy has moved and some ratios are clipped.
    clipped = [row.learner.clip_low_fraction + row.learner.clip_high_fraction for row in audit.rows]
    assert clipped[0] == clipped[4] == 0.0
    assert sum(clipped) > 0.0


def test_a_failed_run_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    job = job_of(tmp_path, filter=dict(starvation_groups=1), batch=dict(max_response_length=1))
    with pytest.raises(Exception, match="1 groups in a row had nothing to learn from"):
        entry.train(job, json_output=True)
    log = (RunPaths(Path(job.output.root)).logs / "controller.log").read_text()
    assert "the run ended early" in log
    assert "Traceback (most recent call last)" in log


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    job = job.model_copy(update={"topology": job.topology.model_copy(update={"learner": (Placement(gpus=(0,)),)})})
    with pytest.raises(UserError) as error:
        entry.train(job, json_output=True)
    assert str(error.value) == (
        "trainer.gpus: a GPU is asked for, and PyTorch finds none on this machine. "
        "Leave the key out, or set it to 0, to train on the CPU."
    )
