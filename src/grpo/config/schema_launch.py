"""How a run gets to its machines and who is told: [launch], [tracking], [runtime], [compiler_cache]."""

from typing import Annotated, Literal

from grpo.config.schema_base import Section, Unsupported, key

_CLUSTER = "submission to SLURM and Beaker is not built yet; set launch.backend to local to train on this machine"
_WANDB = "the W&B sink is not built yet; metrics are in metrics.jsonl"
_COMPILE = "compiled kernels and their cache are not built yet"
DURATION = r"^(\d+[smhd])+$"


class WekaMount(Section):
    """A Weka file system in a Beaker job."""

    weka: str = key(..., "Name of the file system.", min_length=1)
    mount_path: str = key(..., "Where it is mounted.", pattern="^/")


class Coordination(Section):
    """How the nodes of a run find each other."""

    startup_timeout: float = key(1200.0, "How long nodes wait for each other at the start.", unit="seconds", gt=0)
    heartbeat_timeout: float = key(120.0, "Silence after which a node counts as lost.", unit="seconds", gt=0)


class Slurm(Section):
    """SLURM submission: what sbatch is told. Node and GPU counts follow from the placement."""

    account: str | None = key(None, "Account that is charged.", min_length=1)
    partition: str | None = key(None, "Partition.", min_length=1)
    qos: str | None = key(None, "Quality of service.", min_length=1)
    constraint: str | None = key(None, "Features that nodes must have.", min_length=1)
    exclude: str | None = key(None, "Nodes never to use, as sbatch lists them.", min_length=1)
    time: str = key(
        "24:00:00",
        "Time limit of one job: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.",
        pattern=r"^(\d+-)?\d+(:\d{1,2}){0,2}$",
    )
    exclusive: bool = key(True, "Take whole nodes.")
    mem: str | None = key(None, "Memory of a node, such as 512G; 0 is all of it.", pattern=r"^\d+[KMGT]?$")
    cpus_per_task: int | None = key(None, "CPU cores of a node.", unit="cores", ge=1)
    output: str | None = key(
        None, "File of the job's own output.", derived="output.root/logs/slurm-%j.out", min_length=1
    )
    signal_seconds: int = key(
        600, "Time before the limit at which the job is told to save and stop.", unit="seconds", ge=0
    )
    requeue: bool = key(True, "Start the job again after preemption or the loss of a node.")
    extra: list[str] = key([], "More #SBATCH directives, such as --comment=x.")
    submit_command: str = key("sbatch", "What submits a script; sites wrap sbatch.", min_length=1)
    network_interface: str | None = key(None, "Interface of NCCL and gloo, such as ib0.", min_length=1)
    setup: list[str] = key([], "Lines of shell that set the environment up, such as module load cuda.")
    container: str | None = key(None, "Container image that the run starts in.", min_length=1)
    container_runtime: Literal["apptainer", "enroot", "pyxis"] = key("apptainer", "What starts the container.")
    env_allow: list[str] = key([], "Variables of the submitting environment that the job gets; all others stay behind.")
    max_chain: int = key(1, "Jobs that one run may take, one after another.", unit="jobs", ge=1)


class Launch(Section):
    """Where the run is executed.

    workspace, budget, cluster, priority, min_runtime, timeout, auto_resume, shared_memory and weka_mounts are read by
    the beaker backend, [launch.slurm] by the slurm backend; a file may carry both, and launch.backend chooses.
    """

    backend: Annotated[
        Literal["local", "slurm", "beaker"] | None, Unsupported(_CLUSTER, values=("slurm", "beaker"), plans=True)
    ] = key(
        None,
        "local trains on this machine; slurm and beaker submit.",
        derived="beaker if a workspace is given, else slurm if [launch.slurm] is, else local",
    )
    workspace: str | None = key(None, "Beaker workspace, as organisation/name.", min_length=1)
    budget: str | None = key(None, "Beaker budget.", min_length=1)
    cluster: str | list[str] | None = key(None, "Beaker cluster, or a list of those that will do.")
    priority: Literal["low", "normal", "high", "urgent"] = key("normal", "Priority of a Beaker job.")
    min_runtime: str | None = key(None, "Time for which a Beaker job is not preempted, such as 1h.", pattern=DURATION)
    timeout: str | None = key(None, "Time limit of a Beaker job, such as 24h.", pattern=DURATION)
    auto_resume: bool = key(True, "Resume a submitted run after preemption.")
    gpus_per_replica: int | None = key(None, "GPUs of one node.", unit="GPUs", derived="8 for slurm and beaker", ge=1)
    shared_memory: str | None = key(
        None, "Shared memory of a Beaker node, such as 64GiB.", pattern=r"^\d+(\.\d+)?\s?([KMGT]i?B?)?$"
    )
    env: dict[str, str] = key(
        {}, "Environment variables of a submitted run. Rank, Ray and CUDA device variables are the run's own."
    )
    secrets: dict[str, str] = key(
        {}, "Environment variables whose values are secrets: variable name to name of the secret, never its value."
    )
    weka_mounts: list[WekaMount] = key([], "Weka file systems of a Beaker job.")
    coordination: Coordination | None = key(None, "How the nodes of a submitted run find each other.")
    slurm: Slurm | None = key(None, "Settings of SLURM submission.")


class Tracking(Section):
    """Experiment tracker."""

    wandb_mode: Annotated[
        Literal["disabled", "offline", "online"], Unsupported(_WANDB, values=("offline", "online"), plans=True)
    ] = key("disabled", "Whether metrics also go to W&B.")
    wandb_team: str | None = key(None, "Team (entity) of the run.")
    wandb_project: str | None = key(None, "Project of the run.")
    wandb_group: str | None = key(None, "Group of the run.")
    comparison_id: str | None = key(None, "Another name of wandb_group.")
    collect_dashboard: Annotated[bool, Unsupported("dashboard collection is not built yet", unless=(False,))] = key(
        False, "Collect the dashboard with the run."
    )


class Runtime(Section):
    """The process that trains."""

    cpu_threads: int = key(
        0,
        "Threads that PyTorch computes with on a CPU; 0 is its own choice, one a core. A small model is faster with 1.",
        unit="threads",
        ge=0,
    )
    row_specialization: Annotated[Literal["static", "dynamic"] | None, Unsupported(_COMPILE)] = key(
        None, "Whether compiled kernels are specialised to the number of rows."
    )


class CompilerCache(Section):
    """Cache of compiled kernels."""

    enabled: Annotated[bool, Unsupported(_COMPILE, unless=(False,))] = key(False, "Keep compiled kernels.")
    shared_root: Annotated[str | None, Unsupported(_COMPILE)] = key(None, "Folder shared between runs.")
    restore: Annotated[bool | None, Unsupported(_COMPILE, unless=(False,))] = key(None, "Start from the shared cache.")
    diagnostics: Annotated[bool | None, Unsupported(_COMPILE, unless=(False,))] = key(None, "Report cache hits.")
