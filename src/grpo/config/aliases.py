"""Two names for one setting: structured names compile to their low-level twins, and a conflict shows both places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _same(value: Any) -> Any:
    return value


def _placement(colocate: Any) -> Any:
    return "colocated" if colocate else "disaggregated"


def _flash(backend: Any) -> Any:
    return int(backend.removeprefix("flash_")) if str(backend).startswith("flash_") else None


def _recompute(mode: Any) -> Any:
    return None if mode is None else mode == "full"


def _not(value: Any) -> Any:
    return None if value is None else not value


@dataclass(frozen=True, slots=True)
class Alias:
    """A structured key and its twin; ``convert`` turns a value of the twin into one of the structured key."""

    structured: str
    low_level: str
    convert: Callable[[Any], Any] = _same


ALIASES: tuple[Alias, ...] = (
    Alias("model.source", "miles.hf_checkpoint"),
    Alias("trainer.gpus", "miles.actor_num_gpus_per_node"),
    Alias("trainer.trainer_num_nodes", "miles.actor_num_nodes"),
    Alias("trainer.expert_parallel_size", "core.expert_parallel_size"),
    Alias("trainer.activation_recompute", "core.activation_checkpointing"),
    Alias("trainer.activation_recompute", "trainer.recompute_mode", _recompute),
    Alias("trainer.sequence_packing", "core.sequence_packing"),
    Alias("trainer.packing_max_tokens", "core.packing_max_tokens"),
    Alias("trainer.expert_balanced_packing", "core.expert_balanced_packing"),
    Alias("trainer.trainer_flash_attention_version", "core.attention_backend", _flash),
    Alias("inference.placement_mode", "miles.colocate", _placement),
    Alias("inference.rollout_tensor_parallel_size", "miles.rollout_num_gpus_per_engine"),
    Alias("inference.gpus", "miles.rollout_num_gpus"),
    Alias("inference.rollout_batch_size", "miles.rollout_batch_size"),
    Alias("inference.global_batch_size", "miles.global_batch_size"),
    Alias("inference.radix_cache", "inference.disable_radix_cache", _not),
    Alias("inference.samples_per_prompt", "miles.n_samples_per_prompt"),
    Alias("inference.max_response_length", "miles.rollout_max_response_len"),
    Alias("inference.max_context_length", "core.max_sequence_length"),
    Alias("async.max_weight_staleness", "core.max_policy_lag"),
    Alias("optimizer.learning_rate", "miles.lr"),
    Alias("training.num_rollouts", "miles.num_rollout"),
    Alias("training.filter_zero_std_groups", "core.filter_zero_std_groups"),
    Alias("training.max_train_rollout_logprob_abs_diff", "core.max_train_rollout_logprob_abs_diff"),
    Alias("training.eval_interval", "miles.eval_interval"),
    Alias("training.eval_interval", "evaluation.interval"),
    Alias("training.save_interval", "miles.save_interval"),
    Alias("data.prompt_data", "miles.prompt_data"),
    Alias("data.eval_prompt_data", "miles.eval_prompt_data"),
    Alias("output.root", "miles.save"),
    Alias("launch.gpus_per_replica", "miles.num_gpus_per_node"),
    Alias("tracking.wandb_group", "miles.wandb_group"),
    Alias("tracking.wandb_group", "tracking.comparison_id"),
    Alias("data.reward_config", "core.reward_config"),
    Alias("runtime.row_specialization", "core.row_specialization"),
)
"""Every pair of names. A structured key may have several twins; a twin has one structured key."""

TWINS: dict[str, tuple[Alias, ...]] = {
    structured: tuple(alias for alias in ALIASES if alias.structured == structured)
    for structured in {alias.structured for alias in ALIASES}
}
