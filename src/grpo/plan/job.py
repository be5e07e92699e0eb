"""The resolved job: everything a run needs, computed once. ``job.json`` is the only thing that the launcher half hands
to the runtime half; run-time code never rewrites it.

Every field is final: defaults applied, aliases compiled, derived numbers derived. Paths are absolute, except a model
source of the form ``builtin:NAME``, which names a policy that ships with the package.

Without ``from __future__ import annotations``: pydantic would have to evaluate each annotation, as text, at each start.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Spec(BaseModel):
    """Base of all parts of a job: frozen, strict about unknown keys, refuses NaN.

    A part gets a validator when it is first used by itself; most are only used inside a whole job, which has one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class ModelSpec(Spec):
    """The starting policy. ``plan_config`` is a ``config.json`` to plan with where ``source`` cannot be seen."""

    source: str
    format: Literal["hf"] = "hf"
    plan_config: str | None = None


class OutputSpec(Spec):
    """Where the run writes. ``rollout_sample_rate`` is the fraction of groups captured whole; 0 is off."""

    root: str
    export_hf: bool
    hf_dir: str
    rollout_sample_rate: float


class TaskSpec(Spec):
    """One named task with the number of training and held-out prompts."""

    task: str
    train_count: int
    eval_count: int
    prompt_wrapper: str = "none"


class EvalFile(Spec):
    """A named held-out JSONL file."""

    name: str
    path: str


class DataSpec(Spec):
    """Exactly one of ``tasks`` and ``prompt_data``."""

    tasks: tuple[TaskSpec, ...] = ()
    prompt_data: str | None = None
    eval_prompt_data: tuple[EvalFile, ...] = ()
    seed: int
    shuffle: bool


class BatchSpec(Spec):
    """Geometry. Units: groups (prompts), responses, optimizer steps, tokens.

    A collection is ``rollout_batch_size`` groups, trained as ``steps_per_collection`` optimizer steps of
    ``global_batch_size`` responses.
    """

    num_rollouts: int
    rollout_batch_size: int
    samples_per_prompt: int
    global_batch_size: int
    steps_per_collection: int
    max_prompt_length: int
    max_response_length: int
    eval_max_response_length: int
    max_context_length: int

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.num_rollouts * self.steps_per_collection


class SamplingSpec(Spec):
    """Sampling of training and of evaluation responses. ``top_k`` 0 and ``top_p`` 1 are off."""

    temperature: float
    top_p: float
    top_k: int
    seed: int
    eval_temperature: float
    eval_samples_per_prompt: int


class EvaluationSpec(Spec):
    """When held-out data is evaluated. ``interval`` is in collections; 0 is never in between."""

    initial: bool
    interval: int
    final: bool


class OptimizerSpec(Spec):
    """AdamW and its schedule. ``warmup_steps`` and the decay are in optimizer steps."""

    learning_rate: float
    schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    clip_grad: float


class ObjectiveSpec(Spec):
    """The GRPO objective; the formulas are in ``learner/objective.py``.

    Attributes:
        advantage_std: divide the advantage by the group's standard deviation.
        denominator: of the loss: ``token`` one global count over the optimizer step, ``response`` mean over responses
            of token means, ``constant`` responses times ``max_response_length``.
        correction: to the behavior policy: ``tis`` min(ratio, cap), ``icepop`` zero outside [low, high], ``sequence``
            one ratio a response, capped.
        router_aux_weight, router_z_weight: of the balancing loss and the z loss of a mixture-of-experts router; no
            effect on a dense model.
    """

    advantage_std: bool
    policy_loss: Literal["ppo", "cispo", "gspo"]
    denominator: Literal["token", "response", "constant"]
    clip_low: float
    clip_high: float
    kl_coef: float
    entropy_coef: float
    correction: Literal["none", "tis", "icepop", "sequence"]
    tis_cap: float
    icepop_low: float
    icepop_high: float
    router_aux_weight: float = 0.0
    router_z_weight: float = 0.0


