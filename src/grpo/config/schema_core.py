"""Low-level settings of the run: [core]."""

from typing import Annotated, Any, ClassVar, Literal

from grpo.config.schema_base import Section, Unsupported, key

_SCORING = "the periodic engine-learner scoring check is not built yet"
_DIAGNOSTICS = "diagnostics are not built yet; metrics.jsonl has every step"
_EXPERTS = "training of mixture-of-experts models is not built yet"
_EXPERT_PARALLEL = "expert parallelism is not built yet"
_COMPILE = "compiled models and their cache are not built yet"
_CHECKPOINT = "this setting of distributed checkpoints is not built yet"
_ONE_RANK = "several learner ranks are not built yet"


class Core(Section):
    """Publication, lag, deadlines and the learner's inside, under their low-level names.

    Publication modes (how weights become live in the engines):
      barrier: admission closes, every request finishes on its version, the engines load, admission opens. Each
        response has exactly one version.
      refresh: decoding pauses, the engines load, caches are rebuilt under the new weights, decoding goes on. Generated
        tokens and their log-probs never change; a response can span versions, and its spans say so.
      engine_drain: engine by engine: finish what it has, load, check, admit again, while its peers keep working.
    """

    prefixes: ClassVar[dict[str, Unsupported]] = {"compiler_cache": Unsupported(_COMPILE)}

    publication_mode: Literal["barrier", "refresh", "engine_drain"] | None = key(
        None,
        "How new weights become live in the engines.",
        derived="refresh for an asynchronous run with workflow sections, else barrier",
    )
    max_policy_lag: int | None = key(
        None,
        "Low-level name of async.max_weight_staleness; above 0, a low-level run is asynchronous.",
        unit="optimizer steps",
        derived="0",
        ge=0,
    )
    engine_drain_timeout: float = key(180.0, "Time for engines to finish what they have.", unit="seconds", gt=0)
    engine_update_timeout: float = key(180.0, "Time for engines to load weights.", unit="seconds", gt=0)
    refresh_request_timeout: float = key(1800.0, "Time limit of one response.", unit="seconds", gt=0)
    snapshot_capacity: int = key(2, "Snapshots of weights held at once.", unit="snapshots", ge=1)
    weight_sync_mode: Annotated[
        Literal["flattened", "per_tensor"],
        Unsupported("weights are published in buckets; per_tensor is not built", values=("per_tensor",)),
    ] = key("flattened", "How weights are sent.")
    filter_zero_std_groups: bool = key(True, "Low-level name of training.filter_zero_std_groups.")
    max_train_rollout_logprob_abs_diff: Annotated[
        float | None, Unsupported("stopping on engine-learner disagreement is not built yet")
    ] = key(None, "Stop when the mean (despite the name) engine-learner log-prob difference is above.", unit="nats")
    scoring_pass_required: Annotated[bool, Unsupported(_SCORING, unless=(False,))] = key(
        False, "Compare engine and learner log-probs on whole batches."
    )
    scoring_check_interval: Annotated[int, Unsupported(_SCORING)] = key(50, "Steps between checks.", unit="steps")
    scoring_check_tolerance: Annotated[float, Unsupported(_SCORING)] = key(1e-3, "Largest difference.", unit="nats")
    diagnostic_interval: Annotated[int, Unsupported(_DIAGNOSTICS, unless=(0,))] = key(
        0, "Steps between diagnostics; 0 is off.", unit="steps"
    )
    pipeline_observation_interval: Annotated[float, Unsupported(_DIAGNOSTICS, unless=(0, 0.0))] = key(
        0.0, "Time between observations of the pipeline; 0 is off.", unit="seconds"
    )
    replay_diagnostics: Annotated[bool | None, Unsupported(_EXPERTS, unless=(False,))] = key(
        None, "Diagnose routing replay."
    )
    stream_moe_export: Annotated[bool, Unsupported(_EXPERTS)] = key(True, "Publish experts one after another.")
    expert_publication: Annotated[Literal["per_expert", "fused"] | None, Unsupported(_EXPERTS)] = key(
        None, "How experts are published."
    )
    reward_config: Annotated[
        str | None, Unsupported("reward files are not built yet; name the verifier in each row of prompt_data")
    ] = key(None, "Reward configuration file.")
    model_config_file: Annotated[
        Any, Unsupported("the model's own config.json is used; overriding it is not built yet")
    ] = key(None, "Model configuration.", alias="model_config")
    expert_parallel_size: Annotated[int, Unsupported(_EXPERT_PARALLEL, unless=(1,), plans=True)] = key(
        1, "Low-level name of trainer.expert_parallel_size.", unit="ranks", ge=1
    )
    attention_backend: Annotated[
        Literal["torch", "flash_2", "flash_3", "flash_4"],
        Unsupported("flash attention kernels are not built yet", values=("flash_2", "flash_3", "flash_4")),
    ] = key("torch", "Attention of the learner.")
    activation_checkpointing: bool = key(True, "Low-level name of trainer.activation_recompute.")
    compile_model: Annotated[bool | None, Unsupported(_COMPILE, unless=(False,))] = key(None, "Compile the model.")
    compile_optimizer: Annotated[bool | None, Unsupported(_COMPILE, unless=(False,))] = key(
        None, "Compile the optimizer."
    )
    use_reduce_scatter: Annotated[bool | None, Unsupported(_ONE_RANK, unless=(False,))] = key(
        None, "Reduce gradients by reduce-scatter."
    )
    max_sequence_length: int = key(8192, "Low-level name of inference.max_context_length.", unit="tokens", ge=2)
    sequence_packing: bool = key(False, "Low-level name of trainer.sequence_packing.")
    packing_max_tokens: int | None = key(
        None, "Low-level name of trainer.packing_max_tokens.", unit="tokens", derived="max_sequence_length", ge=1
    )
    expert_balanced_packing: Annotated[bool, Unsupported(_EXPERTS, unless=(False,))] = key(
        False, "Low-level name of trainer.expert_balanced_packing."
    )
    expert_balance_layer_stride: Annotated[int, Unsupported(_EXPERTS)] = key(1, "Layers between those balanced.")
    expert_balance_search_proposals: Annotated[int, Unsupported(_EXPERTS)] = key(1024, "Packings tried.")
    expert_balance_search_seconds: Annotated[float, Unsupported(_EXPERTS)] = key(
        0.25, "Time to search.", unit="seconds"
    )
    router_aux_loss_weight: float | None = key(
        None,
        "Weight of the balancing loss of a mixture-of-experts router; a dense model has none.",
        derived="0.01 low-level, 0 with workflow sections",
        ge=0,
    )
    router_z_loss_weight: float | None = key(
        None,
        "Weight of the z loss of a mixture-of-experts router; a dense model has none.",
        derived="1e-5 low-level, 0 with workflow sections",
        ge=0,
    )
    router_aux_loss_grouping: Annotated[Literal["pack", "sequence"] | None, Unsupported(_EXPERTS)] = key(
        None, "Over what the balancing loss is computed."
    )
    router_aux_loss_reduction: Annotated[Literal["token", "response"] | None, Unsupported(_EXPERTS)] = key(
        None, "How the balancing loss is averaged."
    )
    router_z_loss_reduction: Annotated[Literal["token", "response"] | None, Unsupported(_EXPERTS)] = key(
        None, "How the z loss is averaged."
    )
    router_aux_count_source: Annotated[Literal["dispatch", "current"] | None, Unsupported(_EXPERTS)] = key(
        None, "Whose expert counts the balancing loss uses."
    )
    checkpoint_keep_last: int = key(0, "Newest checkpoints kept; 0 keeps all.", unit="checkpoints", ge=0)
    checkpoint_keep_every: int = key(
        0, "Also keep checkpoints at multiples of this; 0 is none.", unit="collections", ge=0
    )
    checkpoint_overlap: bool = key(
        True, "Training goes on while a checkpoint is written, from a copy of the learner's state."
    )
    checkpoint_thread_count: Annotated[int | None, Unsupported(_CHECKPOINT)] = key(None, "Writing threads.")
    checkpoint_process_count: Annotated[int | None, Unsupported(_CHECKPOINT)] = key(None, "Writing processes.")
    checkpoint_compact_storage: Annotated[bool | None, Unsupported(_CHECKPOINT, unless=(False,))] = key(
        None, "Compact storage."
    )
    checkpoint_dedup_save_to_lowest_rank: Annotated[bool | None, Unsupported(_CHECKPOINT, unless=(False,))] = key(
        None, "Replicated tensors are written by the lowest rank."
    )
    checkpoint_constant_memory_planning: Annotated[bool | None, Unsupported(_CHECKPOINT, unless=(False,))] = key(
        None, "Plan in constant memory."
    )
    checkpoint_profile: Annotated[Any, Unsupported(_CHECKPOINT, unless=(False,))] = key(None, "Profile saving.")
    row_specialization: Annotated[Literal["static", "dynamic"] | None, Unsupported(_COMPILE)] = key(
        None, "Low-level name of runtime.row_specialization."
    )
    watchdog_seconds: float = key(
        600.0, "Without progress for this long, the run says who waits on whom and stops.", unit="seconds", gt=0
    )
    grace_seconds: float = key(
        120.0,
        "From a signal to the end of the process: the step is finished and a checkpoint committed in it.",
        unit="seconds",
        gt=0,
    )
    engine_failure: Literal["replace", "drop", "fail"] = key(
        "fail",
        "When an engine fails: replace starts another in its place, drop goes on with the others, fail ends the run. "
        "Requests that it held are generated again, up to training.max_group_attempts.",
    )
