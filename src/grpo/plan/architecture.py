"""Whether the chosen engine and learner compute the model that ``config.json`` describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.config import derive
from grpo.config.engine_args import ENGINES, engine_list
from grpo.config.findings import Advice, NotRunnable
from grpo.config.names import nearest
from grpo.config.settings import Settings
from grpo.errors import UserError

_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_LOGIT_SCALES = {"final_logit_softcapping": None, "logit_scale": 1, "logits_scaling": 1}
_LOCAL_ROPE = ("dynamic", "longrope")


def architecture_problems(settings: Settings, config: Mapping[str, Any]) -> Iterator[UserError]:
    """Yield why the engine or the learner cannot compute this model."""
    where = settings.where("model.source")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    backend = derive.engine_backend(settings).value
    if name is not None and not name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
        yield UserError(f"{name} does not generate text", where=where, fix="Name a causal language model.")
    elif name is not None and backend in ENGINES:
        yield from _served(backend, name, where)
    scale = next((key for key, plain in _LOGIT_SCALES.items() if config.get(key, plain) not in (plain, None)), None)
    if scale is not None:
        what = f"the model scales or caps its logits ({scale} = {config[scale]}), which the learner does not do"
        yield UserError(what, where=where, fix="Name another model.")
    if any(isinstance(config.get(key), int) and config[key] > 0 for key in _EXPERT_KEYS):
        yield NotRunnable("training of mixture-of-experts models is not built yet", where=where)
    if backend == "local":
        yield from _local(settings, config, where)
    yield from _positions(settings, config)


def _served(backend: str, name: str, where: str) -> Iterator[UserError]:
    listing = engine_list(backend)
    if name in listing["architectures"]:
        return
    near = nearest(name, listing["architectures"])[0]
    hint = f" Near: {', '.join(near)}." if near else ""
    # The engines can also run models of transformers that they do not know by name.
    yield Advice(
        f"{name} is not among the {len(listing['architectures'])} architectures of {backend} {listing['version']}",
        where=where,
        fix=f"See whether {backend} can serve it.{hint}",
    )


def _local(settings: Settings, config: Mapping[str, Any], where: str) -> Iterator[UserError]:
    """The local engine attends to all tokens, at positions whose frequencies do not change."""
    context, fix = settings.value("inference.max_context_length"), 'Set inference.backend = "vllm" or "sglang".'
    layers = config.get("layer_types")
    others = sorted({str(kind) for kind in layers} - {"full_attention"}) if isinstance(layers, list) else []
    window = config.get("sliding_window")
    # The Qwen families carry a window that a switch, off by default, turns on.
    switched_on = config.get("use_sliding_window", not str(config.get("model_type", "")).startswith("qwen"))
    if others:
        yield UserError(f"the local engine does not compute {', '.join(others)}", where=where, fix=fix)
    elif switched_on and isinstance(window, int) and window < context:
        yield UserError(f"the local engine does not compute a sliding window of {window} tokens", where=where, fix=fix)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    kind = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, dict) else None
    if kind in _LOCAL_ROPE:
        yield UserError(f"the local engine does not compute {kind} rotary embeddings", where=where, fix=fix)


def _positions(settings: Settings, config: Mapping[str, Any]) -> Iterator[UserError]:
    limit, context = config.get("max_position_embeddings"), settings.value("inference.max_context_length")
    if isinstance(limit, int) and limit < context:
        key = "inference.max_context_length"
        default = "" if settings.given(key) else " (the default)"
        yield UserError(
            f"{context} tokens{default} exceed the {limit} positions of the model",
            where=settings.where(key),
            fix=f"Set it to at most {limit}.",
        )
