"""Model shapes from ``config.json`` alone, so that a laptop without the weights can plan.

The parameters are listed one by one, with the names, shapes and order of the ``named_parameters()`` of the real
transformers model: everything else (counts, bytes, buckets of a publication) is a sum over that list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

_PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_FOUR_NORMS = (*_PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True)
class _Family:
    """What distinguishes a model family.

    Attributes:
        norms: of a layer. final_norm: whether norms have weights at all.
        bias: ``none``; ``qkv`` where the key ``bias_key`` says so (or always, if that is empty); ``qkvo``, with the
            output projection too.
        query_norm: normalises queries and keys: over a ``head``, or over ``all`` heads at once.
        wide_norm: the normalised value is multiplied with the weight in float32, whatever the model's type.
        mlp_bias: whether the key ``mlp_bias`` counts.
        fused: query, key and value, and gate and up, are one matrix each.
        latent: attention through low-rank latents (MLA, DeepSeek-V2, arXiv 2405.04434).
        experts: parts of a mixture-of-experts layer, in order; empty for a dense family.
        defaults: of keys that config.json leaves out, as transformers has them.
    """

    norms: tuple[str, ...] = _PRE_NORMS
    final_norm: bool = True
    bias: Literal["none", "qkv", "qkvo"] = "qkvo"
    bias_key: str = "attention_bias"
    query_norm: Literal["", "head", "all"] = ""
    wide_norm: bool = False
    mlp_bias: bool = False
    fused: bool = False
    latent: bool = False
    experts: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


_LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_TIED = {"tie_word_embeddings": True}

FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(mlp_bias=True),
    "mistral": _Family(bias="none", defaults={"num_key_value_heads": 8}),
    "granite": _Family(mlp_bias=True),
    "smollm3": _Family(mlp_bias=True, defaults={"num_key_value_heads": 4, **_TIED}),
    "phi3": _Family(bias="none", fused=True),
    "qwen2": _Family(bias="qkv", bias_key="", defaults={"num_key_value_heads": 32}),
    "qwen3": _Family(query_norm="head", defaults={"num_key_value_heads": 32, "head_dim": 128}),
    "olmo": _Family(norms=(), final_norm=False),
    "olmo2": _Family(norms=_POST_NORMS, query_norm="all", wide_norm=True),
    "olmo3": _Family(norms=_POST_NORMS, query_norm="all", wide_norm=True),
    "gemma": _Family(wide_norm=True, defaults={"num_key_value_heads": 16, "head_dim": 256, **_TIED}),
    "gemma2": _Family(norms=_FOUR_NORMS, wide_norm=True, defaults={"num_key_value_heads": 4, "head_dim": 256, **_TIED}),
    "gemma3_text": _Family(
        norms=_FOUR_NORMS,
        query_norm="head",
        wide_norm=True,
        defaults={"num_key_value_heads": 4, "head_dim": 256, **_TIED},
    ),
    "mixtral": _Family(
        bias="none",
        experts=("gate", "experts"),
        defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "olmoe": _Family(
        query_norm="all",
        wide_norm=True,
        experts=("gate", "experts"),
        defaults={"num_experts": 64, "num_experts_per_tok": 8},
    ),
    "qwen2_moe": _Family(
        bias="qkv",
        bias_key="qkv_bias",
        experts=("gate", "experts", "shared_expert"),
        defaults={
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "qwen3_moe": _Family(
        query_norm="head",
        experts=("experts", "gate"),
        defaults={
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "deepseek_v2": _Family(
        latent=True,
        mlp_bias=True,
        experts=("experts", "gate", "shared_experts"),
        defaults={
            **_LATENT,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
            "first_k_dense_replace": 0,
        },
    ),
    "deepseek_v3": _Family(
        latent=True,
        experts=("experts", "gate", "shared_experts"),
        defaults={
            **_LATENT,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
        },
    ),
}


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model; ``routed`` is whether it holds the experts that a token is routed to."""

    name: str
    shape: tuple[int, ...]
    routed: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelShape:
    """A decoder.

    Attributes:
        kind: ``model_type``.
        heads, kv_heads: query heads, and key-value heads (those of the cache).
        head_dim: of queries and keys. value_dim: of values.
        inner: MLP size of a dense layer.
        experts, experts_per_token, expert_inner: of a mixture-of-experts layer; 0 for a dense model.
        shared_inner: MLP size of the experts that every token passes.
        sparse_layers: layers with experts.
        latent_dim: cached elements of a token in one layer with latent attention; 0 otherwise.
        parameters: of the model, in its order; tied weights once.
    """

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    inner: int
    vocabulary: int
    tied: bool
    norms_per_layer: int
    query_norm: bool
    wide_norm: bool
    experts: int
    experts_per_token: int
    expert_inner: int
    shared_inner: int
    sparse_layers: int
    latent_dim: int
    parameters: tuple[Parameter, ...]

    @cached_property
    def parameter_count(self) -> int:
        """All parameters."""
        return sum(parameter.size for parameter in self.parameters)

    @cached_property
    def active_matrix_parameters(self) -> int:
        """Parameters that one token is multiplied with: of the experts only those it is routed to, and no lookup."""
        total = 0
        for parameter in self.parameters:
            if len(parameter.shape) < 2 or (parameter.name == "model.embed_tokens.weight" and not self.tied):
                continue
            size = parameter.size
            total += size * self.experts_per_token // self.experts if parameter.routed else size
        return total

    @property
    def cache_elements(self) -> int:
        """Elements that one token leaves in the KV cache, over all layers."""
        each = self.latent_dim or self.kv_heads * (self.head_dim + self.value_dim)
        return self.layers * each


