"""How a run gets to its machines and who is told: [launch], [tracking], [runtime], [compiler_cache]."""

from typing import Annotated, Any, Literal

from grpo.config.schema_base import Section, Unsupported, key

_CLUSTER = "submission to SLURM and Beaker is not built yet; a run starts on this machine"
_WANDB = "the W&B sink is not built yet; metrics are in metrics.jsonl"
_COMPILE = "compiled kernels and their cache are not built yet"


class WekaMount(Section):
    """A Weka file system in a Beaker job."""

    weka: str = key(..., "Name of the file system.")
    mount_path: str = key(..., "Where it is mounted.")


class Coordination(Section):
    """How the nodes of a run find each other."""

    startup_timeout: float = key(1200.0, "How long nodes wait for each other at the start.", unit="seconds", gt=0)
    heartbeat_timeout: float = key(120.0, "Silence after which a node counts as lost.", unit="seconds", gt=0)


class Launch(Section):
    """Where the run is executed."""

    backend: Annotated[Literal["local", "slurm", "beaker"], Unsupported(_CLUSTER, values=("slurm", "beaker"))] = key(
        "local", "local trains on this machine; slurm and beaker submit."
    )
    workspace: Annotated[str | None, Unsupported(_CLUSTER)] = key(None, "Beaker workspace.")
    budget: Annotated[str | None, Unsupported(_CLUSTER)] = key(None, "Beaker budget.")
    cluster: Annotated[Any, Unsupported(_CLUSTER)] = key(None, "Cluster, or a list of them.")
    priority: Annotated[Literal["low", "normal", "high", "urgent"] | None, Unsupported(_CLUSTER)] = key(
        None, "Priority of the job."
    )
    min_runtime: Annotated[Any, Unsupported(_CLUSTER)] = key(None, "Time for which the job is not preempted.")
    timeout: Annotated[Any, Unsupported(_CLUSTER)] = key(None, "Time limit of the job.")
    auto_resume: Annotated[bool | None, Unsupported(_CLUSTER)] = key(
        None, "Resume after preemption.", derived="true for a submitted run"
    )
    gpus_per_replica: Annotated[int | None, Unsupported(_CLUSTER)] = key(None, "GPUs of one node.", unit="GPUs")
    shared_memory: Annotated[Any, Unsupported(_CLUSTER)] = key(None, "Shared memory of a node.")
    env: Annotated[dict[str, Any], Unsupported(_CLUSTER, unless=({},))] = key({}, "Environment variables.")
    secrets: Annotated[dict[str, Any], Unsupported(_CLUSTER, unless=({},))] = key(
        {}, "Environment variables whose values are secrets: variable name to name of the secret."
    )
    weka_mounts: Annotated[list[WekaMount], Unsupported(_CLUSTER, unless=([],))] = key([], "Weka file systems.")
    coordination: Annotated[Coordination | None, Unsupported(_CLUSTER)] = key(None, "How nodes find each other.")
    slurm: Annotated[dict[str, Any] | None, Unsupported(_CLUSTER)] = key(None, "Settings of SLURM submission.")


class Tracking(Section):
    """Experiment tracker."""

    wandb_mode: Annotated[
        Literal["disabled", "offline", "online"], Unsupported(_WANDB, values=("offline", "online"))
    ] = key("disabled", "Whether metrics also go to W&B.")
    wandb_team: str | None = key(None, "Team (entity) of the run.")
    wandb_project: str | None = key(None, "Project of the run.")
    wandb_group: str | None = key(None, "Group of the run.")
    comparison_id: str | None = key(None, "Another name of wandb_group.")
    collect_dashboard: Annotated[bool, Unsupported("dashboard collection is not built yet", unless=(False,))] = key(
        False, "Collect the dashboard with the run."
    )


class Runtime(Section):
    """Compilation at run time."""

    row_specialization: Annotated[Literal["static", "dynamic"] | None, Unsupported(_COMPILE)] = key(
        None, "Whether compiled kernels are specialised to the number of rows."
    )


class CompilerCache(Section):
    """Cache of compiled kernels."""

    enabled: Annotated[bool, Unsupported(_COMPILE, unless=(False,))] = key(False, "Keep compiled kernels.")
    shared_root: Annotated[str | None, Unsupported(_COMPILE)] = key(None, "Folder shared between runs.")
    restore: Annotated[bool | None, Unsupported(_COMPILE, unless=(False,))] = key(None, "Start from the shared cache.")
    diagnostics: Annotated[bool | None, Unsupported(_COMPILE, unless=(False,))] = key(None, "Report cache hits.")
