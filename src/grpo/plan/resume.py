"""May a stopped run go on with this job? Only what does not change what it learns may differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo.plan.job import JobSpec

MAY_CHANGE = (
    "batch.num_rollouts",
    "checkpoint",
    "config_sha256",
    "engine.failure",
    "evaluation",
    "launch",
    "learner.cpu_threads",
    "output.export_hf",
    "output.hf_dir",
    "output.rollout_sample_rate",
    "output.root",
    "sync.drain_timeout_s",
    "sync.request_timeout_s",
    "sync.straggler_timeout_s",
    "sync.update_timeout_s",
    "sync.watchdog_s",
    "tracking",
)
"""Keys of the job, whole sections among them, that a resumed run may change."""


def differences(recorded: JobSpec, wanted: JobSpec) -> list[str]:
    """Return one line for each value that differs and must not, as ``optimizer.learning_rate: 0.001 -> 0.002``."""
    before, after = dict(_leaves(recorded.model_dump(mode="json"))), dict(_leaves(wanted.model_dump(mode="json")))
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key) and not _may_change(key)
    ]


def _may_change(key: str) -> bool:
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in MAY_CHANGE)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(child, f"{key}.{name}" if key else name)
    else:
        yield key, value
