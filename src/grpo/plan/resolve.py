"""From a run file to a job: every value computed once, each with its origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo.config import checks, derive
from grpo.config.findings import Findings, sort
from grpo.config.load import RawConfig, load
from grpo.config.provenance import Sourced, derived, from_setting, taken
from grpo.config.schema_base import Section, keys_of
from grpo.config.schema_launch import Coordination, Slurm
from grpo.config.settings import Settings, read_settings
from grpo.errors import ConfigErrors, UserError
from grpo.plan.inspect import inspect, model_source, plan_config_source, prompt_files
from grpo.plan.job import JobSpec, SimulationSpec
from grpo.plan.topology import TOPOLOGY_KEYS, placement_problems, topology

NOTHING = Findings()


@dataclass(frozen=True)
class Plan:
    """A resolved run file.

    Attributes:
        raw: the file as given.
        job: what will run.
        provenance: the origin of every value of the job, by its path: ``batch.steps_per_collection``.
        findings: warnings, and why the job cannot be run here; no errors.
    """

    raw: RawConfig
    job: JobSpec
    provenance: dict[str, Sourced]
    findings: Findings = NOTHING

    def require_runnable(self) -> None:
        """Raise ConfigErrors if ``grpo run`` must refuse the job as things are."""
        if self.findings.cannot_run and self.job.engine.backend != "simulated":  # a rehearsal needs none of it
            raise ConfigErrors(self.findings.cannot_run)

    def as_json(self) -> dict[str, Any]:
        """Return what ``grpo plan --json`` prints."""
        return {
            "job": self.job.model_dump(mode="json"),
            "provenance": {path: origin.as_json() for path, origin in self.provenance.items()},
        }


def plan(path: Path, overrides: Sequence[str] = ()) -> Plan:
    """Read and resolve a run file; writes nothing.

    Raises:
        UserError: the file cannot be read.
        ConfigErrors: the file, the model folder or the data has problems; all of them.
    """
    settings, found = find_problems(load(path, overrides))
    findings = sort(found)
    if findings.errors:
        raise ConfigErrors(findings.errors)
    return resolve(settings, findings)


@dataclass(frozen=True)
class Checked:
    """What :func:`check` found. ``plan`` is None where there are errors; ``prompt`` is the first training prompt."""

    findings: Findings
    plan: Plan | None = None
    prompt: str | None = None


def check(path: Path, overrides: Sequence[str] = ()) -> Checked:
    """Find everything about a run file, its data read whole; writes nothing.

    Raises:
        UserError: the file cannot be read.
    """
    from grpo.plan.prompts import prompt_problems  # reads data and tokenizer, which plan does not

    settings, found = find_problems(load(path, overrides))
    findings, shown = sort(found), None
    if not findings.errors:
        resolved = resolve(settings, findings)
        more, shown = prompt_problems(resolved.job, settings)
        findings = sort([*found, *more])
    if findings.errors:
        return Checked(findings, prompt=shown)
    return Checked(findings, resolve(settings, findings), shown)


def find_problems(raw: RawConfig) -> tuple[Settings, list[UserError]]:
    """Return the settings and all that is found about a file: of the schema, between fields, and of the files it names.

    What is found may be :class:`~grpo.config.findings.Advice` or :class:`~grpo.config.findings.NotRunnable`;
    :func:`~grpo.config.findings.sort` tells them apart.
    """
    settings, problems = read_settings(raw)
    return settings, problems + checks.check(settings) + inspect(settings) + placement_problems(settings)


def resolve(settings: Settings, findings: Findings = NOTHING) -> Plan:
    """Compute the job of settings that have no errors."""
    resolver = _Resolver(settings)
    for part in (_what, _geometry, _learning, _sync, _compute, _topology):
        part(resolver)
    return Plan(settings.raw, JobSpec.model_validate(resolver.tree), resolver.provenance, findings)


class _Resolver:
    """Collects the job as a tree, with the origin of every leaf."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tree: dict[str, Any] = {}
        self.provenance: dict[str, Sourced] = {}

    def put(self, path: str, origin: Sourced) -> None:
        """Set one value of the job, by its dotted path."""
        self.provenance[path] = origin
        table = self.tree
        *outer, last = path.split(".")
        for part in outer:
            table = table.setdefault(part, {})
        table[last] = origin.value

    def take(self, section: str, **keys: str) -> None:
        """Set values of one part of the job from settings: ``take("batch", num_rollouts="training.num_rollouts")``."""
        for name, key in keys.items():
            self.put(f"{section}.{name}", taken(self.settings, key))


