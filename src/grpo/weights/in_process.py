"""Weights handed from a learner to an engine in the same process: the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


class InProcessWeights:
    """The parameters of a live model, or a snapshot of them, as a :class:`~grpo.weights.protocol.WeightSource`.

    A parameter that is tied to another (an output head that is the embedding) is yielded once, under its first name,
    as a Hugging Face folder stores it.

    Args:
        version: policy version that ``model`` holds now.
        model: with Hugging Face parameter names.
        snapshot: clone now; otherwise the tensors alias the model, and are valid until its next step.
    """

    def __init__(self, version: int, model: nn.Module, *, snapshot: bool = False) -> None:
        self._version = version
        self._tensors = [
            (name, parameter.detach().clone() if snapshot else parameter.detach())
            for name, parameter in model.named_parameters()
        ]

    @property
    def version(self) -> int:
        """The policy version that the tensors hold."""
        return self._version

    def buckets(self, max_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yield every parameter once, in the model's order, in buckets of at most ``max_bytes``.

        A tensor larger than that is a bucket of its own.
        """
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name, tensor in self._tensors:
            if bucket and size + tensor.nbytes > max_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append((name, tensor))
            size += tensor.nbytes
        if bucket:
            yield bucket
