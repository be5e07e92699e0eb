"""Who computes: [trainer], [inference]."""

from typing import Annotated, ClassVar, Literal

from grpo.config.engine_args import ENGINES
from grpo.config.schema_base import Section, Unsupported, key

_RANKS = "several learner ranks are not built yet; one process trains"
_TENSOR = "tensor parallelism is not built yet; an engine has one GPU"
_EXPERT_PARALLEL = "expert parallelism is not built yet"
_EXPERT_PACKING = "expert-aware packing is not built yet"
_ENGINES = "the vllm and sglang engines are not built yet; local is"
_ROUTER = "requests are spread over engines by free places, and a router in front of them is not built"
_FLASH = "flash attention kernels are not built yet; the learner uses torch's own attention"


class Trainer(Section):
    """The learner: how the optimizer step is computed."""

    backend: Annotated[
        Literal["fsdp", "deepspeed", "olmo_core"],
        Unsupported("the olmo_core learner is not built yet; use fsdp", values=("olmo_core",)),
        Unsupported("the deepspeed learner is not built yet; fsdp is", values=("deepspeed",), plans=True),
    ] = key("fsdp", "Learner implementation.")
    gpus: Annotated[int | None, Unsupported(_RANKS, unless=(0, 1), plans=True)] = key(
        None,
        "GPUs of the learner per node; 0 is a CPU.",
        unit="GPUs",
        derived="one process, on a GPU if torch sees one",
        ge=0,
    )
    trainer_num_nodes: Annotated[int, Unsupported(_RANKS, unless=(1,), plans=True)] = key(
        1, "Nodes of the learner.", unit="nodes", ge=1
    )
    expert_parallel_size: Annotated[int, Unsupported(_EXPERT_PARALLEL, unless=(1,), plans=True)] = key(
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
    recompute_mode: Literal["full", "off"] | None = key(
        None, "Another name of activation_recompute: full is true, off is false."
    )
    trainer_flash_attention_version: Annotated[Literal[2, 3, 4] | None, Unsupported(_FLASH)] = key(
        None, "Version of the flash attention kernels."
    )
    expert_balanced_packing: Annotated[bool, Unsupported(_EXPERT_PACKING, unless=(False,))] = key(
        False, "Choose packs so that experts are evenly loaded."
    )
    trainer_diagnostics: Annotated[
        bool, Unsupported("trainer diagnostics are not built yet; metrics.jsonl has every step", unless=(False,))
    ] = key(False, "Extra measurements of the learner.")
    dtype: Literal["float32", "bfloat16"] = key("float32", "Type of the learner's computation.")


class Inference(Section):
    """Rollout: the engines, the batch geometry, and the length limits."""

    engines: ClassVar[tuple[str, ...]] = ENGINES

    backend: Annotated[
        Literal["local", "vllm", "sglang", "simulated"] | None,
        Unsupported(_ENGINES, values=("vllm", "sglang"), plans=True),
    ] = key(
        None,
        "Engine implementation: local is continuous batching in PyTorch; vllm and sglang are those servers, and take "
        "their own arguments as vllm_NAME and sglang_NAME; simulated rehearses the run on a made-up fleet, see "
        "[simulation].",
        derived="vllm or sglang where a key of that engine is given, else local",
    )
    placement_mode: Literal["colocated", "disaggregated"] | None = key(
        None,
        "Whether engines and learner take turns (colocated) or may work at the same time, each with weights of its own "
        "(disaggregated). Asynchronous runs and refresh need disaggregated.",
        derived="colocated for vllm and sglang; else disaggregated: the local engine holds weights of its own",
    )
    gpus: int | None = key(
        None,
        "GPUs of all engines together; 0 is a CPU.",
        unit="GPUs",
        derived="those of the learner if colocated; else one engine, on a GPU if torch sees one",
        ge=0,
    )
    rollout_tensor_parallel_size: Annotated[int, Unsupported(_TENSOR, unless=(1,), plans=True)] = key(
        1, "GPUs of one engine; the number of engines is gpus / rollout_tensor_parallel_size.", unit="GPUs", ge=1
    )
    rollout_gpus_per_node: int | None = key(
        None, "GPUs of the engines on each of their nodes.", unit="GPUs", derived="as the placement needs", ge=1
    )
    rollout_expert_parallel_size: Annotated[int, Unsupported(_EXPERT_PARALLEL, unless=(1,), plans=True)] = key(
        1, "GPUs that share the experts inside an engine; a divisor of its GPUs.", unit="GPUs", ge=1
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
    local_engines: int = key(
        1, "Local engines in this process; several are of use with engine_drain.", unit="engines", ge=1, le=64
    )
    dtype: Literal["float32", "bfloat16"] = key("float32", "Type of the engine's computation.")
    radix_cache: bool | None = key(None, "Share the KV cache of common prefixes; sglang only.")
    disable_radix_cache: bool | None = key(None, "The opposite of radix_cache.")
    mamba_radix_cache_strategy: str | None = key(
        None, "Prefix cache of state-space layers: sglang_mamba_radix_cache_strategy."
    )
    enable_mixed_chunk: bool | None = key(None, "Mix prefill chunks with decoding: sglang_enable_mixed_chunk.")
    sglang_server_concurrency: int | None = key(
        None, "Requests that a run sends to one sglang engine at the same time.", unit="requests", ge=1
    )
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