def _what(resolver: _Resolver) -> None:
    """Set name, model, output, data, evaluation, checkpoints and tracking."""
    settings, put, take = resolver.settings, resolver.put, resolver.take
    put("schema_version", taken(settings, "schema_version"))
    put("name", taken(settings, "name"))
    put("config_sha256", derived(settings.raw.sha256, "", f"SHA-256 of the bytes of {Path(settings.raw.name).name}"))
    _put_replaced(resolver, "model.source", "model.source", model_source(settings))
    take("model", format="model.format")
    _put_replaced(resolver, "model.plan_config", "model.plan_config", plan_config_source(settings))
    root = settings.path("output.root")
    _put_replaced(resolver, "output.root", "output.root", str(root))
    take("output", export_hf="output.export_hf", rollout_sample_rate="output.rollout_sample_rate")
    if (hf_dir := settings.path("output.hf_dir")) is not None:
        _put_replaced(resolver, "output.hf_dir", "output.hf_dir", str(hf_dir))
    else:
        put("output.hf_dir", derived(f"{root}/export-hf", "output.hf_dir", "output.root/export-hf", "output.root"))
    _data(resolver)
    put("evaluation.initial", derive.eval_initial(settings))
    put("evaluation.interval", derive.eval_interval(settings))
    put("evaluation.final", derive.eval_final(settings))
    take("checkpoint", save="training.save_checkpoints", keep_last="core.checkpoint_keep_last")
    take("checkpoint", keep_every="core.checkpoint_keep_every", overlap="core.checkpoint_overlap")
    take("checkpoint", grace_s="core.grace_seconds")
    if settings.given("training.save_interval"):
        take("checkpoint", interval="training.save_interval")
    else:
        put("checkpoint.interval", derived(0, "training.save_interval", "only at the end"))
    take("tracking", wandb_mode="tracking.wandb_mode", wandb_team="tracking.wandb_team")
    take("tracking", wandb_project="tracking.wandb_project", wandb_group="tracking.wandb_group")
    _launch(resolver)


_BEAKER_KEYS = (
    *("workspace", "budget", "cluster", "priority", "min_runtime", "timeout", "gpus_per_replica", "shared_memory"),
    "weka_mounts",
)


def _launch(resolver: _Resolver) -> None:
    """Set how the run gets to its machines: what the chosen backend reads."""
    settings, put, take = resolver.settings, resolver.put, resolver.take
    backend = derive.launch_backend(settings)
    put("launch.backend", backend)
    take("launch", env="launch.env", secrets="launch.secrets", auto_resume="launch.auto_resume")
    coordination = settings.value("launch.coordination") or Coordination()
    for name in ("startup_timeout", "heartbeat_timeout"):
        put(f"launch.{name}_s", _inner(settings, "launch.coordination", name, getattr(coordination, name)))
    options: dict[str, Sourced] = {}
    if backend.value == "slurm":
        table = settings.value("launch.slurm") or Slurm()
        options = {name: _inner(settings, "launch.slurm", name, getattr(table, name)) for name in keys_of(Slurm)}
    elif backend.value == "beaker":
        options = {name: taken(settings, f"launch.{name}") for name in _BEAKER_KEYS}
        mounts = [mount.model_dump() for mount in options["weka_mounts"].value]
        options["weka_mounts"] = replace(options["weka_mounts"], value=mounts)
    if not options:
        put("launch.options", derived({}, "launch", "a run on this machine is not submitted"))
    for name, origin in options.items():
        put(f"launch.options.{name}", origin)


