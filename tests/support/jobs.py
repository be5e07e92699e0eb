"""A minimal job for tests: small, on one CPU rank, every field given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo.plan.job import (
    BatchSpec,
    CheckpointSpec,
    DataSpec,
    EngineSpec,
    EvaluationSpec,
    FilterSpec,
    JobSpec,
    LaunchSpec,
    LearnerSpec,
    ModelSpec,
    ObjectiveSpec,
    OptimizerSpec,
    OutputSpec,
    SamplingSpec,
    SyncSpec,
    TaskSpec,
    TrackingSpec,
)

_PARTS: dict[str, dict[str, Any]] = {
    "data": dict(tasks=(TaskSpec(task="addition", train_count=64, eval_count=16),), seed=1, shuffle=True),
    "batch": dict(
        num_rollouts=4,
        rollout_batch_size=8,
        samples_per_prompt=4,
        global_batch_size=32,
        steps_per_collection=1,
        max_prompt_length=32,
        max_response_length=16,
        eval_max_response_length=16,
        max_context_length=48,
    ),
    "sampling": dict(temperature=1.0, top_p=1.0, top_k=0, seed=2, eval_temperature=0.0, eval_samples_per_prompt=1),
    "evaluation": dict(initial=True, interval=0, final=True),
    "optimizer": dict(
        learning_rate=1e-3,
        schedule="constant",
        warmup_steps=0,
        weight_decay=0.0,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        clip_grad=1.0,
    ),
    "objective": dict(
        advantage_std=False,
        policy_loss="ppo",
        denominator="token",
        clip_low=0.2,
        clip_high=0.28,
        kl_coef=0.0,
        entropy_coef=0.0,
        correction="tis",
        tis_cap=2.0,
        icepop_low=0.5,
        icepop_high=2.0,
    ),
    "filter": dict(zero_std=True, exclude_truncated=False, ungraded="exclude", max_attempts=3, starvation_groups=256),
    "sync": dict(
        asynchronous=False,
        publication_mode="barrier",
        max_policy_lag=0,
        max_groups_in_system=8,
        buffer_groups=8,
        stale="retry",
        straggler="wait",
        straggler_timeout_s=30.0,
        submission="group",
        drain_timeout_s=30.0,
        update_timeout_s=30.0,
        request_timeout_s=30.0,
        snapshot_capacity=2,
        watchdog_s=30.0,
        update_weight_buffer_bytes=1 << 20,
    ),
    "engine": dict(
        backend="local", count=1, tensor_parallel_size=1, running_requests=16, dtype="float32", failure="fail"
    ),
    "learner": dict(
        backend="fsdp",
        ranks=1,
        dtype="float32",
        micro_batch_size=16,
        sequence_packing=False,
        packing_max_tokens=256,
        activation_recompute=False,
        seed=3,
    ),
    "checkpoint": dict(save=False, interval=0, keep_last=1, keep_every=0),
    "tracking": dict(wandb_mode="disabled"),
    "launch": dict(backend="local"),
}


def make_job(tmp_path: Path, *, model: str | Path = "builtin:tiny-arithmetic", **overrides: Any) -> JobSpec:
    """Return a job that writes under ``tmp_path / "run"``.

    Args:
        model: model folder, or a ``builtin:`` name.
        overrides: ``part=dict(field=value)`` changes fields of one part, as in ``learner=dict(micro_batch_size=3)``;
            ``name="x"`` changes a field of the job itself. An unknown part or field is an error. Derived fields
            (``batch.steps_per_collection``, ``sync.max_groups_in_system``) are as given, not derived again.
    """
    root = tmp_path / "run"
    parts = {name: {**fields, **overrides.pop(name, {})} for name, fields in _PARTS.items()}
    output = dict(root=str(root), export_hf=False, hf_dir=str(root / "export-hf"), rollout_sample_rate=0.0)
    return JobSpec(
        name=overrides.pop("name", "test"),
        config_sha256=overrides.pop("config_sha256", "0" * 64),
        model=ModelSpec(source=str(model)),
        output=OutputSpec(**{**output, **overrides.pop("output", {})}),
        data=DataSpec(**parts["data"]),
        batch=BatchSpec(**parts["batch"]),
        sampling=SamplingSpec(**parts["sampling"]),
        evaluation=EvaluationSpec(**parts["evaluation"]),
        optimizer=OptimizerSpec(**parts["optimizer"]),
        objective=ObjectiveSpec(**parts["objective"]),
        filter=FilterSpec(**parts["filter"]),
        sync=SyncSpec(**parts["sync"]),
        engine=EngineSpec(**parts["engine"]),
        learner=LearnerSpec(**parts["learner"]),
        checkpoint=CheckpointSpec(**parts["checkpoint"]),
        tracking=TrackingSpec(**parts["tracking"]),
        launch=LaunchSpec(**parts["launch"]),
        **overrides,
    )
