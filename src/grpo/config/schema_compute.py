"""Who computes: [trainer], [inference]."""

from typing import Annotated, ClassVar, Literal

from grpo.config.schema_base import Section, Unsupported, key

_ONE_RANK = "several learner ranks are not built yet; one process trains"
_ONE_ENGINE = "several engines and tensor parallelism are not built yet; one engine generates"
_EXPERTS = "expert parallelism and expert-aware packing are not built yet"
_SGLANG = "the sglang engine is not built yet, and the local engine has no such setting"
_ROUTER = "a router in front of several engines is not built yet"
_FLASH = "flash attention kernels are not built yet; the learner uses torch's own attention"


class Trainer(Section):
    """The learner: how the optimizer step is computed."""

    backend: Annotated[
        Literal["fsdp", "deepspeed", "olmo_core"],
        Unsupported("only the fsdp learner is built yet", values=("deepspeed", "olmo_core")),
    ] = key("fsdp", "Learner implementation.")
    gpus: Annotated[int | None, Unsupported(_ONE_RANK, unless=(0, 1))] = key(
        None,
        "GPUs of the learner per node; 0 is a CPU.",
        unit="GPUs",
        derived="one process, on a GPU if torch sees one",
        ge=0,
    )
    trainer_num_nodes: Annotated[int, Unsupported(_ONE_RANK, unless=(1,))] = key(
        1, "Nodes of the learner.", unit="nodes", ge=1
    )
    expert_parallel_size: Annotated[int, Unsupported(_EXPERTS, unless=(1,))] = key(
        1, "Ranks that share the experts of a mixture-of-experts layer.", unit="ranks", ge=1
    )
    micro_batch_size: int = key(
        1, "Sequences, or packs when packing, of one forward and backward pass.", unit="sequences", ge=1
    )
    dynamic_batching: Annotated[
        bool, Unsupported("dynamic batching is not built yet; use sequence_packing", unless=(False,))
    ] = key(False, "Choose micro-batches by token count.")
    sequence_packing: bool = key(
        False, "Put several sequences into one row, with attention kept inside each; no padding is computed."
    )
    packing_max_tokens: int | None = key(None, "Tokens of a pack.", unit="tokens", derived="max_context_length", ge=1)
    activation_recompute: bool = key(
        True, "Recompute activations in the backward pass: less memory, about a third more computation."
    )
    recompute_mode: Annotated[
        Literal["full", "off"] | None, Unsupported("use activation_recompute = true or false")
    ] = key(None, "What is recomputed.")
    trainer_flash_attention_version: Annotated[Literal[2, 3, 4] | None, Unsupported(_FLASH)] = key(
        None, "Version of the flash attention kernels."
    )
    expert_balanced_packing: Annotated[bool, Unsupported(_EXPERTS, unless=(False,))] = key(
        False, "Choose packs so that experts are evenly loaded."
    )
    trainer_diagnostics: Annotated[
        bool, Unsupported("trainer diagnostics are not built yet; metrics.jsonl has every step", unless=(False,))
    ] = key(False, "Extra measurements of the learner.")
    dtype: Literal["float32", "bfloat16"] = key("float32", "Type of the learner's computation.")


