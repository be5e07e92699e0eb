"""The carriers that pass between rooms: small frozen dataclasses, with units and shapes.

Axis names used in docstrings: ``T`` tokens of a whole sequence (prompt and response), ``R`` tokens of a response.
Nothing here imports torch, so that both halves of the product may use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data, ready to be sampled from.

    Attributes:
        id: unique and stable across runs of the same data; ``addition/train/17``.
        tokens: token ids of the rendered prompt, generation prompt included.
        text: the rendered prompt, for people.
        ground_truth: what the verifier compares with.
        verifier: name in the verifier registry.
        source: the task or file that the row comes from; metrics are also reported by it.
        options: per-row options of the verifier.
    """

    id: str
    tokens: tuple[int, ...]
    text: str
    ground_truth: str | tuple[str, ...]
    verifier: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one response is sampled.

    Attributes:
        max_tokens: limit of the response, in tokens; reaching it gives ``FinishReason.LENGTH``.
        temperature: logits are divided by it; 0 is greedy.
        top_p: 1 is off. Must be off when importance correction is on.
        top_k: 0 is off. Must be off when importance correction is on.
        stop_token_ids: sampling one of these ends the response; the token is part of the response.
        seed: of this response alone, so that it does not depend on what it was batched with.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One response asked of an engine. ``request_id`` is unique in a run."""

    request_id: str
    prompt_tokens: tuple[int, ...]
    params: SamplingParams


class FinishReason(StrEnum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class PolicySpan:
    """Tokens of a response from index ``start`` up to the next span were sampled by policy ``version``."""

    start: int
    version: int


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response.

    Attributes:
        tokens: (R,) sampled token ids, the stop token included.
        logprobs: (R,) behavior log-probabilities in nats, as the engine that sampled them gave them: temperature
            applied, before top-p and top-k.
        spans: at least one when R > 0, the first at 0, with rising starts and versions.
    """

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[PolicySpan, ...]
    finish: FinishReason

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{self.request_id}: {len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
        starts = [span.start for span in self.spans]
        if (self.tokens and starts[:1] != [0]) or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(f"{self.request_id}: spans {starts} do not partition {len(self.tokens)} tokens")

    @property
    def truncated(self) -> bool:
        """Whether the response hit its length limit."""
        return self.finish is FinishReason.LENGTH

    @property
    def min_version(self) -> int:
        """The oldest policy version that sampled a token of this response."""
        return min(span.version for span in self.spans)

    def token_versions(self) -> list[int]:
        """(R,) the policy version of each token."""
        if not self.tokens:
            return []
        ends = [span.start for span in self.spans[1:]] + [len(self.tokens)]
        return [span.version for span, end in zip(self.spans, ends, strict=True) for _ in range(end - span.start)]


@dataclass(frozen=True, slots=True)
class Graded:
    """A verifier's verdict: ``score`` is the raw reward."""

    score: float


@dataclass(frozen=True, slots=True)
class Ungraded:
    """A verifier that could not decide. Not the same as a reward of zero."""

    reason: str


Grade = Graded | Ungraded


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt with its sampled and graded responses.

    Attributes:
        group_id: unique in a run, in the order in which prompts were drawn.
        attempt: 0 for the first generation of this group; a regenerated group counts up.
        responses: ``samples_per_prompt`` of them, in sample order.
        grades: one for each response.
    """

    group_id: int
    attempt: int
    prompt: Prompt
    responses: tuple[Response, ...]
    grades: tuple[Grade, ...]

    @property
    def min_version(self) -> int:
        """The oldest policy version of any token; the lag of the group counts from it."""
        return min(response.min_version for response in self.responses)

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Raw reward of each response; None where it is ungraded."""
        return tuple(grade.score if isinstance(grade, Graded) else None for grade in self.grades)


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One response as the learner sees it.

    Attributes:
        tokens: (T,) prompt and response token ids.
        prompt_length: the first response token is ``tokens[prompt_length]``.
        behavior_logprobs: (R,) nats.
        advantage: of every token of the response.
        counts: False for a response that is left out of the loss (truncated under exclusion, ungraded): zero loss mask.
            It still counts in the ``response`` denominator.
        old_logprobs: (R,) nats, the learner's own at the start of the collection (``Learner.score``), where a
            collection takes several optimizer steps; None: the learner's own just before this step.
    """

    sample_id: str
    tokens: tuple[int, ...]
    prompt_length: int
    behavior_logprobs: tuple[float, ...]
    advantage: float
    counts: bool = True
    old_logprobs: tuple[float, ...] | None = None

    @property
    def response_length(self) -> int:
        """R, in tokens."""
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The samples of one optimizer step over all ranks. ``step`` is the policy version that the step produces."""

    step: int
    samples: tuple[TrainSample, ...]


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What a learner measured in one optimizer step; means are over counting response tokens of all ranks.

    Attributes:
        version: policy version after the step.
        loss: the optimised value, all parts.
        entropy: mean, nats per token.
        kl: mean ``k3`` estimate to the reference policy, nats per token; 0 without a reference.
        grad_norm: L2, before clipping.
        clip_low_fraction, clip_high_fraction: fraction of tokens whose ratio the clip made flat.
        tis_mean, tis_max, tis_capped_fraction: importance weights to the behavior policy; 1, 1, 0 when off.
        logprob_diff_mean, logprob_diff_max: absolute engine-learner difference, nats.
        loss_tokens: response tokens in the loss. tokens: all tokens computed (prompts too).
        seconds: of the step.
    """

    version: int
    loss: float
    policy_loss: float
    entropy: float
    kl: float
    grad_norm: float
    learning_rate: float
    clip_low_fraction: float
    clip_high_fraction: float
    tis_mean: float
    tis_max: float
    tis_capped_fraction: float
    logprob_diff_mean: float
    logprob_diff_max: float
    samples: int
    loss_tokens: int
    tokens: int
    micro_batches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """What one engine can hold: running requests, and KV cache in tokens."""

    running_requests: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A moment of one engine. ``tokens_generated`` counts up since the engine started; ``kv_used`` is a fraction."""

    version: int
    running: int
    queued: int
    tokens_generated: int
    kv_used: float


def spans_of(token_versions: Sequence[int]) -> tuple[PolicySpan, ...]:
    """Return the spans of (R,) per-token policy versions: the inverse of :meth:`Response.token_versions`."""
    return tuple(
        PolicySpan(start, version)
        for start, version in enumerate(token_versions)
        if start == 0 or token_versions[start - 1] != version
    )


@dataclass(frozen=True, slots=True)
class EvalScore:
    """One evaluation of one held-out set on one exact policy version.

    Attributes:
        name: of the task or file.
        accuracy: mean reward over all responses.
        prompts: held-out prompts asked; each ``samples`` times.
    """

    name: str
    version: int
    accuracy: float
    prompts: int
    samples: int
    truncated_fraction: float
    response_length_mean: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. ``eval_before`` and ``eval_after`` are prompt-weighted means over held-out sets."""

    status: str
    steps: int
    seconds: float
    eval_before: float | None
    eval_after: float | None
    output_root: str

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``grpo run --json`` prints last."""
        return {
            "status": self.status,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "eval": {"before": self.eval_before, "after": self.eval_after},
            "output_root": self.output_root,
        }
