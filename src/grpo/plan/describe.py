"""A resolved job in words: what ``grpo plan`` shows. Pure text, no printing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo.plan.inspect import config_of, path_kind
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths
from grpo.plan.resolve import Plan
from grpo.plan.shapes import parameter_count

MODES = {
    "barrier": "barrier: every response finishes on the weights it began with, then all engines load the new ones",
    "refresh": "refresh: decoding pauses, engines load the new weights and rebuild their caches, decoding goes on",
    "engine_drain": "engine_drain: each engine finishes what it has and loads, while its peers keep working",
}


def headline(job: JobSpec) -> str:
    """Return what the run is, in one line."""
    kind = "asynchronous" if job.sync.asynchronous else "synchronous"
    return (
        f"{job.name}: {kind} GRPO on {_backend(job)}, {_many(job.batch.num_rollouts, 'collection')} = "
        f"{_many(job.batch.total_steps, 'optimizer step')}"
    )


def facts(job: JobSpec) -> list[tuple[str, str]]:
    """Return ``(label, text)`` of each aspect of the run, in reading order."""
    batch, sync, objective = job.batch, job.sync, job.objective
    return [
        ("model", _model(job)),
        ("data", _data(job)),
        (
            "batch",
            f"{_many(batch.rollout_batch_size, 'group')} x {_many(batch.samples_per_prompt, 'response')} = "
            f"{_many(batch.rollout_batch_size * batch.samples_per_prompt, 'response')} a collection, trained as "
            f"{_many(batch.steps_per_collection, 'optimizer step')} of {_many(batch.global_batch_size, 'response')}",
        ),
        (
            "length",
            f"prompt up to {batch.max_prompt_length}, response up to {batch.max_response_length}, context "
            f"{batch.max_context_length:,} tokens",
        ),
        ("learner", _learner(job)),
        (
            "objective",
            f"{objective.policy_loss}, clip {objective.clip_low:g} / {objective.clip_high:g}, advantage "
            f"{'divided by the std of' if objective.advantage_std else 'minus the mean of'} the group, loss per "
            f"{objective.denominator}, correction {objective.correction}",
        ),
        ("filter", _filter(job)),
        ("weights", MODES[sync.publication_mode]),
        ("pacing", _pacing(job)),
        ("evaluation", _evaluation(job)),
        ("output", _output(job)),
    ]


def origins(plan: Plan, *, all_values: bool) -> list[tuple[str, str, str]]:
    """Return ``(key, value, origin)`` of the values that the user gave, or of all values."""
    rows = []
    for path, origin in plan.provenance.items():
        if origin.kind in ("file", "set"):
            rows.append((origin.key, _value(origin.value), origin.place))
        elif all_values:
            text = f"derived: {origin.arithmetic}" if origin.kind == "derived" else "default"
            rows.append((origin.key or path, _value(origin.value), text))
    return rows


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _backend(job: JobSpec) -> str:
    return {"local": "this machine", "slurm": "SLURM", "beaker": "Beaker"}[job.launch.backend]


def _model(job: JobSpec) -> str:
    config = config_of(job.model.source, job.model.plan_config)
    if config is None:
        return f"{job.model.source} (not visible from here)"
    count = parameter_count(config)
    size = f"{count:,} parameters" if count is not None else "unknown size"
    return f"{job.model.source} ({config.get('model_type', 'unknown kind')}, {size})"


def _data(job: JobSpec) -> str:
    data = job.data
    if data.prompt_data is not None:
        held_out = ", ".join(f"{file.name} from {file.path}" for file in data.eval_prompt_data) or "none"
        text = f"{data.prompt_data}; held out: {held_out}"
    else:
        text = "; ".join(
            f"{task.task}: {task.train_count:,} training and {task.eval_count:,} held-out prompts"
            for task in data.tasks
        )
    return f"{text}; {'shuffled by' if data.shuffle else 'in order,'} seed {data.seed}"


def _learner(job: JobSpec) -> str:
    learner, optimizer = job.learner, job.optimizer
    rows = _many(learner.micro_batch_size, "pack" if learner.sequence_packing else "sequence")
    pack = f" of up to {learner.packing_max_tokens:,} tokens" if learner.sequence_packing else ""
    return (
        f"{learner.backend}, {_many(learner.ranks, 'rank')}, {learner.dtype}, {rows}{pack} a "
        f"micro-batch; AdamW at {optimizer.learning_rate:g}, {optimizer.schedule}"
    )


def _filter(job: JobSpec) -> str:
    parts = ["drops groups whose rewards do not vary" if job.filter.zero_std else "keeps groups without variation"]
    if job.filter.exclude_truncated:
        parts.append("leaves truncated responses out")
    ungraded = {
        "exclude": "leaves ungraded ones out",
        "zero": "counts ungraded ones as 0",
        "raise": "stops on ungraded",
    }
    parts.append(ungraded[job.filter.ungraded])
    return ", ".join(parts)


def _pacing(job: JobSpec) -> str:
    sync = job.sync
    text = f"at most {_many(sync.max_groups_in_system, 'group')} in the system, buffer of {sync.buffer_groups:,}"
    if not sync.asynchronous:
        return f"lag 0; {text}"
    late = "generated again" if sync.stale == "retry" else "dropped"
    return f"lag up to {_many(sync.max_policy_lag, 'optimizer step')}, older groups are {late}; {text}"


def _evaluation(job: JobSpec) -> str:
    times = ["before"] if job.evaluation.initial else []
    if job.evaluation.interval:
        times.append(f"every {_many(job.evaluation.interval, 'collection')}")
    times += ["after"] if job.evaluation.final else []
    how = "greedy" if job.sampling.eval_temperature == 0 else f"temperature {job.sampling.eval_temperature:g}"
    return f"{', '.join(times)} ({how})" if times else "none"


def _output(job: JobSpec) -> str:
    root = Path(job.output.root)
    paths = RunPaths(root)
    used = path_kind(root) == "file" or (path_kind(root) == "folder" and any(root.iterdir()))
    state = "used: a run would be refused" if used else "fresh"
    if used and paths.result.exists():
        state = "holds a complete run: another one would be refused"
    elif used and paths.job.exists():
        state = "holds an unfinished run: it would go on"
    if job.launch.backend != "local":
        state = "on the nodes of the run"
    return f"{root} ({state}){f'; export in {job.output.hf_dir}' if job.output.export_hf else ''}"
