"""Settings under their MILES names: [miles]."""

from typing import Annotated, Literal

from grpo.config.schema_base import Section, Unsupported, key

_EXPERTS = "mixture-of-experts models and routing replay are not built yet"
_TOPOLOGY = "several GPUs and nodes are not built yet"
_REFERENCE = "loading other weights than model.source is not built yet"

EXCLUDE_TRUNCATED = (
    "open_instruct.miles.rewards.truncation.exclude_truncated",
    "grpo.rewards.truncation.exclude_truncated",
)


class Miles(Section):
    """Sampling, seeds, rewards and placement, under their MILES names."""

    custom_reward_post_process_path: (
        Literal["open_instruct.miles.rewards.truncation.exclude_truncated", "grpo.rewards.truncation.exclude_truncated"]
        | None
    ) = key(
        None,
        "Leaves truncated responses out: zero advantage and zero loss mask, the baseline of a group uses finished "
        "responses only, raw reward metrics are unchanged.",
    )
    custom_reward_path: Annotated[
        str | None, Unsupported("rewards from user code are not built yet; name a verifier in the data")
    ] = key(None, "Reward function.")
    use_rollout_routing_replay: Annotated[bool, Unsupported(_EXPERTS, unless=(False,))] = key(
        False, "Train with the experts that the engine chose."
    )
    use_miles_router: Annotated[bool, Unsupported("a router is not built yet", unless=(False,))] = key(
        False, "Use the router that carries expert choices."
    )
    use_tis: bool = key(True, "Importance correction to the policy that sampled; false is off_policy_correction none.")
    use_rollout_logprobs: Annotated[
        bool,
        Unsupported("the loss uses the learner's own log-probs, corrected by importance weights", unless=(False,)),
    ] = key(False, "Take the engine's log-probs as the old policy's. Excludes use_tis.")
    rollout_temperature: float = key(1.0, "Temperature of training responses.", gt=0)
    rollout_seed: int | None = key(None, "Seed of sampling.", derived="data.seed", ge=0, lt=2**63)
    rollout_max_prompt_len: int | None = key(
        None,
        "Limit of a prompt; a longer one is an error.",
        unit="tokens",
        derived="what the longer response limit leaves of max_context_length",
        ge=1,
    )
    seed: int | None = key(None, "Seed of the learner.", derived="data.seed", ge=0, lt=2**63)
    disable_grpo_std_normalization: bool | None = key(
        None,
        "Advantage is reward minus group mean, not divided by the group's standard deviation.",
        derived="true with workflow sections, false low-level",
    )
    eval_temperature: float = key(0.0, "Temperature of evaluation; 0 is greedy.", ge=0)
    n_samples_per_eval_prompt: int = key(1, "Responses of one held-out prompt.", unit="responses", ge=1)
    balance_data: Annotated[bool, Unsupported(_TOPOLOGY, unless=(False,))] = key(
        False, "Balance tokens over learner ranks."
    )
    load: Annotated[str | None, Unsupported(_REFERENCE)] = key(None, "Checkpoint to start from.")
    ref_load: Annotated[str | None, Unsupported(_REFERENCE)] = key(None, "Checkpoint of the reference policy.")
    hf_checkpoint: str | None = key(None, "Low-level name of model.source.", min_length=1)
    lr: float = key(1e-6, "Low-level name of optimizer.learning_rate.", gt=0)
    num_rollout: int = key(100, "Low-level name of training.num_rollouts.", unit="collections", ge=1)
    n_samples_per_prompt: int = key(8, "Low-level name of inference.samples_per_prompt.", unit="responses", ge=1)
    rollout_max_response_len: int | None = key(
        None, "Low-level name of inference.max_response_length.", unit="tokens", ge=1
    )
    actor_num_nodes: Annotated[int, Unsupported(_TOPOLOGY, unless=(1,), plans=True)] = key(
        1, "Low-level name of trainer.trainer_num_nodes.", unit="nodes", ge=1
    )
    actor_num_gpus_per_node: Annotated[int | None, Unsupported(_TOPOLOGY, unless=(0, 1), plans=True)] = key(
        None, "Low-level name of trainer.gpus.", unit="GPUs", ge=0
    )
    rollout_num_gpus_per_engine: Annotated[int, Unsupported(_TOPOLOGY, unless=(1,), plans=True)] = key(
        1, "Low-level name of inference.rollout_tensor_parallel_size.", unit="GPUs", ge=1
    )
    num_gpus_per_node: int | None = key(None, "Low-level name of launch.gpus_per_replica.", unit="GPUs", ge=1)
    colocate: bool | None = key(None, "Low-level name of inference.placement_mode: true is colocated.")
    rollout_batch_size: int = key(8, "Low-level name of inference.rollout_batch_size.", unit="groups", ge=1)
    global_batch_size: int | None = key(
        None,
        "Low-level name of inference.global_batch_size.",
        unit="responses",
        derived="rollout_batch_size x n_samples_per_prompt",
        ge=1,
    )
    rollout_num_gpus: int | None = key(None, "Low-level name of inference.gpus.", unit="GPUs", ge=0)
    prompt_data: str | None = key(None, "Low-level name of data.prompt_data.")
    eval_prompt_data: list[str] | None = key(None, "Low-level name of data.eval_prompt_data.")
    eval_interval: int | None = key(None, "Low-level name of training.eval_interval.", unit="collections", ge=1)
    save: str | None = key(None, "Low-level name of output.root.", min_length=1)
    save_interval: int | None = key(None, "Low-level name of training.save_interval.", unit="collections", ge=1)
    wandb_group: str | None = key(None, "Low-level name of tracking.wandb_group.")