class FilterSpec(Spec):
    """Which groups and responses reach the learner.

    Attributes:
        max_attempts: generations of one group, the first included, before it is given up.
        starvation_groups: the run fails after so many groups in a row with nothing to learn from.
        ungraded_window, ungraded_limit: the run fails when more than the limit (a fraction) of the latest window of
            responses could not be graded.
    """

    zero_std: bool
    exclude_truncated: bool
    ungraded: Literal["zero", "exclude", "raise"]
    max_attempts: int
    starvation_groups: int
    ungraded_window: int = 256
    ungraded_limit: float = 0.5


class SyncSpec(Spec):
    """How generation and training overlap.

    Attributes:
        asynchronous: generation goes on while the learner trains.
        max_policy_lag: in optimizer steps, judged when the trainer takes a group.
        max_groups_in_system: pacing cap on groups admitted and not yet trained or ended.
        paced: admit only what can be taken within the lag limit; off for experiments only.
        buffer_groups: capacity of the buffer of graded groups.
        stale: what becomes of a group over the limit.
        straggler: ``wait``: the trainer waits for a group at the lag edge; ``overtake``: it trains newer ones past it.
        submission: ``group``: all responses of a group go to one engine; ``sample``: each is placed by itself.
    """

    asynchronous: bool
    publication_mode: Literal["barrier", "refresh", "engine_drain"]
    max_policy_lag: int
    max_groups_in_system: int
    paced: bool = True
    buffer_groups: int
    stale: Literal["retry", "drop"]
    straggler: Literal["wait", "overtake"]
    straggler_timeout_s: float
    submission: Literal["group", "sample"]
    drain_timeout_s: float
    update_timeout_s: float
    request_timeout_s: float
    snapshot_capacity: int
    watchdog_s: float
    update_weight_buffer_bytes: int


class SimulationSpec(Spec):
    """What a simulated fleet assumes. Nothing in it is measured; results are labelled as simulated.

    Attributes:
        decode_base_s, decode_per_request_s: a decode step of an engine with ``n`` running requests takes
            ``decode_base_s + n * decode_per_request_s`` seconds and gives each of them one token.
        prefill_tokens_per_s: of one engine, when serving state is rebuilt.
        load_s: to load weights into an engine.
        train_tokens_per_s: of the learner, prompts included. train_base_s: of an optimizer step, whatever its size.
        grade_s: latency of a verifier.
        length_median, length_sigma: response lengths are log-normal, in tokens, cut at the response limit.
        prompt_tokens: of every prompt.
        solve_alpha, solve_beta: the chance that a response to a prompt is right is Beta-distributed over prompts.
        ungraded_rate: chance that a verifier cannot decide.
        engine_failure_rate: chance that a request breaks its engine.
        batching: ``static`` lets requests join only when the engine is empty.
    """

    decode_base_s: float = 0.010
    decode_per_request_s: float = 0.0001
    prefill_tokens_per_s: float = 50_000.0
    load_s: float = 2.0
    train_tokens_per_s: float = 50_000.0
    train_base_s: float = 1.0
    grade_s: float = 0.0
    length_median: float = 600.0
    length_sigma: float = 1.0
    prompt_tokens: int = 256
    solve_alpha: float = 0.7
    solve_beta: float = 0.7
    ungraded_rate: float = 0.0
    engine_failure_rate: float = 0.0
    batching: Literal["continuous", "static"] = "continuous"


class EngineSpec(Spec):
    """Rollout engines. ``running_requests`` is per engine; ``dtype`` as torch names it.

    Attributes:
        expert_parallel_size: GPUs that share the experts inside an engine.
        options: arguments of the engine itself, without their ``vllm_`` or ``sglang_``.
    """

    backend: Literal["local", "vllm", "sglang", "simulated"]
    count: int
    tensor_parallel_size: int
    running_requests: int
    dtype: Literal["float32", "bfloat16"]
    failure: Literal["replace", "drop", "fail"]
    expert_parallel_size: int = 1
    options: dict[str, Any] = {}
    simulation: SimulationSpec = Field(default_factory=SimulationSpec)


