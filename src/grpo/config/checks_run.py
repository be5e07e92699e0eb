"""Rules about where a run is executed and with what: engines, submission, environment, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from grpo.config import derive
from grpo.config.engine_args import ENGINES, split
from grpo.config.findings import Advice
from grpo.config.positions import KeyPath
from grpo.config.settings import Settings
from grpo.errors import UserError

RESERVED = re.compile(
    r"(RANK|WORLD_SIZE|(LOCAL|NODE|GROUP|ROLE)_(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|RAY_.*|GRPO_.*"
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NVIDIA_VISIBLE_DEVICES|(HIP|ROCR)_VISIBLE_DEVICES"
    r"|SLURM_.*|BEAKER_.*|PMI.*|OMPI_.*)"
)
"""Environment variables that launchers, Ray and CUDA set for each process: one value for all would break ranks."""

SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)$", re.IGNORECASE
)
SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}"
    r"|AKIA[A-Z0-9]{16}|AIza[\w-]{35}|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[\w-]{15,}\.eyJ[\w-]{15,}\.[\w-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def engine_keys(settings: Settings) -> Iterator[UserError]:
    """A key of one engine means nothing to another."""
    backend = derive.engine_backend(settings).value
    for key in settings.raw.table("inference"):
        passed_on = split(key)
        engine = derive.ENGINE_OF.get(key) or (passed_on[0] if passed_on else None)
        # A simulated fleet takes the arguments of any engine, and reads none: it rehearses run files of all.
        if engine is not None and backend not in (engine, "simulated") and f"inference.{key}" not in settings.bad:
            yield UserError(
                f"only the {engine} engine takes it, and inference.backend is {backend}",
                where=settings.raw.where(("inference", key)),
                fix=f'Remove it, or set inference.backend = "{engine}".',
            )
    if backend in ENGINES and settings.given("inference.local_running_requests"):
        key = "inference.local_running_requests"
        other = derive.RUNNING_KEYS[backend][0]
        yield Advice("only the local engine reads it", where=settings.where(key), fix=f"Set inference.{other}.")


def local_engines(settings: Settings) -> Iterator[UserError]:
    """Local engines have no GPU to be counted by."""
    backend = derive.engine_backend(settings).value
    if backend == "local" and (settings.value("inference.gpus") or 0) > 1:
        yield UserError(
            "the local engine runs on the CPU",
            where=settings.where("inference.gpus"),
            fix="Set inference.local_engines for several of them.",
        )
    if backend != "local" and settings.given("inference.local_engines"):
        yield Advice("only the local engine reads it", where=settings.where("inference.local_engines"))


def experts_in_engine(settings: Settings) -> Iterator[UserError]:
    """Experts are shared out over the GPUs of one engine."""
    experts, width = (
        settings.value("inference.rollout_expert_parallel_size"),
        settings.value("inference.rollout_tensor_parallel_size"),
    )
    if width % experts:
        near = max(size for size in range(1, min(experts, width) + 1) if width % size == 0)
        yield UserError(
            f"{experts} does not divide the {width} GPUs of an engine",
            where=settings.where("inference.rollout_expert_parallel_size"),
            fix=f"Set it to {near}.",
        )


def launch(settings: Settings) -> Iterator[UserError]:
    """Which backend is meant, and what it cannot do without."""
    if settings.given("launch.workspace") and settings.given("launch.slurm") and not settings.given("launch.backend"):
        other = settings.where("launch.slurm")
        yield UserError(
            f"Beaker and SLURM (at {other}) are both described",
            where=settings.where("launch.workspace"),
            fix='Set launch.backend = "beaker" or "slurm".',
        )
    if derive.launch_backend(settings).value != "beaker":
        return
    for key in ("launch.workspace", "launch.cluster"):
        if settings.value(key) is None:
            yield UserError("is missing, and Beaker needs it", where=settings.where(key))


def environment(settings: Settings) -> Iterator[UserError]:
    """Names that are variables, not reserved, given once, and no secret in clear text."""
    for table in ("env", "secrets"):
        for name, value in settings.value(f"launch.{table}").items():
            where = settings.raw.where(("launch", table, name))
            if not ENV_NAME.fullmatch(name):
                yield UserError("is no name of an environment variable", where=where)
            elif RESERVED.fullmatch(name):
                yield UserError(
                    "is reserved: launchers, Ray and CUDA set it for each process", where=where, fix="Remove it."
                )
            elif table == "secrets" and name in settings.value("launch.env"):
                yield UserError("is given in launch.env too", where=where, fix="Keep one of them.")
            elif table == "env" and value and SECRET_NAME.search(name):
                fix = f'Store it with the scheduler and write {name} = "SECRET_NAME" under [launch.secrets].'
                yield UserError("looks like a secret in clear text", where=where, fix=fix)


def clear_text(settings: Settings) -> Iterator[UserError]:
    """No value anywhere may look like a token; the value itself is never shown."""
    for path, text in _texts(settings.raw.data, ()):
        if SECRET_VALUE.search(text):
            yield UserError(
                "holds what looks like a secret in clear text",
                where=settings.raw.where(path),
                fix="Remove it from the file, and from its history; name a secret under [launch.secrets] instead.",
            )


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


RULES = (
    engine_keys,
    local_engines,
    experts_in_engine,
    launch,
    environment,
    clear_text,
)
