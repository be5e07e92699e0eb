"""How the policy changes: [optimizer], [async]."""

from typing import Literal

from grpo.config.schema_base import Section, key


class Optimizer(Section):
    """AdamW, its schedule, and the terms of the objective."""

    learning_rate: float = key(1e-6, "Peak learning rate of AdamW.", gt=0)
    lr_decay_style: Literal["constant", "linear", "cosine"] = key(
        "constant", "Schedule after the warmup; linear and cosine fall to 0 at the last optimizer step."
    )
    lr_warmup_iters: int = key(0, "Steps over which the learning rate rises from 0.", unit="optimizer steps", ge=0)
    weight_decay: float = key(0.0, "Decoupled weight decay.", ge=0)
    adam_beta1: float = key(0.9, "Decay of AdamW's first moment.", ge=0, lt=1)
    adam_beta2: float = key(0.95, "Decay of AdamW's second moment.", ge=0, lt=1)
    adam_eps: float = key(1e-8, "Added to the denominator of AdamW.", gt=0)
    clip_grad: float = key(1.0, "Limit of the L2 norm of the gradient; 0 is off.", ge=0)
    kl_loss_coef: float = key(0.0, "Weight of the k3 estimate of the KL divergence to the starting policy.", ge=0)
    entropy_coef: float = key(0.0, "Weight of the entropy bonus.", ge=0)
    eps_clip: float = key(0.2, "The policy ratio is clipped below at 1 - eps_clip.", ge=0, lt=1)
    eps_clip_high: float = key(0.28, "The policy ratio is clipped above at 1 + eps_clip_high.", ge=0)


class Async(Section):
    """How generation and training overlap, and what is done about the age of samples."""

    fully_async: bool = key(False, "Generate while the learner trains. A synchronous run has lag 0.")
    max_weight_staleness: int | None = key(
        None,
        "Largest lag of a group that is trained: the policy version now minus the oldest version that sampled one of "
        "its tokens, judged when the trainer takes it.",
        unit="optimizer steps",
        derived="6 when asynchronous, else 0",
        ge=0,
    )
    async_max_concurrent_samples: int | None = key(
        None,
        "Bound on responses in the system, besides the bound by lag; rounded up to whole groups, and never below one "
        "collection.",
        unit="responses",
        derived="only bounded by lag",
        ge=1,
    )
    paced: bool = key(
        True, "Admit only what can be trained within the lag limit; false is for experiments and wastes samples."
    )
    async_data_buffer_capacity_factor: float = key(
        2.0, "Capacity of the buffer of graded groups, in collections, rounded down to whole groups.", ge=0, le=1000
    )
    async_unused_samples_handler: Literal["retry", "drop"] = key(
        "retry", "A group over the lag limit: retry generates it again from its prompt, drop lets it go."
    )
    rollout_submission_granularity: Literal["sample", "group"] = key(
        "group", "Whether all responses of a group go to one engine, or each is placed by itself."
    )
    off_policy_correction: Literal["tis", "icepop", "sequence", "none"] = key(
        "tis",
        "Correction for the difference between the policy that sampled and the learner: tis caps the token ratio, "
        "icepop masks tokens whose ratio is outside [icepop_low, icepop_high], sequence caps one ratio a response.",
    )
    tis_cap: float = key(2.0, "Cap of the importance ratio.", gt=0)
    icepop_low: float = key(0.5, "Lower end of the ratios that icepop keeps.", ge=0)
    icepop_high: float = key(5.0, "Upper end of the ratios that icepop keeps.", gt=0)
    straggler: Literal["wait", "overtake"] = key(
        "wait",
        "When a group at the lag limit is still decoding: wait for it, or train newer groups past it, which biases "
        "training to short responses.",
    )
    straggler_timeout: float = key(600.0, "How long the trainer waits for a straggler.", unit="seconds", gt=0)
