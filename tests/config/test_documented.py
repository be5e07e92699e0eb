"""Every documented name of a run file is known, and every documented default is the code's."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config import derive
from grpo.config.aliases import ALIASES
from grpo.config.schema import INNER, SECTIONS, Top
from grpo.config.schema_base import Section, keys_of, unsupported
from grpo.config.settings import Settings
from grpo.plan.resolve import plan

EXAMPLES = Path(__file__).parents[2] / "configs" / "examples"

# The keys that a run file of the MILES GRPO workflow may carry, as its reference lists them.
DOCUMENTED = {
    "": "schema_version name",
    "model": "source format hf_template",
    "conversion": "hf_output",
    "output": "root export_hf hf_dir rollout_sample_rate",
    "launch": "workspace budget cluster priority min_runtime timeout auto_resume gpus_per_replica shared_memory env "
    "secrets weka_mounts coordination",
    "launch.coordination": "startup_timeout heartbeat_timeout",
    "launch.weka_mounts": "weka mount_path",
    "data": "tasks rl_manifest prompt_data reward_config eval_prompt_data seed shuffle",
    "data.tasks": "task train_count eval_count prompt_wrapper",
    "training": "num_rollouts filter_zero_std_groups skip_eval_before_train eval_interval save_checkpoints "
    "save_interval max_train_rollout_logprob_abs_diff",
    "evaluation": "mode interval initial final tasks gpus cluster image revision timeout submit_timeout server_args",
    "trainer": "gpus trainer_num_nodes expert_parallel_size micro_batch_size dynamic_batching sequence_packing "
    "packing_max_tokens activation_recompute recompute_mode trainer_flash_attention_version expert_balanced_packing "
    "trainer_diagnostics",
    "inference": "placement_mode gpus rollout_tensor_parallel_size rollout_gpus_per_node rollout_expert_parallel_size "
    "rollout_batch_size samples_per_prompt global_batch_size max_response_length max_context_length "
    "eval_max_response_length radix_cache disable_radix_cache mamba_radix_cache_strategy enable_mixed_chunk "
    "router_policy router_cache_threshold router_balance_abs_threshold router_balance_rel_threshold "
    "check_weight_update_equal update_weight_buffer_size sglang_server_concurrency",
    "optimizer": "learning_rate lr_decay_style lr_warmup_iters weight_decay adam_beta1 adam_beta2 adam_eps clip_grad "
    "kl_loss_coef entropy_coef eps_clip eps_clip_high",
    "async": "fully_async max_weight_staleness async_max_concurrent_samples async_data_buffer_capacity_factor "
    "async_unused_samples_handler rollout_submission_granularity off_policy_correction",
    "tracking": "wandb_mode wandb_team wandb_project wandb_group comparison_id collect_dashboard",
    "runtime": "row_specialization",
    "compiler_cache": "enabled shared_root restore diagnostics",
    "judges": "mode endpoint model revision backend gpus tensor_parallel_size max_context_length context_extension "
    "max_concurrent_calls timeout chat_template prepared_dir",
    "rubrics": "profile max_response_tokens temperature",
    "judging.bindings": "judge rubric",
    "core": "publication_mode max_policy_lag engine_drain_timeout engine_update_timeout refresh_request_timeout "
    "snapshot_capacity weight_sync_mode filter_zero_std_groups max_train_rollout_logprob_abs_diff "
    "scoring_pass_required scoring_check_interval scoring_check_tolerance diagnostic_interval "
    "pipeline_observation_interval replay_diagnostics stream_moe_export expert_publication reward_config model_config "
    "expert_parallel_size attention_backend activation_checkpointing compile_model compile_optimizer "
    "use_reduce_scatter max_sequence_length sequence_packing packing_max_tokens expert_balanced_packing "
    "expert_balance_layer_stride expert_balance_search_proposals expert_balance_search_seconds router_aux_loss_weight "
    "router_z_loss_weight router_aux_loss_grouping router_aux_loss_reduction router_z_loss_reduction "
    "router_aux_count_source checkpoint_keep_last checkpoint_keep_every checkpoint_thread_count "
    "checkpoint_process_count checkpoint_compact_storage checkpoint_dedup_save_to_lowest_rank "
    "checkpoint_constant_memory_planning checkpoint_profile row_specialization",
    "miles": "custom_reward_post_process_path custom_reward_path use_rollout_routing_replay use_miles_router use_tis "
    "use_rollout_logprobs rollout_temperature rollout_seed rollout_max_prompt_len seed disable_grpo_std_normalization "
    "eval_temperature n_samples_per_eval_prompt balance_data load ref_load hf_checkpoint lr num_rollout "
    "n_samples_per_prompt rollout_max_response_len actor_num_nodes actor_num_gpus_per_node rollout_num_gpus_per_engine "
    "num_gpus_per_node colocate wandb_group",
}
DEFAULTS: dict[str, Any] = {
    "model.format": "hf",
    "output.export_hf": False,
    "output.rollout_sample_rate": 0.0,
    "launch.auto_resume": True,
    "launch.coordination.startup_timeout": 1200.0,
    "launch.coordination.heartbeat_timeout": 120.0,
    "data.seed": 17,
    "data.shuffle": True,
    "training.num_rollouts": 100,
    "training.filter_zero_std_groups": True,
    "training.save_checkpoints": True,
    "trainer.expert_parallel_size": 1,
    "trainer.micro_batch_size": 1,
    "trainer.sequence_packing": False,
    "trainer.activation_recompute": True,
    "trainer.expert_balanced_packing": False,
    "inference.rollout_tensor_parallel_size": 1,
    "inference.rollout_batch_size": 8,
    "inference.samples_per_prompt": 8,
    "inference.max_context_length": 6144,
    "optimizer.learning_rate": 1e-6,
    "optimizer.lr_decay_style": "constant",
    "optimizer.weight_decay": 0.0,
    "optimizer.adam_beta1": 0.9,
    "optimizer.adam_beta2": 0.95,
    "optimizer.adam_eps": 1e-8,
    "optimizer.clip_grad": 1.0,
    "optimizer.kl_loss_coef": 0.0,
    "optimizer.entropy_coef": 0.0,
    "optimizer.eps_clip": 0.2,
    "optimizer.eps_clip_high": 0.28,
    "async.async_data_buffer_capacity_factor": 2.0,
    "async.off_policy_correction": "tis",
    "judges.max_context_length": 40960,
    "judges.max_concurrent_calls": 16,
    "judges.timeout": 120.0,
    "rubrics.max_response_tokens": 2048,
    "rubrics.temperature": 1.0,
    "core.engine_drain_timeout": 180.0,
    "core.engine_update_timeout": 180.0,
    "core.refresh_request_timeout": 1800.0,
    "core.snapshot_capacity": 2,
    "core.filter_zero_std_groups": True,
    "core.max_train_rollout_logprob_abs_diff": None,
    "core.scoring_pass_required": False,
    "core.scoring_check_interval": 50,
    "core.scoring_check_tolerance": 1e-3,
    "core.diagnostic_interval": 0,
    "core.pipeline_observation_interval": 0.0,
    "core.stream_moe_export": True,
    "core.expert_parallel_size": 1,
    "core.activation_checkpointing": True,
    "core.max_sequence_length": 8192,
    "core.sequence_packing": False,
    "core.expert_balanced_packing": False,
    "core.expert_balance_layer_stride": 1,
    "core.expert_balance_search_proposals": 1024,
    "core.expert_balance_search_seconds": 0.25,
    "miles.rollout_temperature": 1.0,
}


def models() -> dict[str, type[Section]]:
    return (
        {"": Top} | {name: info.model for name, info in SECTIONS.items()} | {".".join(p): m for p, m in INNER.items()}
    )


@pytest.mark.parametrize("section", DOCUMENTED)
def test_every_documented_key_is_declared(section: str) -> None:
    assert set(DOCUMENTED[section].split()) <= set(keys_of(models()[section]))


@pytest.mark.parametrize(("key", "default"), DEFAULTS.items(), ids=DEFAULTS.keys())
def test_a_documented_default_is_that_of_the_schema(key: str, default: Any) -> None:
    section, _, name = key.rpartition(".")
    found = keys_of(models()[section])[name].default
    assert found == default and type(found) is type(default)


def test_a_key_of_a_missing_feature_says_so_and_none_is_declared_and_forgotten() -> None:
    """A key without a marker reaches the job: it is read by resolve, by a formula, or by a rule."""
    source = "".join(
        path.read_text()
        for folder in ("config", "plan")
        for path in (Path(__file__).parents[2] / "src" / "grpo" / folder).glob("*.py")
        if not path.name.startswith("schema")
    )
    twins = {alias.low_level for alias in ALIASES}
    named = {name for name, info in SECTIONS.items() if info.refused}
    forgotten = [
        f"{section}.{name}"
        for section, model in models().items()
        if section and section.partition(".")[0] not in {*named, "simulation"} and section not in {
            "launch.slurm", "launch.weka_mounts", "launch.coordination", "data.tasks"
        }
        for name in keys_of(model)
        if not unsupported(model, name)
        and f"{section}.{name}" not in twins
        and f'"{section}.{name}"' not in source
        and f'"{name}"' not in source
    ]  # fmt: skip
    assert forgotten == []


def test_defaults_that_differ_by_route(settings: Callable[..., Settings]) -> None:
    structured, low, sync = "[async]\nfully_async = true\n", "[core]\nmax_policy_lag = 2\n", "[training]\n"

    def route(text: str) -> tuple[Any, ...]:
        found = settings(text)
        weights = [
            derive.router_weight(found, f"core.router_{kind}_loss_weight", low_level).value
            for kind, low_level in (("aux", 0.01), ("z", 1e-5))
        ]
        return derive.max_policy_lag(found).value, derive.publication_mode(found).value, *weights

    assert route(structured) == (6, "refresh", 0.0, 0.0)
    assert route(sync) == (0, "barrier", 0.0, 0.0)
    assert route("[core]\n") == (0, "barrier", 0.01, 1e-5)
    assert route(low) == (2, "barrier", 0.01, 1e-5)
    assert route(structured + "[core]\nrouter_aux_loss_weight = 0.5") == (6, "refresh", 0.5, 0.0)


@pytest.mark.parametrize(
    ("name", "mode", "lag", "asynchronous", "zero_std"),
    [
        ("cpu", "barrier", 0, False, True),
        ("dev", "barrier", 0, False, False),
        ("node", "refresh", 6, True, True),
        ("three-node", "refresh", 6, True, True),
    ],
)
def test_each_example_is_what_it_says(name: str, mode: str, lag: int, asynchronous: bool, zero_std: bool) -> None:
    job = plan(EXAMPLES / f"{name}.toml").job
    assert (job.sync.publication_mode, job.sync.max_policy_lag, job.sync.asynchronous) == (mode, lag, asynchronous)
    assert job.filter.zero_std == zero_std
    assert (job.objective.router_aux_weight, job.objective.router_z_weight) == (0, 0)
    assert job.objective.correction == "tis" and job.learner.sequence_packing
    written = tomllib.loads((EXAMPLES / f"{name}.toml").read_text()).get("core", {})
    if asynchronous:
        assert (written["router_aux_loss_weight"], written["router_z_loss_weight"]) == (0, 0)
    if name in ("cpu", "dev"):
        assert job.learner.cpu_threads == 1


def test_the_larger_examples_have_the_sizes_that_they_are_named_for() -> None:
    node, three = (plan(EXAMPLES / f"{name}.toml").job for name in ("node", "three-node"))
    assert (node.topology.nodes, node.topology.gpus_per_node, node.topology.gpus) == (1, 8, 8)
    assert (three.topology.nodes, three.topology.gpus_per_node, three.topology.gpus) == (3, 8, 24)
    assert (node.engine.count, node.learner.ranks, three.engine.count, three.learner.ranks) == (4, 4, 8, 8)
    assert (node.launch.backend, three.launch.backend) == ("slurm", "slurm")
    beaker = plan(EXAMPLES / "three-node.toml", ['launch.backend="beaker"']).job
    assert beaker.launch.backend == "beaker"
    assert beaker.launch.options["weka_mounts"] == [{"weka": "shared", "mount_path": "/shared"}]
    assert beaker.topology == three.topology
