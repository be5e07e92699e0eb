"""Rules between fields. All of them are checked, so that a user sees every problem at once.

A rule yields problems. One that reads a key whose own value is wrong is skipped (see :class:`BadKey`), so rules are
small: each is about one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grpo.config import checks_run, derive
from grpo.config.settings import BadKey, Settings
from grpo.errors import UserError

Rule = Callable[[Settings], Iterator[UserError]]


def check(settings: Settings) -> list[UserError]:
    """Return the problems of every rule."""
    problems: list[UserError] = []
    for rule in RULES:
        try:
            problems += list(rule(settings))
        except BadKey:
            continue
    return problems


def _at(settings: Settings, key: str, what: str, fix: str = "") -> UserError:
    return UserError(what, where=settings.where(key), fix=fix)


def _name(settings: Settings) -> Iterator[UserError]:
    if settings.value("name") is None:
        yield UserError("is missing", where=f"{settings.raw.name} name", fix='Add name = "my-run" as the first line.')


def _model(settings: Settings) -> Iterator[UserError]:
    if settings.value("model.source") is None:
        yield _at(
            settings, "model.source", "is missing", "Name a Hugging Face model folder, or builtin:tiny-arithmetic."
        )


def _output(settings: Settings) -> Iterator[UserError]:
    if settings.value("output.root") is None:
        yield _at(settings, "output.root", "is missing", "Name a fresh folder for everything the run writes.")
    if settings.given("output.hf_dir") and not settings.value("output.export_hf"):
        yield _at(settings, "output.hf_dir", "is given, but nothing is exported", "Set output.export_hf = true.")


def _data(settings: Settings) -> Iterator[UserError]:
    sources = [key for key in ("data.tasks", "data.prompt_data") if settings.value(key) is not None]
    if not sources:
        yield UserError(
            "no training data",
            where=settings.raw.where(("data",)),
            fix="Add [[data.tasks]] entries, or data.prompt_data.",
        )
    if len(sources) == 2:
        other = settings.where("data.prompt_data")
        yield _at(settings, "data.tasks", f"training data is given twice, also at {other}", "Keep one of them.")


def _eval_files(settings: Settings) -> Iterator[UserError]:
    files = settings.value("data.eval_prompt_data")
    if not files:
        return
    key = "data.eval_prompt_data"
    if settings.value("data.prompt_data") is None:
        yield _at(settings, key, "needs data.prompt_data", "Held-out prompts of tasks are set by their eval_count.")
    if len(files) % 2:
        yield _at(settings, key, f"has {len(files)} entries", 'Alternate name and path: ["dev", "dev.jsonl"].')
    names = files[::2]
    if len(set(names)) < len(names):
        yield _at(settings, key, "has a name twice", "Give each file a name of its own.")


def _group(settings: Settings) -> Iterator[UserError]:
    if settings.value("inference.samples_per_prompt") == 1 and settings.value("training.filter_zero_std_groups"):
        yield _at(
            settings,
            "inference.samples_per_prompt",
            "a group of 1 response has no variation, so training.filter_zero_std_groups drops every group",
            "Set it to 2 or more, or the filter to false.",
        )


def _batch(settings: Settings) -> Iterator[UserError]:
    groups, samples = settings.value("inference.rollout_batch_size"), settings.value("inference.samples_per_prompt")
    batch, key = derive.global_batch_size(settings).value, "inference.global_batch_size"
    if batch % samples:
        near = max(samples, batch // samples * samples)
        yield _at(
            settings,
            key,
            f"{batch} responses are not a whole number of groups of {samples}",
            f"The nearest below that is: {near}." if near < batch else f"The smallest is {near}.",
        )
    elif groups * samples % batch:
        yield _at(
            settings,
            key,
            f"{batch} responses do not divide the collection of {groups} x {samples} = {groups * samples}",
            f"{_fitting_steps(groups, batch // samples) * samples} does.",
        )


def _fitting_steps(groups: int, at_most: int) -> int:
    """Return the largest divisor of ``groups`` up to ``at_most``; the search is bounded."""
    return next(
        (step for step in range(min(at_most, groups), max(0, at_most - 10**5), -1) if groups % step == 0), groups
    )


def _response_length(settings: Settings) -> Iterator[UserError]:
    context = settings.value("inference.max_context_length")
    for key, length in (
        ("inference.max_response_length", derive.max_response_length(settings)),
        ("inference.eval_max_response_length", derive.eval_max_response_length(settings)),
    ):
        if length.kind != "derived" and length.value >= context:
            yield _at(
                settings,
                key,
                f"{length.value} tokens leave no room for a prompt in the context of {context}",
                f"Set it below {context}, or raise max_context_length.",
            )


def _prompt_length(settings: Settings) -> Iterator[UserError]:
    prompt, context = settings.get("miles.rollout_max_prompt_len"), settings.value("inference.max_context_length")
    if not prompt.given:
        return
    if prompt.value >= context:
        yield _at(
            settings,
            prompt.key,
            f"{prompt.value} tokens leave no room for a response in the context of {context}",
            f"Set it below {context}, or raise max_context_length.",
        )
        return
    response = max(derive.max_response_length(settings).value, derive.eval_max_response_length(settings).value)
    if response < context < prompt.value + response:
        yield _at(
            settings,
            prompt.key,
            f"{prompt.value} prompt + {response} response tokens exceed the context of {context}",
            f"Set it to at most {context - response}.",
        )


def _packing(settings: Settings) -> Iterator[UserError]:
    pack, context = settings.value("trainer.packing_max_tokens"), settings.value("inference.max_context_length")
    if pack is not None and pack < context:
        yield _at(
            settings,
            "trainer.packing_max_tokens",
            f"{pack} tokens cannot hold a sequence of max_context_length {context}",
            f"Set it to at least {context}.",
        )


def _lag(settings: Settings) -> Iterator[UserError]:
    lag = derive.max_policy_lag(settings)
    if lag.value > 0 and not derive.asynchronous(settings).value:
        yield _at(
            settings,
            "async.max_weight_staleness",
            f"a lag of {lag.value} in a synchronous run, whose lag is 0",
            "Set async.fully_async = true, or remove it.",
        )


def _placement(settings: Settings) -> Iterator[UserError]:
    if derive.placement_mode(settings).value != "colocated":
        return
    fix = 'Set inference.placement_mode = "disaggregated".'
    if derive.asynchronous(settings).value:
        yield _at(settings, "async.fully_async", "an asynchronous run cannot be colocated", fix)
    elif (mode := derive.publication_mode(settings).value) != "barrier":
        yield _at(settings, "core.publication_mode", f"{mode} cannot be colocated", fix)


def _refresh(settings: Settings) -> Iterator[UserError]:
    """Refresh lets a response span versions: its tokens need importance weights, and those need the full softmax."""
    if derive.publication_mode(settings).value != "refresh":
        return
    if derive.correction(settings).value == "none":
        key = "async.off_policy_correction"
        key = key if settings.given(key) else "miles.use_tis"
        yield _at(settings, key, "refresh needs importance correction", "Remove it, or use barrier.")
    if (temperature := settings.value("miles.rollout_temperature")) != 1:
        yield _at(settings, "miles.rollout_temperature", f"refresh needs temperature 1, not {temperature:g}")
    if (steps := derive.steps_per_collection(settings).value) > 1:
        yield _at(
            settings,
            "inference.global_batch_size",
            f"refresh needs one optimizer step per collection, not {steps}",
            f"Set it to {derive.collection_responses(settings)}, or use barrier.",
        )


def _full_softmax(settings: Settings) -> Iterator[UserError]:
    """Behavior log-probs are those before top-p and top-k; a ratio over them is only right when both are off."""
    if derive.correction(settings).value == "none":
        return
    why = "importance correction needs the full distribution"
    if (top_p := settings.value("inference.top_p")) != 1:
        yield _at(settings, "inference.top_p", f"{top_p:g} cuts the distribution; {why}", "Set it to 1.")
    if top_k := settings.value("inference.top_k"):
        yield _at(settings, "inference.top_k", f"{top_k} cuts the distribution; {why}", "Set it to 0.")


def _correction(settings: Settings) -> Iterator[UserError]:
    mode, tis = settings.get("async.off_policy_correction"), settings.get("miles.use_tis")
    if mode.given and tis.given and tis.value != (mode.value != "none"):
        yield _at(
            settings,
            "async.off_policy_correction",
            f'"{mode.value}" contradicts miles.use_tis = {str(tis.value).lower()} at {tis.place}',
            "Keep one of them.",
        )
    low, high = settings.value("async.icepop_low"), settings.value("async.icepop_high")
    if low >= high:
        key = "async.icepop_low" if settings.given("async.icepop_low") else "async.icepop_high"
        yield _at(settings, key, f"icepop keeps ratios in [{low:g}, {high:g}], which is empty", "Set low below high.")


def _checkpoints(settings: Settings) -> Iterator[UserError]:
    if settings.given("training.save_interval") and not settings.value("training.save_checkpoints"):
        yield _at(
            settings,
            "training.save_interval",
            "contradicts save_checkpoints = false",
            "Remove it, or set save_checkpoints = true.",
        )


def _evaluation(settings: Settings) -> Iterator[UserError]:
    initial, skip = settings.get("evaluation.initial"), settings.get("training.skip_eval_before_train")
    if initial.given and skip.given and initial.value == skip.value:
        yield _at(
            settings,
            "evaluation.initial",
            f"contradicts training.skip_eval_before_train at {skip.place}",
            "Keep one of them.",
        )


def _schedule(settings: Settings) -> Iterator[UserError]:
    warmup = settings.value("optimizer.lr_warmup_iters")
    steps = settings.value("training.num_rollouts") * derive.steps_per_collection(settings).value
    if warmup > max(steps, 0):
        yield _at(
            settings,
            "optimizer.lr_warmup_iters",
            f"a warmup of {warmup} optimizer steps in a run of {steps}",
            f"Set it to at most {steps}.",
        )


def _engines(settings: Settings) -> Iterator[UserError]:
    gpus, parallel = settings.value("inference.gpus"), settings.value("inference.rollout_tensor_parallel_size")
    if gpus and gpus % parallel:
        yield _at(
            settings,
            "inference.gpus",
            f"{gpus} GPUs do not divide into engines of {parallel}",
            f"Set it to a multiple of {parallel}.",
        )


def _drain(settings: Settings) -> Iterator[UserError]:
    """Engines that are updated one after another serve different versions at a time."""
    if derive.publication_mode(settings).value != "engine_drain":
        return
    if settings.value("async.rollout_submission_granularity") == "sample":
        yield _at(
            settings,
            "async.rollout_submission_granularity",
            "engine_drain keeps a group on one engine and version",
            'Set it to "group".',
        )


RULES: tuple[Rule, ...] = (
    _name,
    _model,
    _output,
    _data,
    _eval_files,
    _group,
    _batch,
    _response_length,
    _prompt_length,
    _packing,
    _lag,
    _placement,
    _refresh,
    _full_softmax,
    _correction,
    _checkpoints,
    _evaluation,
    _schedule,
    _engines,
    _drain,
    *checks_run.RULES,
)
