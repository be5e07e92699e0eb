"""The local engine's own copy of the policy: loading it from a folder, and replacing its weights in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from grpo.engine.local.kv_cache import ATTENTION
from grpo.errors import RunFailed, UserError
from grpo.weights.protocol import WeightSource

# Their frequencies change with the longest position in the batch, so a cached key would not fit a later query.
_UNSUPPORTED_ROPE = ("dynamic", "longrope")


def load_model(model_dir: Path, *, dtype: torch.dtype, max_context_length: int) -> Any:
    """Return the causal LM in a safetensors Hugging Face folder, in ``dtype``, ready for the engine's cache.

    Raises:
        UserError: if the folder holds no complete model, or one that the engine would compute wrongly.
    """
    where = str(model_dir)
    if not (model_dir / "config.json").is_file():
        raise UserError("no config.json", where=where, fix="Give a Hugging Face model folder.")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model_dir,
            dtype=dtype,
            attn_implementation=ATTENTION,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot load the model: {' '.join(str(error).split())}", where=where) from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(f"{len(missing)} parameters have no weights, such as {missing[0]}", where=where)
    check_supported(model.config, where=where, max_context_length=max_context_length)
    return model.eval().requires_grad_(False)


def check_supported(config: Any, *, where: str, max_context_length: int) -> None:
    """Raise a UserError if the engine's attention would be wrong for a model of this ``config``."""
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if others or (window is not None and window < max_context_length):
        kind = ", ".join(sorted(others)) or f"a sliding window of {window} tokens"
        raise UserError(f"the local engine does not compute {kind}", where=where, fix="Use the vllm or sglang backend.")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in _UNSUPPORTED_ROPE:
        raise UserError(f"the local engine does not compute {rope} rotary embeddings", where=where)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < max_context_length:
        raise UserError(
            f"a context of {max_context_length} tokens, but the model has {positions} positions",
            where=where,
            fix=f"Set the context length to at most {positions}.",
        )


@torch.no_grad()
def copy_weights(model: torch.nn.Module, weights: WeightSource, *, bucket_bytes: int) -> None:
    """Copy every parameter of ``weights`` into ``model``, in place.

    Tied parameters (one tensor with several names) may come under any one of their names, or under several with equal
    values.

    Raises:
        RunFailed: if a parameter is unknown, comes twice, has another shape, or does not come. The model may then hold
            weights of two versions.
    """
    targets = dict(model.named_parameters(remove_duplicate=False))
    seen: set[str] = set()
    loaded: set[int] = set()
    for bucket in weights.buckets(bucket_bytes):
        for name, tensor in bucket:
            target = targets.get(name)
            where = f"weights of version {weights.version}"
            if target is None:
                raise RunFailed(f"{name} is not a parameter of the model", where=where)
            if name in seen:
                raise RunFailed(f"{name} came twice", where=where)
            if target.shape != tensor.shape:
                raise RunFailed(f"{name} has shape {tuple(tensor.shape)}, not {tuple(target.shape)}", where=where)
            if id(target) not in loaded:
                target.copy_(tensor)
            elif not torch.equal(target, tensor.to(target)):
                raise RunFailed(f"{name} is tied to a parameter that came with other values", where=where)
            seen.add(name)
            loaded.add(id(target))
    missing = sorted(name for name, target in targets.items() if id(target) not in loaded)
    if missing:
        raise RunFailed(
            f"{len(missing)} of {len(targets)} parameters did not come, such as {missing[0]}",
            where=f"weights of version {weights.version}",
        )
