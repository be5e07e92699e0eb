"""Captured rollouts: whole groups, sampled by rate, with everything that is needed to understand or replay them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo.obs.jsonl import JsonLines
from grpo.obs.observer import Observer
from grpo.obs.rows import PipelineStatus, StepRow
from grpo.types import Grade, Graded, Group, Response


class RolloutFile(Observer):
    """``rollouts/groups.jsonl``: one object for each captured group that ended.

    Args:
        folder: where the file goes; made when the first group is captured.
        rate: fraction of groups to keep. 1 keeps all, 0 keeps none and makes no file.
        decode: (R,) token ids to text.

    Which groups are kept depends on the group id alone: the same in every run, and every attempt of a kept group is
    kept.
    """

    def __init__(self, folder: Path, *, rate: float, decode: Callable[[Sequence[int]], str]) -> None:
        self._path = folder / "groups.jsonl"
        self._rate = rate
        self._decode = decode
        self._lines: JsonLines | None = None
        self._step = 0

    def step(self, row: StepRow) -> None:
        self._step = row.step

    def pipeline(self, status: PipelineStatus) -> None:
        # A resumed run says here where it is before its first row.
        self._step = max(self._step, status.policy_version)

    def group_ended(self, group: Group, outcome: str, lag: int | None) -> None:
        if not sampled(group.group_id, self._rate):
            return
        if self._lines is None:
            self._lines = JsonLines(self._path)
        self._lines.write(self._record(group, outcome, lag))

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _record(self, group: Group, outcome: str, lag: int | None) -> dict[str, Any]:
        return {
            "group_id": group.group_id,
            "attempt": group.attempt,
            "step": self._step,
            "outcome": outcome,
            "lag": lag,
            "prompt": {
                "id": group.prompt.id,
                "source": group.prompt.source,
                "text": group.prompt.text,
                "ground_truth": group.prompt.ground_truth,
                "tokens": group.prompt.tokens,
            },
            "responses": [
                self._response(response) | _grade(grade)
                for response, grade in zip(group.responses, group.grades, strict=True)
            ],
        }

    def _response(self, response: Response) -> dict[str, Any]:
        return {
            "request_id": response.request_id,
            "text": self._decode(response.tokens),
            "tokens": response.tokens,
            "logprobs": response.logprobs,
            "spans": [{"start": span.start, "version": span.version} for span in response.spans],
            "finish": response.finish.value,
        }


def sampled(group_id: int, rate: float) -> bool:
    """Return whether a group is among the fraction ``rate``; depends on nothing but its arguments."""
    digest = hashlib.blake2b(str(group_id).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < rate * 2**64


def _grade(grade: Grade) -> dict[str, Any]:
    if isinstance(grade, Graded):
        return {"reward": grade.score, "ungraded": None}
    return {"reward": None, "ungraded": grade.reason}
