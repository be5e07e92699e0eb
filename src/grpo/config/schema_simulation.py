"""What a simulated fleet assumes: [simulation]."""

from typing import Literal

from grpo.config.schema_base import Section, key


class Simulation(Section):
    """Assumptions of grpo plan --simulate and of inference.backend = "simulated": nothing here is measured.

    The controller, the publication modes, the ledger and the buffer are the real ones; engines, learner, prompts and
    grades are made up from these numbers, under a virtual clock.
    """

    decode_base_s: float = key(
        0.010,
        "A decode step of an engine gives each of its n running requests one token, and takes decode_base_s + n x "
        "decode_per_request_s.",
        unit="seconds",
        gt=0,
    )
    decode_per_request_s: float = key(
        0.0001, "The part of a decode step for each running request.", unit="seconds", ge=0
    )
    prefill_tokens_per_s: float = key(
        50_000.0, "Of one engine, when serving state is built or rebuilt.", unit="tokens/second", gt=0
    )
    load_s: float = key(2.0, "To load weights into an engine.", unit="seconds", ge=0)
    train_tokens_per_s: float = key(50_000.0, "Of the learner, prompts included.", unit="tokens/second", gt=0)
    train_base_s: float = key(1.0, "Of an optimizer step, whatever its size.", unit="seconds", ge=0)
    grade_s: float = key(0.0, "Latency of a verifier.", unit="seconds", ge=0)
    length_median: float = key(
        600.0, "Response lengths are log-normal with this median, cut at max_response_length.", unit="tokens", gt=0
    )
    length_sigma: float = key(1.0, "Standard deviation of the logarithm of the response length; 0 is all alike.", ge=0)
    prompt_tokens: int = key(256, "Length of every prompt.", unit="tokens", ge=1)
    solve_alpha: float = key(
        0.7, "The chance that a response to a prompt is right is Beta(solve_alpha, solve_beta) over prompts.", gt=0
    )
    solve_beta: float = key(0.7, "See solve_alpha; both below 1 make most prompts nearly always or never solved.", gt=0)
    ungraded_rate: float = key(0.0, "Chance that the verifier cannot decide.", ge=0, le=1)
    engine_failure_rate: float = key(0.0, "Chance that a request breaks its engine.", ge=0, le=1)
    batching: Literal["continuous", "static"] = key(
        "continuous", "continuous lets a request join at any decode step; static only when the engine is empty."
    )
