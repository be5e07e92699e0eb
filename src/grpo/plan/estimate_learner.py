"""Memory of one learner rank, as ``learner/rank.py`` and ``learner/model.py`` really hold it.

Symbols: ``s`` bytes of the compute type, ``T`` tokens of a micro-batch (padding too), ``H`` hidden size, ``N`` query
heads and ``K`` key-value heads of size ``D``, ``I`` MLP size, ``L`` layers, ``V`` vocabulary.

Activations follow Korthikanti et al. 2022 (arXiv 2205.05198), section 4, redone for what these models save: RMSNorm
computed in float32, grouped-query attention by a fused kernel (no T x T scores are kept), a gated MLP, no dropout. Per
token, one layer keeps for its backward pass

- each norm over ``H``: ``(4 + 2 s) H``: its input in float32, the normalised value (of Olmo and Gemma in float32 too:
  4 instead of one ``s``), and its output, which is the input of the linear maps (or, where the norm comes after them,
  the input that they have);
- query and key norms, where there are any: ``(4 + s)(N + K) D``, by the same rule;
- attention: ``s (2 N D + 2 K D) + 4 N``: query, key, value, output, and the log of the softmax's sum;
- a dense MLP: ``4 s I``: gate, its activation, up, and their product; or, for ``k`` experts of size ``E`` each and
  shared ones of size ``F``: ``s k (2 H + 4 E) + 4 s F``.

With recompute a layer's activations come back one layer at a time, while gradients pass through it: ``s (H + I)`` more
a token, or ``s k (H + 2 E)``.

With packing the attention mask is no longer causal alone: torch keeps it as ``s`` bytes for each pair of positions of a
row, in every layer, and repeats keys and values for all ``N`` heads.
"""

from __future__ import annotations

from typing import Any

from grpo.plan.estimate_base import BYTES, Part, Quantity
from grpo.plan.job import JobSpec
from grpo.plan.shapes import ModelShape

LOGITS_CHUNK_BYTES = 256 << 20
"""As in ``learner/model.py``, which the launcher half must not import; a test holds them equal."""
ADAM_BYTES = 8
"""Two float32 moments of each parameter."""
STEP_BYTES = 4
"""AdamW's own step count, a float32 of each tensor."""


def learner_memory(job: JobSpec, shape: ModelShape) -> Part:
    """Return what one learner rank holds at its peak, part by part."""
    fixed = [parameters(job, shape), gradients(job, shape), optimizer(job, shape)]
    if job.objective.kl_coef > 0:
        fixed.append(_sharded(job, shape, "learner.reference", "frozen reference", BYTES[job.learner.dtype], "its KL"))
    if job.learner.ranks > 1:
        fixed.append(gathered(job, shape))
    with_recompute, without = activations(job, shape, recompute=True), activations(job, shape, recompute=False)
    used = with_recompute if job.learner.activation_recompute else without
    total = sum(int(each.value or 0) for each in [*fixed, used])
    peak = Quantity(
        "learner.peak",
        "peak",
        total,
        "bytes",
        "sum of the above, activations " + ("with recompute" if job.learner.activation_recompute else "all kept"),
        note="without what the allocator and the framework itself take",
    )
    return Part("memory of one learner rank", (*fixed, without, with_recompute, logits(job, shape), peak))


