"""Is a response one that the engine can have sampled? Garbage must not reach the learner."""

from __future__ import annotations

import math

from grpo.errors import RunFailed
from grpo.types import FinishReason, Response, SampleRequest


def check_response(request: SampleRequest, response: Response, *, newest: int) -> None:
    """Raise RunFailed unless ``response`` answers ``request`` and could have been sampled.

    Args:
        newest: the newest policy version that exists.
    """
    problem = ""
    if response.request_id != request.request_id:
        problem = f"answers {response.request_id}"
    elif response.finish is FinishReason.ABORT:
        problem = "was aborted by the engine"
    elif not response.tokens:
        problem = "has no tokens"
    elif len(response.tokens) > request.params.max_tokens:
        problem = f"has {len(response.tokens)} tokens, over the limit of {request.params.max_tokens}"
    elif not math.isfinite(sum(response.logprobs)) or max(response.logprobs) > LOGPROB_CEILING:
        problem = "has a log-probability that is positive or not finite"
    elif response.spans[-1].version > newest or response.spans[0].version < 0:
        versions = [span.version for span in response.spans]
        problem = f"claims policy versions {versions}, but the newest is {newest}"
    if problem:
        raise RunFailed(f"response {request.request_id} {problem}")


LOGPROB_CEILING = 1e-4
"""A log-probability is at most 0; rounding in bfloat16 may lift one a little."""
