"""Samples of one optimizer step -> micro-batches, padded or packed.

A row of a micro-batch holds one sample (padded) or several (packed). Attention must not cross samples:

- Padded rows need no mask. Attention is causal and padding comes last, so no real token sees it, and the kernel may
  take its fast causal path.
- Packed rows restart ``position_ids`` at 0 for each sample. Given no ``attention_mask``, transformers reads the
  restarts (``masking_utils.find_packed_sequence_indices``) and masks block-diagonally for SDPA, and its flash
  attention path turns the same restarts into ``cu_seqlens`` for the variable-length kernel. So packing says nothing
  about the kernel: choosing ``attn_implementation`` when the model is loaded is the only seam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from grpo.errors import RunFailed, UserError
from grpo.plan.job import LearnerSpec
from grpo.types import TrainSample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some samples of a step, as tensors.

    Axes: ``B`` rows, ``T`` tokens of the longest row, ``S`` samples, ``N`` response tokens of all samples, one after
    the other in the order of ``indices``.

    Attributes:
        indices: (S,) of each sample in the step's list.
        input_ids: (B, T) int64, padded on the right with 0.
        position_ids: (B, T) int64, from 0 in each sample; see the module docstring.
        predictors: (N,) int64 into the flattened (B * T): the position whose logits predict the response token, one
            before it.
        targets: (N,) int64 response token ids.
        lengths: (S,) int64 response lengths; they add up to N.
        counts: (N,) bool, False for tokens out of the loss.
        weights: (N,) float32, mask over the step's denominator.
        advantages, behavior_logprobs: (N,) float32.
        old_logprobs: (N,) float32, or None.
        tokens: real tokens, padding aside.
    """

    indices: tuple[int, ...]
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    predictors: torch.Tensor
    targets: torch.Tensor
    lengths: torch.Tensor
    counts: torch.Tensor
    weights: torch.Tensor
    advantages: torch.Tensor
    behavior_logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None
    tokens: int

    def to(self, device: torch.device) -> MicroBatch:
        """Return this micro-batch on ``device``."""
        moved = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return replace(self, **moved)


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return packs of indices: longest first, each into the first pack with room, else into a new one.

    Uses at most 11/9 of the fewest possible packs, plus 6/9 (Dosa 2007). Equal lengths keep their order, so the packs
    are a function of the lengths alone. No length may be over ``capacity``.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    packs: list[list[int]] = []
    room = np.zeros(len(lengths), dtype=np.int64)
    for index in order:
        fits = room[: len(packs)] >= lengths[index]
        pack = int(fits.argmax()) if fits.any() else len(packs)
        if pack == len(packs):
            packs.append([])
            room[pack] = capacity
        packs[pack].append(index)
        room[pack] -= lengths[index]
    return packs


def rows_of(samples: Sequence[TrainSample], spec: LearnerSpec) -> list[list[int]]:
    """Return the rows (indices of samples), longest row first, so that neighbours need little padding.

    Raises:
        RunFailed: a sample is longer than a pack.
    """
    lengths = [len(sample.tokens) for sample in samples]
    if not spec.sequence_packing:
        return [[index] for index in sorted(range(len(samples)), key=lambda index: -lengths[index])]
    for sample, length in zip(samples, lengths, strict=True):
        if length > spec.packing_max_tokens:
            raise RunFailed(
                f"sample {sample.sample_id} has {length} tokens, a pack holds {spec.packing_max_tokens}",
                where="trainer.packing_max_tokens",
                fix="Raise it to at least the context length.",
            )
    packs = first_fit_decreasing(lengths, spec.packing_max_tokens)
    return sorted(packs, key=lambda pack: -sum(lengths[index] for index in pack))


def micro_batches(
    samples: Sequence[TrainSample], spec: LearnerSpec, weight_of: Callable[[TrainSample], float]
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of one rank's samples of one step: ``micro_batch_size`` rows each, the last maybe fewer.

    Args:
        weight_of: mask over denominator of each token of a sample, the denominator counted over the whole step.

    Raises:
        UserError: ``micro_batch_size`` is not positive.
        RunFailed: a sample is malformed, or longer than a pack.
    """
    if spec.micro_batch_size <= 0:
        raise UserError(
            f"micro_batch_size is {spec.micro_batch_size}",
            where="trainer.micro_batch_size",
            fix="Give a positive number; a number over the batch size takes the batch whole.",
        )
    for sample in samples:
        _check(sample)
    with_old = [sample for sample in samples if sample.old_logprobs is not None]
    if with_old and len(with_old) != len(samples):
        raise RunFailed(f"{len(with_old)} of {len(samples)} samples of a step have old_logprobs; all or none must")
    rows = rows_of(samples, spec)
    for start in range(0, len(rows), spec.micro_batch_size):
        yield _micro_batch(samples, rows[start : start + spec.micro_batch_size], weight_of)


def _check(sample: TrainSample) -> None:
    length = sample.response_length
    if sample.prompt_length < 1 or length < 0:
        problem = f"has {len(sample.tokens)} tokens and a prompt of {sample.prompt_length}"
    elif len(sample.behavior_logprobs) != length:
        problem = f"has {length} response tokens but {len(sample.behavior_logprobs)} behavior log-probabilities"
    elif sample.old_logprobs is not None and len(sample.old_logprobs) != length:
        problem = f"has {length} response tokens but {len(sample.old_logprobs)} old log-probabilities"
    else:
        return
    raise RunFailed(f"sample {sample.sample_id} {problem}")


def _micro_batch(
    samples: Sequence[TrainSample], rows: Sequence[Sequence[int]], weight_of: Callable[[TrainSample], float]
) -> MicroBatch:
    width = max(sum(len(samples[index].tokens) for index in row) for row in rows)
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    # Padding goes on counting after a lone sample (no restart: the row stays on the causal path), and from 0 after a
    # pack, where it is one more document.
    position_ids = np.tile(np.arange(width), (len(rows), 1))
    predictors: list[np.ndarray] = []
    for row_index, row in enumerate(rows):
        start = 0
        for index in row:
            sample, end = samples[index], start + len(samples[index].tokens)
            input_ids[row_index, start:end] = sample.tokens
            position_ids[row_index, start:] -= position_ids[row_index, start]
            first = row_index * width + start + sample.prompt_length - 1
            predictors.append(np.arange(first, first + sample.response_length))
            start = end
        if len(row) > 1 and start < width:
            position_ids[row_index, start:] -= position_ids[row_index, start]

    members = [samples[index] for row in rows for index in row]
    lengths = np.array([member.response_length for member in members], dtype=np.int64)

    def per_token(values: Sequence[float | bool], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=dtype), lengths))

    def joined(parts: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor([value for part in parts for value in part], dtype=torch.float32)

    old = [member.old_logprobs for member in members if member.old_logprobs is not None]
    return MicroBatch(
        indices=tuple(index for row in rows for index in row),
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(position_ids),
        predictors=torch.from_numpy(np.concatenate(predictors)),
        targets=torch.tensor([token for member in members for token in member.tokens[member.prompt_length :]]).long(),
        lengths=torch.from_numpy(lengths),
        counts=per_token([member.counts for member in members], np.bool_),
        weights=per_token([weight_of(member) for member in members], np.float32),
        advantages=per_token([member.advantage for member in members], np.float32),
        behavior_logprobs=joined([member.behavior_logprobs for member in members]),
        old_logprobs=joined(old) if old else None,
        tokens=sum(len(member.tokens) for member in members),
    )