def _inner(settings: Settings, table: str, name: str, value: Any) -> Sourced:
    """Return the origin of a key of a table inside a section."""
    place = settings.raw.places.get((*table.split("."), name))
    if place is None:
        return Sourced(value, "default", f"{table}.{name}")
    return Sourced(value, "set" if place.is_set else "file", f"{table}.{name}", str(place))


def _put_replaced(resolver: _Resolver, path: str, key: str, value: str | None) -> None:
    """Set a path in its absolute form, with the origin of the text that was given."""
    origin = taken(resolver.settings, key)
    resolver.put(path, Sourced(value, origin.kind, origin.key, origin.place))


def _data(resolver: _Resolver) -> None:
    settings, put = resolver.settings, resolver.put
    resolver.take("data", seed="data.seed", shuffle="data.shuffle")
    tasks = settings.value("data.tasks") or []
    for index, task in enumerate(tasks):
        for name in type(task).model_fields:
            put(f"data.tasks.{index}.{name}", _task_key(settings, task, index, name))
    resolver.tree["data"]["tasks"] = [task.model_dump() for task in tasks]
    if not tasks:
        put("data.tasks", taken(settings, "data.tasks"))
        resolver.tree["data"]["tasks"] = []
    files = prompt_files(settings)
    train = next((str(path) for _, name, path in files if not name), None)
    _put_replaced(resolver, "data.prompt_data", "data.prompt_data", train)
    origin = taken(settings, "data.eval_prompt_data")
    evals = [{"name": name, "path": str(path)} for _, name, path in files if name]
    put("data.eval_prompt_data", Sourced(evals, origin.kind, origin.key, origin.place))


def _task_key(settings: Settings, task: Section, index: int, name: str) -> Sourced:
    place = settings.raw.places.get(("data", "tasks", index, name))
    key = f"data.tasks[{index}].{name}"
    if place is None:
        return Sourced(getattr(task, name), "default", key)
    return Sourced(getattr(task, name), "set" if place.is_set else "file", key, str(place))


def _geometry(resolver: _Resolver) -> None:
    """Set the batch geometry and sampling."""
    settings, put, take = resolver.settings, resolver.put, resolver.take
    take("batch", num_rollouts="training.num_rollouts", rollout_batch_size="inference.rollout_batch_size")
    take("batch", samples_per_prompt="inference.samples_per_prompt", max_context_length="inference.max_context_length")
    put("batch.global_batch_size", derive.global_batch_size(settings))
    put("batch.steps_per_collection", derive.steps_per_collection(settings))
    put("batch.max_prompt_length", derive.max_prompt_length(settings))
    put("batch.max_response_length", derive.max_response_length(settings))
    put("batch.eval_max_response_length", derive.eval_max_response_length(settings))
    take("sampling", temperature="miles.rollout_temperature", top_p="inference.top_p", top_k="inference.top_k")
    take("sampling", eval_temperature="miles.eval_temperature")
    take("sampling", eval_samples_per_prompt="miles.n_samples_per_eval_prompt")
    put("sampling.seed", derive.seed(settings, "miles.rollout_seed"))


def _learning(resolver: _Resolver) -> None:
    """Set the optimizer, the objective and the filters."""
    settings, put, take = resolver.settings, resolver.put, resolver.take
    take("optimizer", learning_rate="optimizer.learning_rate", schedule="optimizer.lr_decay_style")
    take("optimizer", warmup_steps="optimizer.lr_warmup_iters", weight_decay="optimizer.weight_decay")
    take("optimizer", beta1="optimizer.adam_beta1", beta2="optimizer.adam_beta2", eps="optimizer.adam_eps")
    take("optimizer", clip_grad="optimizer.clip_grad")
    put("objective.advantage_std", derive.advantage_std(settings))
    take("objective", policy_loss="training.policy_loss", denominator="training.loss_denominator")
    take("objective", clip_low="optimizer.eps_clip", clip_high="optimizer.eps_clip_high")
    take("objective", kl_coef="optimizer.kl_loss_coef", entropy_coef="optimizer.entropy_coef")
    put("objective.correction", derive.correction(settings))
    take("objective", tis_cap="async.tis_cap", icepop_low="async.icepop_low", icepop_high="async.icepop_high")
    put("objective.router_aux_weight", derive.router_weight(settings, "core.router_aux_loss_weight", 0.01))
    put("objective.router_z_weight", derive.router_weight(settings, "core.router_z_loss_weight", 1e-5))
    exclude = settings.get("miles.custom_reward_post_process_path")
    origin = from_setting(exclude)
    put("filter.exclude_truncated", Sourced(exclude.value is not None, origin.kind, origin.key, origin.place))
    take("filter", zero_std="training.filter_zero_std_groups", ungraded="training.ungraded")
    take("filter", max_attempts="training.max_group_attempts")
    take("filter", ungraded_window="training.ungraded_window", ungraded_limit="training.ungraded_limit")
    put("filter.starvation_groups", derive.starvation_groups(settings))


