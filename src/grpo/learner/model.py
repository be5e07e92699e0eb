"""The policy as the learner holds it: a transformers causal language model, and log-probabilities of its responses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from grpo.errors import UserError
from grpo.learner.packing import MicroBatch

LOGITS_CHUNK_BYTES = 256 << 20
"""Float32 logits alive at one time, forward and backward."""


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars for loading and writing weights off the terminal, which is the run's own."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_policy(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Load a Hugging Face folder, without dropout, on the scaled-dot-product attention path.

    Raises:
        UserError: the folder holds no causal language model, misses weights, or computes its logits by more than a
            linear head, which :func:`response_logprobs` could not reproduce.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"no model in {folder}: it has no config.json", where="model.source")
    try:
        with no_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"cannot load the model in {folder}: {str(error).splitlines()[0]}",
            where="model.source",
            fix="Its weights and its config.json must be whole and fit each other.",
        ) from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"{folder} misses weights: {', '.join(missing[:4])}", where="model.source")
    # Dropout would make the learner's log-probabilities differ from the engine's, so the model stays in eval mode.
    model = model.to(device).eval()
    _require_linear_head(model)
    return model


def _require_linear_head(model: PreTrainedModel) -> None:
    probe = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        hidden = model.base_model(input_ids=probe, use_cache=False).last_hidden_state
        same = torch.allclose(_head(model)(hidden), model(input_ids=probe, use_cache=False).logits, atol=1e-4)
    if not same:
        raise UserError(
            f"{type(model).__name__} scales or caps its logits after the output head, which the learner does not do",
            where="model.source",
        )


def _head(model: PreTrainedModel) -> nn.Module:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Module):
        raise UserError(f"{type(model).__name__} has no output head", where="model.source")
    return head


def recompute_activations(model: PreTrainedModel) -> None:
    """Keep only each layer's input for the backward pass, and compute the layer again there."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            # transformers recomputes only layers in training mode. The flag of the layer alone, not of what is in it,
            # turns that on without turning dropout on.
            module.training = True


def response_logprobs(
    model: PreTrainedModel, batch: MicroBatch, temperature: float, *, entropy_grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ((N,), (N,)) float32 log-probabilities of the response tokens, and entropies, in nats.

    Both are of ``softmax(logits / temperature)``, the distribution that the engine sampled from (0, greedy, is
    taken as 1). Only positions that predict a response token reach the
    output head, in chunks whose logits are computed again in the backward pass, so the memory of logits does not grow
    with prompts or batch.

    Args:
        entropy_grad: whether the entropies carry a gradient.
    """
    output = model.base_model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
    hidden = output.last_hidden_state.flatten(0, 1).index_select(0, batch.predictors)
    head = _head(model)
    rows = max(1, LOGITS_CHUNK_BYTES // (4 * model.config.get_text_config().vocab_size))
    if len(hidden) <= rows:
        return _score(head, hidden, batch.targets, temperature, entropy_grad)
    parts = [
        checkpoint(_score, head, chunk, targets, temperature, entropy_grad, use_reentrant=False)
        for chunk, targets in zip(hidden.split(rows), batch.targets.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _score(
    head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, entropy_grad: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, hidden) and (N,) -> log-probabilities (N,) and entropies (N,)."""
    logits = head(hidden).float()
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


class MasterParameters:
    """The float32 parameters that gradients are summed in and the optimizer updates.

    They are the model's own where the model is float32. Of a bfloat16 model they are copies: with 8 bits of mantissa,
    an update of under 1/256 of a weight would round to nothing, and sums over micro-batches would depend on their
    size.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pairs = [(parameter, self._master(parameter)) for parameter in model.parameters()]
        names = [name for name, _ in model.named_parameters()]
        self.named = dict(zip(names, (master for _, master in self._pairs), strict=True))

    @staticmethod
    def _master(parameter: nn.Parameter) -> nn.Parameter:
        return parameter if parameter.dtype == torch.float32 else nn.Parameter(parameter.detach().float())

    def collect(self) -> None:
        """Add the model's gradients to the masters' and clear them; call after each backward pass."""
        for parameter, master in self._pairs:
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def gradient_norm(self) -> float:
        """Return the L2 norm over all parameters."""
        gradients = [master.grad for _, master in self._pairs if master.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for parameter, master in self._pairs:
            parameter.grad = master.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self._pairs:
            if master is not parameter:
                parameter.copy_(master)
