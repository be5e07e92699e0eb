"""Numbers that follow from other keys: every formula of the configuration, each in one place.

Units: groups (prompts), responses (samples), optimizer steps, tokens. A function returns what was given if the key was
given, else the derived value with its arithmetic. Each may raise :class:`~grpo.config.settings.BadKey`.
"""

from __future__ import annotations

import math

from grpo.config.engine_args import ENGINES
from grpo.config.provenance import Sourced, derived, taken
from grpo.config.settings import Settings

ENGINE_OF = {
    "radix_cache": "sglang",
    "disable_radix_cache": "sglang",
    "mamba_radix_cache_strategy": "sglang",
    "enable_mixed_chunk": "sglang",
    "sglang_server_concurrency": "sglang",
}
"""Declared keys of [inference] that only one engine reads."""
OPTION_OF = {
    "radix_cache": "disable_radix_cache",
    "mamba_radix_cache_strategy": "mamba_radix_cache_strategy",
    "enable_mixed_chunk": "enable_mixed_chunk",
}
"""Those of them that are arguments of the engine, under the name that it has for them."""
RUNNING_KEYS = {
    "vllm": ("vllm_max_num_seqs",),
    "sglang": ("sglang_max_running_requests", "sglang_server_concurrency"),
}
"""Limits of the requests that one engine runs at the same time."""
USUAL_RUNNING = 256
"""Requests that a server engine runs at the same time where no limit is given; the engines choose by GPU themselves."""


def collection_responses(settings: Settings) -> int:
    """Responses of one collection: ``rollout_batch_size x samples_per_prompt``."""
    return settings.value("inference.rollout_batch_size") * settings.value("inference.samples_per_prompt")


def global_batch_size(settings: Settings) -> Sourced:
    """Responses of one optimizer step; by default the whole collection."""
    if settings.given("inference.global_batch_size"):
        return taken(settings, "inference.global_batch_size")
    groups, samples = settings.value("inference.rollout_batch_size"), settings.value("inference.samples_per_prompt")
    return derived(
        groups * samples,
        "inference.global_batch_size",
        f"{groups} groups x {samples} samples = {groups * samples} responses",
        "inference.rollout_batch_size",
        "inference.samples_per_prompt",
    )


def steps_per_collection(settings: Settings) -> Sourced:
    """Optimizer steps of one collection: ``rollout_batch_size x samples_per_prompt / global_batch_size``.

    The division is exact in a valid configuration; :mod:`grpo.config.checks` sees to it.
    """
    responses, batch = collection_responses(settings), global_batch_size(settings).value
    return derived(
        responses // batch,
        "inference.global_batch_size",
        f"{responses} responses / {batch} a step = {responses // batch} steps",
        "inference.rollout_batch_size",
        "inference.samples_per_prompt",
        "inference.global_batch_size",
    )


def max_response_length(settings: Settings) -> Sourced:
    """Tokens of a response: half of the context, or what a given prompt limit leaves of it."""
    key = "inference.max_response_length"
    if settings.given(key):
        return taken(settings, key)
    context, prompt = settings.value("inference.max_context_length"), settings.get("miles.rollout_max_prompt_len")
    if prompt.given:
        left = context - prompt.value
        text = f"{context} context - {prompt.value} prompt = {left} tokens"
        return derived(left, key, text, "inference.max_context_length", "miles.rollout_max_prompt_len")
    half = context // 2
    return derived(half, key, f"{context} context / 2 = {half} tokens", "inference.max_context_length")


def eval_max_response_length(settings: Settings) -> Sourced:
    """Tokens of a response in evaluation; by default as in training."""
    key = "inference.eval_max_response_length"
    if settings.given(key):
        return taken(settings, key)
    length = max_response_length(settings).value
    return derived(length, key, f"as in training = {length} tokens", "inference.max_response_length")


def max_prompt_length(settings: Settings) -> Sourced:
    """Tokens of a prompt: what the longer of the two response limits leaves of the context."""
    key = "miles.rollout_max_prompt_len"
    if settings.given(key):
        return taken(settings, key)
    context = settings.value("inference.max_context_length")
    response = max(max_response_length(settings).value, eval_max_response_length(settings).value)
    return derived(
        context - response,
        key,
        f"{context} context - {response} response = {context - response} tokens",
        "inference.max_context_length",
        "inference.max_response_length",
        "inference.eval_max_response_length",
    )