def model_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape that a ``config.json`` describes; None for a family that is not known, or a broken file."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        return None
    try:
        return _read(kind, FAMILIES[kind], config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def parameter_count(config: Mapping[str, Any]) -> int | None:
    """Return the number of parameters, tied weights counted once; None for a kind that is not known."""
    shape = model_shape(config)
    return None if shape is None else shape.parameter_count


class _Keys:
    """Reads ``config.json`` with the defaults of its family."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._config, self._defaults = config, defaults

    def get(self, *names: str) -> Any:
        """Return the first of ``names`` that has a value, else the default; None if there is none."""
        for source in (self._config, self._defaults):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return None

    def number(self, *names: str) -> int:
        """Return a size. Raises KeyError if it is missing, ValueError if it is none."""
        value = self.get(*names)
        if value is None:
            raise KeyError(names[0])
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(names[0])
        return value

    def number_or(self, name: str, default: int) -> int:
        """Return a size, or ``default`` if it is missing or 0."""
        return (self.number(name) if self.get(name) is not None else 0) or default

    @property
    def query_rank(self) -> int:
        """Latent size of queries; 0 if they have none. null says so, which is not the same as leaving the key out."""
        return 0 if self._config.get("q_lora_rank", 0) is None else self.number("q_lora_rank")


def _read(kind: str, family: _Family, config: Mapping[str, Any]) -> ModelShape:
    keys = _Keys(config, family.defaults)
    hidden, layers = keys.number("hidden_size"), keys.number("num_hidden_layers")
    heads = keys.number("num_attention_heads")
    head_dim = value_dim = keys.number_or("head_dim", hidden // heads)
    if family.latent:
        head_dim = keys.number("qk_nope_head_dim") + keys.number("qk_rope_head_dim")
        value_dim = keys.number("v_head_dim")
    inner, vocabulary = keys.number("intermediate_size"), keys.number("vocab_size")
    if min(hidden, layers, heads, head_dim, value_dim, inner, vocabulary) < 1 or layers > 10_000:
        raise ValueError("a model without size")
    experts = keys.number("num_experts", "num_local_experts", "n_routed_experts") if family.experts else 0
    sparse = [_is_sparse(keys, index) for index in range(layers)] if experts else [False] * layers
    shape = ModelShape(
        kind=kind,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.number_or("num_key_value_heads", heads),
        head_dim=head_dim,
        value_dim=value_dim,
        inner=inner,
        vocabulary=vocabulary,
        tied=bool(keys.get("tie_word_embeddings")),
        norms_per_layer=len(family.norms) or len(_PRE_NORMS),
        query_norm=bool(family.query_norm),
        wide_norm=family.wide_norm,
        experts=experts,
        experts_per_token=keys.number("num_experts_per_tok") if experts else 0,
        expert_inner=keys.number_or("moe_intermediate_size", inner) if experts else 0,
        shared_inner=_shared_inner(keys, family),
        sparse_layers=sum(sparse),
        latent_dim=keys.number("kv_lora_rank") + keys.number("qk_rope_head_dim") if family.latent else 0,
        parameters=(),
    )
    return ModelShape(**{**vars(shape), "parameters": tuple(_parameters(shape, family, keys, sparse))})


def _is_sparse(keys: _Keys, layer: int) -> bool:
    step, dense = keys.number_or("decoder_sparse_step", 1), keys.get("mlp_only_layers") or []
    return layer >= keys.number_or("first_k_dense_replace", 0) and layer not in dense and (layer + 1) % step == 0


def _shared_inner(keys: _Keys, family: _Family) -> int:
    if "shared_expert" in family.experts:
        return keys.number("shared_expert_intermediate_size")
    if "shared_experts" in family.experts:
        return keys.number("n_shared_experts") * keys.number("moe_intermediate_size")
    return 0


def _parameters(shape: ModelShape, family: _Family, keys: _Keys, sparse: list[bool]) -> Iterator[Parameter]:
    yield Parameter("model.embed_tokens.weight", (shape.vocabulary, shape.hidden))
    attention = list((_latent_attention if family.latent else _attention)(shape, family, keys))
    mlp_bias = family.mlp_bias and bool(keys.get("mlp_bias"))
    dense = list(_dense(shape.hidden, shape.inner, mlp_bias, family.fused))
    mixture = list(_experts(shape, family, mlp_bias)) if any(sparse) else []
    norms = [Parameter(f"{norm}.weight", (shape.hidden,)) for norm in family.norms]
    for layer in range(shape.layers):
        for part, members in (("self_attn.", attention), ("mlp.", mixture if sparse[layer] else dense), ("", norms)):
            for member in members:
                yield Parameter(f"model.layers.{layer}.{part}{member.name}", member.shape, member.routed)
    if family.final_norm:
        yield Parameter("model.norm.weight", (shape.hidden,))
    if not shape.tied:
        yield Parameter("lm_head.weight", (shape.vocabulary, shape.hidden))


def _linear(name: str, inputs: int, outputs: int, bias: bool) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (outputs, inputs))
    if bias:
        yield Parameter(f"{name}.bias", (outputs,))


def _attention(shape: ModelShape, family: _Family, keys: _Keys) -> Iterator[Parameter]:
    hidden, query, cached = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    bias = family.bias != "none" and (not family.bias_key or bool(keys.get(family.bias_key)))
    if family.fused:
        yield from _linear("o_proj", query, hidden, False)
        yield from _linear("qkv_proj", hidden, query + 2 * cached, False)
        return
    yield from _linear("q_proj", hidden, query, bias)
    yield from _linear("k_proj", hidden, cached, bias)
    yield from _linear("v_proj", hidden, cached, bias)
    yield from _linear("o_proj", query, hidden, bias and family.bias == "qkvo")
    if family.query_norm:
        sizes = (shape.head_dim,) * 2 if family.query_norm == "head" else (query, cached)
        yield Parameter("q_norm.weight", sizes[:1])
        yield Parameter("k_norm.weight", sizes[1:])


def _latent_attention(shape: ModelShape, family: _Family, keys: _Keys) -> Iterator[Parameter]:
    hidden, query, bias = shape.hidden, shape.heads * shape.head_dim, bool(keys.get(family.bias_key))
    latent, rope, rank = keys.number("kv_lora_rank"), keys.number("qk_rope_head_dim"), keys.query_rank
    if rank:
        yield from _linear("q_a_proj", hidden, rank, bias)
        yield Parameter("q_a_layernorm.weight", (rank,))
        yield from _linear("q_b_proj", rank, query, False)
    else:
        yield from _linear("q_proj", hidden, query, False)
    yield from _linear("kv_a_proj_with_mqa", hidden, latent + rope, bias)
    yield Parameter("kv_a_layernorm.weight", (latent,))
    yield from _linear("kv_b_proj", latent, shape.heads * (shape.head_dim - rope + shape.value_dim), False)
    yield from _linear("o_proj", shape.heads * shape.value_dim, hidden, bias)


def _dense(hidden: int, inner: int, bias: bool, fused: bool = False, prefix: str = "") -> Iterator[Parameter]:
    if fused:
        yield from _linear(f"{prefix}gate_up_proj", hidden, 2 * inner, bias)
    else:
        yield from _linear(f"{prefix}gate_proj", hidden, inner, bias)
        yield from _linear(f"{prefix}up_proj", hidden, inner, bias)
    yield from _linear(f"{prefix}down_proj", inner, hidden, bias)


def _experts(shape: ModelShape, family: _Family, mlp_bias: bool) -> Iterator[Parameter]:
    hidden, count, inner = shape.hidden, shape.experts, shape.expert_inner
    for part in family.experts:
        if part == "gate":
            yield Parameter("gate.weight", (count, hidden))
        elif part == "experts":
            yield Parameter("experts.gate_up_proj", (count, 2 * inner, hidden), routed=True)
            yield Parameter("experts.down_proj", (count, hidden, inner), routed=True)
        else:
            yield from _dense(hidden, shape.shared_inner, mlp_bias, prefix=f"{part}.")
            if part == "shared_expert":
                yield Parameter("shared_expert_gate.weight", (1, hidden))
