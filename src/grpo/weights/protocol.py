"""What a learner hands to engines when weights are published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class WeightSource(Protocol):
    """Named tensors of one policy version, in Hugging Face names, in buckets of bounded size."""

    @property
    def version(self) -> int:
        """The policy version that the tensors hold."""
        ...

    def buckets(self, max_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yield every parameter once; a bucket is at most ``max_bytes`` unless a single tensor is larger.

        The tensors may alias the learner's memory: they are valid until the learner's next step, unless the source is
        a snapshot.
        """
        ...
