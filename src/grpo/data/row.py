"""One row of data before a tokenizer has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat; ``role`` is what the tokenizer's chat template knows (``system``, ``user``, ...)."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of a task or a prompt file.

    Attributes:
        id: unique in its data set and stable; ``addition/12+34``.
        prompt: the chat, rendered through the chat template; or a text, tokenised as it is.
        ground_truth: what the verifier compares with; any one of several is right.
        verifier: name in the verifier registry.
        source: the task or file that the row comes from.
        where: the place to name in an error about the row; ``data.jsonl:7``.
        options: per-row options of the verifier.
    """

    id: str
    prompt: str | tuple[Message, ...]
    ground_truth: str | tuple[str, ...]
    verifier: str
    source: str
    where: str
    options: Mapping[str, Any] = field(default_factory=dict)