def asynchronous(settings: Settings) -> Sourced:
    """Whether generation goes on while the learner trains: ``async.fully_async``, or low-level a lag above 0."""
    key = "async.fully_async"
    if settings.given(key) or not settings.low_level:
        return taken(settings, key)
    lag = settings.value("async.max_weight_staleness") or 0
    text = f"core.max_policy_lag {lag} > 0" if lag else "core.max_policy_lag is 0"
    return derived(lag > 0, key, text, "core.max_policy_lag")


def max_policy_lag(settings: Settings) -> Sourced:
    """Optimizer steps: structured asynchronous runs 6, all others 0."""
    key = "async.max_weight_staleness"
    if settings.given(key):
        return taken(settings, key)
    if asynchronous(settings).value and not settings.low_level:
        return derived(6, key, "default of an asynchronous run = 6 steps", "async.fully_async")
    return derived(0, key, "default of a synchronous or low-level run = 0 steps", "async.fully_async")


def publication_mode(settings: Settings) -> Sourced:
    """Structured asynchronous runs refresh, all others barrier."""
    key = "core.publication_mode"
    if settings.given(key):
        return taken(settings, key)
    if asynchronous(settings).value and not settings.low_level:
        return derived("refresh", key, "default of an asynchronous run", "async.fully_async")
    return derived("barrier", key, "default of a synchronous or low-level run", "async.fully_async")


def engine_backend(settings: Settings) -> Sourced:
    """The engine whose own arguments are given, else the local one."""
    key = "inference.backend"
    if settings.given(key):
        return taken(settings, key)
    names = [*settings.raw.table("inference"), *settings.raw.table("miles")]
    for engine in ENGINES:
        found = sorted(name for name in names if name.startswith(f"{engine}_") or ENGINE_OF.get(name) == engine)
        if found:
            return derived(engine, key, f"inference.{found[0]} is given", f"inference.{found[0]}")
    return derived("local", key, "no key of another engine is given")


def launch_backend(settings: Settings) -> Sourced:
    """Beaker if a workspace is given, SLURM if its table is, else this machine."""
    key = "launch.backend"
    if settings.given(key):
        return taken(settings, key)
    for backend, sign in (("beaker", "launch.workspace"), ("slurm", "launch.slurm")):
        if settings.given(sign):
            return derived(backend, key, f"{sign} is given", sign)
    return derived("local", key, "neither launch.workspace nor launch.slurm is given")


def placement_mode(settings: Settings) -> Sourced:
    """Colocated for vLLM and SGLang; the local engine holds weights of its own, and a simulated one has no GPUs."""
    key = "inference.placement_mode"
    if settings.given(key):
        return taken(settings, key)
    backend = engine_backend(settings).value
    mode = "colocated" if backend in ENGINES else "disaggregated"
    return derived(mode, key, f"default of inference.backend {backend}", "inference.backend")


def engine_options(settings: Settings) -> Sourced:
    """Arguments of the engine itself, without the engine's name in front: what the run passes on to it."""
    backend = engine_backend(settings).value
    if backend not in ENGINES:
        return derived({}, "inference", f"the {backend} engine takes no arguments of its own")
    given = {key: value for key, value in settings.raw.table("inference").items() if key.startswith(f"{backend}_")}
    options = {key.removeprefix(f"{backend}_"): value for key, value in given.items() if key not in ENGINE_OF}
    names = [f"inference.{key}" for key in given if key not in ENGINE_OF]
    for key, name in OPTION_OF.items():
        setting = settings.get(f"inference.{key}")
        if setting.value is not None and backend == "sglang":
            options[name] = not setting.value if key == "radix_cache" else setting.value
            names.append(setting.key)
    text = f"{len(options)} argument{'' if len(options) == 1 else 's'} of {backend} given"
    return derived(dict(sorted(options.items())), "inference", text, *names)