def _sync(resolver: _Resolver) -> None:
    """Set how generation and training overlap, and the deadlines."""
    settings, put, take = resolver.settings, resolver.put, resolver.take
    put("sync.asynchronous", derive.asynchronous(settings))
    put("sync.publication_mode", derive.publication_mode(settings))
    put("sync.max_policy_lag", derive.max_policy_lag(settings))
    put("sync.max_groups_in_system", derive.max_groups_in_system(settings))
    put("sync.buffer_groups", derive.buffer_groups(settings))
    take("sync", paced="async.paced")
    take("sync", stale="async.async_unused_samples_handler", straggler="async.straggler")
    take("sync", straggler_timeout_s="async.straggler_timeout", submission="async.rollout_submission_granularity")
    take("sync", drain_timeout_s="core.engine_drain_timeout", update_timeout_s="core.engine_update_timeout")
    take("sync", request_timeout_s="core.refresh_request_timeout", snapshot_capacity="core.snapshot_capacity")
    take("sync", watchdog_s="core.watchdog_seconds")
    take("sync", update_weight_buffer_bytes="inference.update_weight_buffer_size")


def _compute(resolver: _Resolver) -> None:
    """Set engines and learner."""
    settings, put, take = resolver.settings, resolver.put, resolver.take
    put("engine.backend", derive.engine_backend(settings))
    take("engine", tensor_parallel_size="inference.rollout_tensor_parallel_size", dtype="inference.dtype")
    take("engine", expert_parallel_size="inference.rollout_expert_parallel_size", failure="core.engine_failure")
    put("engine.running_requests", derive.running_requests(settings))
    put("engine.count", derive.engine_count(settings))
    put("engine.options", derive.engine_options(settings))
    _simulation(resolver)
    take("learner", backend="trainer.backend", dtype="trainer.dtype", micro_batch_size="trainer.micro_batch_size")
    take("learner", sequence_packing="trainer.sequence_packing", activation_recompute="trainer.activation_recompute")
    put("learner.ranks", derive.learner_ranks(settings))
    take("learner", cpu_threads="runtime.cpu_threads", expert_parallel_size="trainer.expert_parallel_size")
    put("learner.seed", derive.seed(settings, "miles.seed"))
    if settings.value("trainer.packing_max_tokens") is not None:
        take("learner", packing_max_tokens="trainer.packing_max_tokens")
    else:
        context = settings.value("inference.max_context_length")
        text = f"max_context_length = {context} tokens"
        put(
            "learner.packing_max_tokens",
            derived(context, "trainer.packing_max_tokens", text, "inference.max_context_length"),
        )


def _simulation(resolver: _Resolver) -> None:
    """Set the assumptions of a simulated fleet; other engines read none of them."""
    for name in SimulationSpec.model_fields:
        resolver.take("engine.simulation", **{name: f"simulation.{name}"})


def _topology(resolver: _Resolver) -> None:
    """Set which role is on which node and GPU."""
    result, arithmetic = topology(resolver.settings)
    for name, value in result.model_dump(mode="json").items():
        resolver.put(f"topology.{name}", derived(value, "topology", arithmetic, *TOPOLOGY_KEYS))