def _sharded(job: JobSpec, shape: ModelShape, name: str, label: str, each: int, what: str) -> Quantity:
    ranks, count = job.learner.ranks, shape.parameter_count
    inputs: dict[str, Any] = {"parameters": count}
    formula = f"{each} bytes x parameters [{what}]"
    if ranks > 1:
        formula += " / ranks (FSDP)"
        inputs["ranks"] = ranks
    return Quantity(name, label, -(-each * count // ranks), "bytes", formula, inputs)


def parameters(job: JobSpec, shape: ModelShape) -> Quantity:
    """Weights: float32, which are their own master; a bfloat16 model has float32 masters besides."""
    half = job.learner.dtype == "bfloat16"
    what = "bfloat16 weights and float32 masters" if half else "float32, their own masters"
    return _sharded(job, shape, "learner.parameters", "parameters", 6 if half else 4, what)


def gradients(job: JobSpec, shape: ModelShape) -> Quantity:
    """Float32 sums over micro-batches; a bfloat16 backward pass leaves its own beside them until they are added."""
    half = job.learner.dtype == "bfloat16"
    what = "float32 sums and bfloat16 of one backward pass" if half else "float32"
    return _sharded(job, shape, "learner.gradients", "gradients", 6 if half else 4, what)


def optimizer(job: JobSpec, shape: ModelShape) -> Quantity:
    """AdamW's two moments, and its step count for each tensor."""
    ranks, count, tensors = job.learner.ranks, shape.parameter_count, len(shape.parameters)
    inputs = {"parameters": count, "tensors": tensors} | ({"ranks": ranks} if ranks > 1 else {})
    share = " / ranks (FSDP)" if ranks > 1 else ""
    value = -(-ADAM_BYTES * count // ranks) + STEP_BYTES * tensors
    formula = f"8 bytes x parameters{share} [AdamW moments, float32] + 4 bytes x tensors [step counts]"
    return Quantity("learner.optimizer", "optimizer", value, "bytes", formula, inputs)


def gathered(job: JobSpec, shape: ModelShape) -> Quantity:
    """What FSDP holds whole at one time: two layers (one computed, the next on its way) and the gradients of one, and
    all that is in no layer (embedding, head, last norm), which stays gathered, with its gradients."""
    size, layer = BYTES[job.learner.dtype], layer_parameters(shape)
    root = sum(each.size for each in shape.parameters if not each.name.startswith("model.layers."))
    return Quantity(
        "learner.gathered",
        "gathered whole",
        size * (3 * layer + 2 * root),
        "bytes",
        "s x (3 x parameters of the largest layer + 2 x parameters in no layer)",
        {"s": size, "parameters of the largest layer": layer, "parameters in no layer": root},
        "FSDP2 prefetches one layer and keeps the root; gradients counted once",
    )


def layer_parameters(shape: ModelShape) -> int:
    """Return the parameters of the largest layer."""
    sizes: dict[str, int] = {}
    for parameter in shape.parameters:
        if parameter.name.startswith("model.layers."):
            layer = parameter.name.split(".")[2]
            sizes[layer] = sizes.get(layer, 0) + parameter.size
    return max(sizes.values(), default=0)


def micro_batch_tokens(job: JobSpec) -> tuple[int, int]:
    """Return ``(rows, tokens of a row)`` of the largest micro-batch."""
    learner, batch = job.learner, job.batch
    sequences = -(-batch.global_batch_size // learner.ranks)
    length = learner.packing_max_tokens if learner.sequence_packing else batch.max_context_length
    return min(learner.micro_batch_size, sequences), length


def token_bytes(job: JobSpec, shape: ModelShape, *, sparse: bool) -> int:
    """Return the bytes that one token leaves in one layer; see the module's formulas."""
    size = BYTES[job.learner.dtype]
    keys = shape.heads if job.learner.sequence_packing else shape.kv_heads
    value = 4 if shape.wide_norm else size
    wide = (4 + value + size) * shape.hidden * shape.norms_per_layer
    narrow = (4 + value) * (shape.heads + shape.kv_heads) * shape.head_dim if shape.query_norm else 0
    attention = size * (shape.heads + keys) * (shape.head_dim + shape.value_dim) + 4 * shape.heads
    if sparse:
        experts = shape.experts_per_token * (2 * shape.hidden + 4 * shape.expert_inner) + 4 * shape.shared_inner
        return wide + narrow + attention + size * experts
    return wide + narrow + attention + 4 * size * shape.inner


def activations(job: JobSpec, shape: ModelShape, *, recompute: bool) -> Quantity:
    """Return the most that a backward pass keeps alive, its logits included, with or without recompute."""
    size, (rows, length) = BYTES[job.learner.dtype], micro_batch_tokens(job)
    tokens = rows * length
    dense, sparse = token_bytes(job, shape, sparse=False), token_bytes(job, shape, sparse=True)
    dense_layers = shape.layers - shape.sparse_layers
    mask = size * rows * length * length if job.learner.sequence_packing else 0
    head = (4 + size) * shape.hidden * tokens
    most = int(logits(job, shape).value or 0)
    inputs: dict[str, Any] = {"T": tokens, "s": size, "H": shape.hidden, "L": shape.layers}
    if dense_layers:
        inputs["A"] = dense
    if shape.sparse_layers:
        inputs["A of an expert layer"] = sparse
    if mask:
        inputs["mask"] = mask
    if recompute:
        kept = shape.layers * size * shape.hidden * tokens + head
        passing = size * (shape.hidden + shape.inner)
        if shape.sparse_layers:
            passing = size * shape.experts_per_token * (shape.hidden + 2 * shape.expert_inner)
        largest = max(dense if dense_layers else 0, sparse if shape.sparse_layers else 0) + passing
        inputs["G"] = passing
        largest = largest * tokens + mask
        value = kept + max(largest, most)
        formula = "L x s x H x T [inputs of layers] + max((A + G) x T [one layer, again, and gradients in it]"
        formula += (" + mask" if mask else "") + ", logits) + (4 + s) x H x T [last norm]"
        return Quantity("learner.activations_recompute", "activations, recomputed", value, "bytes", formula, inputs)
    value = (dense_layers * dense + shape.sparse_layers * sparse) * tokens + shape.layers * mask + head + most
    formula = f"L x {'(A x T + mask)' if mask else 'A x T'} + logits + (4 + s) x H x T [last norm]"
    note = "A bytes a token a layer, after Korthikanti et al. 2022; see docs/planning.md"
    return Quantity("learner.activations_all", "activations, all kept", value, "bytes", formula, inputs, note)


def logits(job: JobSpec, shape: ModelShape) -> Quantity:
    """Return the most that the output head holds: four float32 arrays of the positions of one chunk.

    The four are the logits, their log-softmax, its exponential and the product of the two (the entropy).
    """
    rows, length = micro_batch_tokens(job)
    # Every response token of a row counts; a prompt has one token at least.
    positions = rows * (length if job.learner.sequence_packing else job.batch.max_response_length)
    chunk = min(positions, max(1, LOGITS_CHUNK_BYTES // (4 * shape.vocabulary)))
    return Quantity(
        "learner.logits",
        "logits (in activations)",
        16 * chunk * shape.vocabulary,
        "bytes",
        "4 arrays x 4 bytes x V x min(response positions of a micro-batch, 256 MiB / (4 V))",
        {"V": shape.vocabulary, "response positions of a micro-batch": positions},
    )