class LearnerSpec(Spec):
    """The learner. ``micro_batch_size`` is in sequences, or in packs when packing; ``packing_max_tokens`` is a pack.

    Attributes:
        expert_parallel_size: ranks that share the experts of a mixture-of-experts layer.
        cpu_threads: threads of PyTorch in this process; 0 is PyTorch's own choice.
    """

    backend: Literal["fsdp", "deepspeed"]
    ranks: int
    dtype: Literal["float32", "bfloat16"]
    micro_batch_size: int
    sequence_packing: bool
    packing_max_tokens: int
    activation_recompute: bool
    seed: int
    expert_parallel_size: int = 1
    cpu_threads: int = 0


class CheckpointSpec(Spec):
    """When checkpoints are written. ``interval`` is in collections; 0 is only at the end.

    Attributes:
        keep_last: newest ones kept; 0 keeps all. keep_every: also those of every so many collections; 0 is none.
        overlap: training goes on while a checkpoint is written, from a copy of the learner's state.
        grace_s: from a signal to the end of the process, the last checkpoint included.
    """

    save: bool
    interval: int
    keep_last: int
    keep_every: int
    overlap: bool = True
    grace_s: float = 120.0


class TrackingSpec(Spec):
    """Experiment tracker."""

    wandb_mode: Literal["disabled", "offline", "online"]
    wandb_team: str | None = None
    wandb_project: str | None = None
    wandb_group: str | None = None


class LaunchSpec(Spec):
    """How the run gets to where it trains.

    Attributes:
        env: environment variables of a submitted run. secrets: variable name to name of a secret.
        options: settings of the chosen backend, under their names in the run file.
        startup_timeout_s, heartbeat_timeout_s: for nodes to find each other, and to be heard of.
    """

    backend: Literal["local", "slurm", "beaker"]
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    options: dict[str, Any] = {}
    auto_resume: bool = True
    startup_timeout_s: float = 1200.0
    heartbeat_timeout_s: float = 120.0


class Placement(Spec):
    """Where one learner rank or one engine is. ``gpus`` are numbers on its node; none is a CPU process."""

    node: int = 0
    gpus: tuple[int, ...] = ()


class TopologySpec(Spec):
    """Which role is on which node and GPU; computed in ``plan/topology.py``.

    Attributes:
        gpus_per_node: of every node; 0 where the run asks for none.
        colocated: engines share the GPUs of the learner and take turns with it.
        learner: by rank. engines: in the order of their names; those of a tensor-parallel engine are on one node.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    colocated: bool = False
    learner: tuple[Placement, ...] = Field(default_factory=lambda: (Placement(),))
    engines: tuple[Placement, ...] = Field(default_factory=lambda: (Placement(),))

    @property
    def gpus(self) -> int:
        """GPUs that have a role, over all nodes."""
        return len({(place.node, gpu) for place in (*self.learner, *self.engines) for gpu in place.gpus})


class JobSpec(Spec):
    """A whole run, resolved."""

    schema_version: Literal[1] = 1
    name: str
    config_sha256: str
    model: ModelSpec
    output: OutputSpec
    data: DataSpec
    batch: BatchSpec
    sampling: SamplingSpec
    evaluation: EvaluationSpec
    optimizer: OptimizerSpec
    objective: ObjectiveSpec
    filter: FilterSpec
    sync: SyncSpec
    engine: EngineSpec
    learner: LearnerSpec
    checkpoint: CheckpointSpec
    tracking: TrackingSpec
    launch: LaunchSpec
    topology: TopologySpec = Field(default_factory=TopologySpec)

    def to_json(self) -> str:
        """Return the text of ``job.json``: sorted keys, so that equal jobs give equal bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "JobSpec":
        """Read ``job.json``; the inverse of :meth:`to_json`."""
        return cls.model_validate_json(text)

    @classmethod
    def read(cls, path: Path) -> "JobSpec":
        """Read a ``job.json`` file."""
        return cls.from_json(path.read_text())

    def sha256(self) -> str:
        """Return the hash that receipts record."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()