def running_requests(settings: Settings) -> Sourced:
    """Responses that one engine decodes at the same time: the smallest limit that is given."""
    backend = engine_backend(settings).value
    limits = {key: value for key in RUNNING_KEYS.get(backend, ()) if (value := _option(settings, key)) is not None}
    if backend not in ENGINES:
        return taken(settings, "inference.local_running_requests")
    if not limits:
        key = f"inference.{RUNNING_KEYS[backend][0]}"
        return derived(USUAL_RUNNING, key, f"default of a server engine = {USUAL_RUNNING} requests")
    least = min(limits, key=lambda key: limits[key])
    text = " and ".join(f"{key} {value}" for key, value in limits.items())
    return derived(limits[least], f"inference.{least}", text, *(f"inference.{key}" for key in limits))


def _option(settings: Settings, key: str) -> int | None:
    value = settings.raw.table("inference").get(key)
    return None if f"inference.{key}" in settings.bad or not isinstance(value, int) else value


def router_weight(settings: Settings, key: str, low_level: float) -> Sourced:
    """Weight of a router loss: ``low_level`` for a low-level file, 0 with workflow sections."""
    if settings.given(key):
        return taken(settings, key)
    if settings.low_level:
        return derived(low_level, key, f"default of a low-level run = {low_level:g}")
    return derived(0.0, key, "default with workflow sections = 0")


def correction(settings: Settings) -> Sourced:
    """Importance correction to the policy that sampled: ``tis`` unless another is asked for."""
    key = "async.off_policy_correction"
    if not settings.given(key) and not settings.value("miles.use_tis"):
        return derived("none", key, "miles.use_tis is false", "miles.use_tis")
    return taken(settings, key)


def advantage_std(settings: Settings) -> Sourced:
    """Whether advantages are divided by the group's standard deviation: low-level yes, structured no."""
    key = "miles.disable_grpo_std_normalization"
    setting = settings.get(key)
    if setting.given:
        origin = taken(settings, key)
        return Sourced(not origin.value, origin.kind, origin.key, origin.place, "not disabled" * (not origin.value))
    if settings.low_level:
        return derived(True, key, "default of a low-level run: divided by the group's standard deviation")
    return derived(False, key, "default with workflow sections: not divided")