class Inference(Section):
    """Rollout: the engines, the batch geometry, and the length limits."""

    prefixes: ClassVar[dict[str, Unsupported]] = {
        "sglang_": Unsupported(_SGLANG),
        "vllm_": Unsupported("the vllm engine is not built yet"),
    }

    backend: Annotated[
        Literal["local", "vllm", "sglang", "simulated"],
        Unsupported(
            "only the local engine is built yet; set inference.backend to local",
            values=("vllm", "sglang", "simulated"),
        ),
    ] = key("local", "Engine implementation: local is continuous batching in PyTorch.")
    placement_mode: Literal["colocated", "disaggregated"] | None = key(
        None,
        "Whether engines and learner take turns (colocated) or may work at the same time, each with weights of its own "
        "(disaggregated). Asynchronous runs and refresh need disaggregated.",
        derived="disaggregated for the local engine, which always holds weights of its own; else colocated",
    )
    gpus: Annotated[int | None, Unsupported(_ONE_ENGINE, unless=(0, 1))] = key(
        None,
        "GPUs of all engines together; 0 is a CPU.",
        unit="GPUs",
        derived="one engine, on a GPU if torch sees one",
        ge=0,
    )
    rollout_tensor_parallel_size: Annotated[int, Unsupported(_ONE_ENGINE, unless=(1,))] = key(
        1, "GPUs of one engine; the number of engines is gpus / rollout_tensor_parallel_size.", unit="GPUs", ge=1
    )
    rollout_gpus_per_node: Annotated[int | None, Unsupported(_ONE_ENGINE, unless=(1,))] = key(
        None, "GPUs of the engines per node.", unit="GPUs", ge=1
    )
    rollout_expert_parallel_size: Annotated[int, Unsupported(_EXPERTS, unless=(1,))] = key(
        1, "GPUs that share the experts inside an engine.", unit="GPUs", ge=1
    )
    rollout_batch_size: int = key(8, "Groups (prompts) of one collection.", unit="groups", ge=1)
    samples_per_prompt: int = key(8, "Responses of one group.", unit="responses", ge=1)
    global_batch_size: int | None = key(
        None,
        "Responses of one optimizer step: whole groups, and a divisor of the collection.",
        unit="responses",
        derived="rollout_batch_size x samples_per_prompt",
        ge=1,
    )
    max_response_length: int | None = key(
        None,
        "Limit of a response; a response that reaches it is truncated.",
        unit="tokens",
        derived="half of max_context_length, or what rollout_max_prompt_len leaves of it",
        ge=1,
    )
    max_context_length: int = key(
        6144, "Limit of prompt and response together, for trainer, engine and rollout.", unit="tokens", ge=2
    )
    eval_max_response_length: int | None = key(
        None, "Limit of a response in evaluation.", unit="tokens", derived="max_response_length", ge=1
    )
    top_p: float = key(1.0, "Sample from the smallest set of tokens with this probability; 1 is off.", gt=0, le=1)
    top_k: int = key(0, "Sample from this many most probable tokens; 0 is off.", unit="tokens", ge=0)
    local_running_requests: int = key(
        64, "Responses that the local engine decodes at the same time.", unit="responses", ge=1
    )
    dtype: Literal["float32", "bfloat16"] = key("float32", "Type of the engine's computation.")
    radix_cache: Annotated[bool | None, Unsupported(_SGLANG)] = key(None, "Share the KV cache of common prefixes.")
    disable_radix_cache: Annotated[bool | None, Unsupported(_SGLANG)] = key(None, "The opposite of radix_cache.")
    mamba_radix_cache_strategy: Annotated[str | None, Unsupported(_SGLANG)] = key(
        None, "Prefix cache of state-space layers."
    )
    enable_mixed_chunk: Annotated[bool | None, Unsupported(_SGLANG)] = key(None, "Mix prefill chunks with decoding.")
    router_policy: Annotated[str | None, Unsupported(_ROUTER)] = key(None, "How requests are spread over engines.")
    router_cache_threshold: Annotated[float | None, Unsupported(_ROUTER)] = key(
        None, "Prefix match above which a request follows the cache."
    )
    router_balance_abs_threshold: Annotated[int | None, Unsupported(_ROUTER)] = key(
        None, "Absolute load difference above which the router balances.", unit="requests"
    )
    router_balance_rel_threshold: Annotated[float | None, Unsupported(_ROUTER)] = key(
        None, "Relative load difference above which the router balances."
    )
    check_weight_update_equal: Annotated[
        bool, Unsupported("comparing weights after a publication is not built yet", unless=(False,))
    ] = key(False, "Compare the weights of engines and learner after each publication.")
    update_weight_buffer_size: int = key(
        512 * 1024**2, "Size of one bucket of weights in a publication.", unit="bytes", ge=1
    )