def max_groups_in_system(settings: Settings) -> Sourced:
    """Groups admitted and not yet trained or ended: the pacing cap.

    ``(floor(max_policy_lag / steps_per_collection) + 1) x rollout_batch_size``: with FIFO, group number ``n`` of the
    system is trained ``floor(n / rollout_batch_size)`` collections from now, each ``steps_per_collection`` versions
    long, so none of this many can age out for lack of a consumer. ``async_max_concurrent_samples``, rounded up to
    whole groups, bounds it further, but never below one collection, which the learner needs.
    """
    key = "async.async_max_concurrent_samples"
    groups = settings.value("inference.rollout_batch_size")
    if not asynchronous(settings).value:
        return derived(groups, key, f"synchronous: one collection = {groups} groups", "inference.rollout_batch_size")
    lag, steps = max_policy_lag(settings).value, max(1, steps_per_collection(settings).value)
    cap = (lag // steps + 1) * groups
    text = f"(floor({lag} lag / {steps} steps) + 1) x {groups} groups = {cap}"
    inputs = ["async.max_weight_staleness", "inference.global_batch_size", "inference.rollout_batch_size"]
    limit, limited_by = settings.value(key), [key]
    if limit is None:
        limit, limited_by = _server_limit(settings)
    if limit is not None:
        samples = settings.value("inference.samples_per_prompt")
        bound = max(groups, -(-limit // samples))
        inputs += limited_by
        if bound < cap:
            text = f"min({text}, max({groups}, ceil({limit} responses / {samples})) = {bound}) = {bound}"
            cap = bound
    return derived(cap, key, text, *inputs)


def _server_limit(settings: Settings) -> tuple[int | None, list[str]]:
    """Responses that the engines are to hold, twice what they can run at a time; None where no limit is given."""
    running = running_requests(settings)
    if engine_backend(settings).value not in ENGINES or not running.inputs:
        return None, []
    return 2 * engine_count(settings).value * running.value, [*running.inputs, "inference.gpus"]


def buffer_groups(settings: Settings) -> Sourced:
    """Capacity of the buffer: ``max(rollout_batch_size, floor(capacity_factor x rollout_batch_size))`` groups."""
    key = "async.async_data_buffer_capacity_factor"
    factor, groups = settings.value(key), settings.value("inference.rollout_batch_size")
    capacity = max(groups, math.floor(factor * groups))
    text = f"max({groups}, floor({factor:g} x {groups})) = {capacity} groups"
    return derived(capacity, key, text, key, "inference.rollout_batch_size")


def starvation_groups(settings: Settings) -> Sourced:
    """Groups that may end in a row without one that can be trained: by default 20 collections."""
    key = "training.starvation_groups"
    if settings.given(key):
        return taken(settings, key)
    groups = settings.value("inference.rollout_batch_size")
    return derived(20 * groups, key, f"20 x {groups} groups = {20 * groups}", "inference.rollout_batch_size")


def engine_count(settings: Settings) -> Sourced:
    """Engines: ``inference.gpus / rollout_tensor_parallel_size``, colocated the learner's GPUs; without GPUs one."""
    if engine_backend(settings).value == "local":
        return taken(settings, "inference.local_engines")
    key = "inference.gpus"
    gpus, parallel = settings.value(key), settings.value("inference.rollout_tensor_parallel_size")
    if gpus is None and placement_mode(settings).value == "colocated":
        gpus = (settings.value("trainer.gpus") or 0) * settings.value("trainer.trainer_num_nodes")
    if not gpus:
        return derived(1, key, "one engine without GPUs of its own", key)
    count = gpus // parallel
    return derived(
        count, key, f"{gpus} GPUs / {parallel} an engine = {count}", key, "inference.rollout_tensor_parallel_size"
    )


def learner_ranks(settings: Settings) -> Sourced:
    """Ranks of the learner: ``trainer_num_nodes x gpus``; without GPUs one."""
    key = "trainer.gpus"
    gpus, nodes = settings.value(key) or 1, settings.value("trainer.trainer_num_nodes")
    return derived(
        gpus * nodes, key, f"{nodes} node x {gpus} process = {gpus * nodes}", "trainer.trainer_num_nodes", key
    )


def has_eval(settings: Settings) -> bool:
    """Whether there is held-out data."""
    tasks = settings.value("data.tasks") or []
    return any(task.eval_count for task in tasks) or bool(settings.value("data.eval_prompt_data"))


def eval_initial(settings: Settings) -> Sourced:
    """Whether version 0 is evaluated: by default if there is held-out data and it is not skipped."""
    key = "evaluation.initial"
    if not has_eval(settings):
        return derived(False, key, "no held-out data", "data.tasks", "data.eval_prompt_data")
    if settings.given(key):
        return taken(settings, key)
    skip = settings.value("training.skip_eval_before_train")
    text = "training.skip_eval_before_train is true" if skip else "held-out data exists"
    return derived(not skip, key, text, "training.skip_eval_before_train")


def eval_interval(settings: Settings) -> Sourced:
    """Collections between evaluations: by default 20 with held-out data; 0 is never in between."""
    key = "training.eval_interval"
    if not has_eval(settings):
        return derived(0, key, "no held-out data", "data.tasks", "data.eval_prompt_data")
    if settings.given(key):
        return taken(settings, key)
    return derived(20, key, "default with held-out data = 20 collections", "data.tasks", "data.eval_prompt_data")


def eval_final(settings: Settings) -> Sourced:
    """Whether the last version is evaluated: by default if there is held-out data."""
    if not has_eval(settings):
        return derived(False, "evaluation.final", "no held-out data", "data.tasks", "data.eval_prompt_data")
    return taken(settings, "evaluation.final")


def seed(settings: Settings, key: str) -> Sourced:
    """A seed of sampling or of the learner: by default ``data.seed``, so that one key repeats a whole run."""
    if settings.given(key):
        return taken(settings, key)
    value = settings.value("data.seed")
    return derived(value, key, f"data.seed = {value}", "data.seed")
