"""What files show: the model folder and the data. Imports no torch and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from grpo.config import derive
from grpo.config.findings import Advice, NotRunnable
from grpo.config.settings import BadKey, Settings
from grpo.errors import UserError
from grpo.plan.architecture import architecture_problems
from grpo.plan.output import output_problems
from grpo.plan.paths import BUILTIN_PREFIX, model_dir, shape_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
PLANNED_TASKS = frozenset({"gsm8k", "math", "ifeval"})
"""Documented tasks; those that are not in the registry can be planned, but not run."""
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


def inspect(settings: Settings) -> list[UserError]:
    """Return every problem of the model folder and of the data that the settings name."""
    problems: list[UserError] = []
    for look in (_model, _tasks, _prompt_files, output_problems):
        try:
            problems += list(look(settings))
        except BadKey:
            continue
    return problems


def model_source(settings: Settings) -> str | None:
    """Return the model source with an absolute path, or ``builtin:NAME`` as it is; None if it is not given."""
    source = settings.value("model.source")
    if source is None or source.startswith(BUILTIN_PREFIX):
        return source
    return str(settings.path("model.source"))


def plan_config_source(settings: Settings) -> str | None:
    """Return ``model.plan_config`` with an absolute path, or ``builtin:NAME`` as it is; None if it is not given."""
    source = settings.value("model.plan_config")
    if source is None or source.startswith(BUILTIN_PREFIX):
        return source
    return str(settings.path("model.plan_config"))


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a model folder.

    Raises:
        UserError: it is missing, unreadable or not a JSON object.
    """
    return _read_config_file(folder / "config.json")


def _read_config_file(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({_reason(error)})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object")
    return config


def config_of(source: str, plan_config: str | None) -> dict[str, Any] | None:
    """Return ``config.json`` of a model source, or else of ``plan_config``; None where neither can be read."""
    try:
        return read_model_config(model_dir(source))
    except UserError:
        pass
    try:
        return None if plan_config is None else _read_config_file(shape_file(plan_config))
    except UserError:
        return None


def planned_config(settings: Settings) -> dict[str, Any] | None:
    """Return the ``config.json`` that the model is planned with; None where none can be read."""
    source = model_source(settings)
    return None if source is None else config_of(source, plan_config_source(settings))


def path_kind(path: Path) -> Literal["folder", "file", "missing"]:
    """Return what a path is; one that cannot even be asked about (a name too long, a closed folder) is missing."""
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "missing"
    except OSError:
        return "missing"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "not JSON" if isinstance(error, ValueError) else "nested too deeply"


def _model(settings: Settings) -> Iterator[UserError]:
    source = model_source(settings)
    if source is None:
        return
    where = settings.where("model.source")
    yield from _plan_config(settings)
    try:
        folder = model_dir(source)
    except UserError as error:
        yield UserError(error.what, where=where, fix=error.fix)
        return
    if (kind := path_kind(folder)) != "folder":
        what = "is a file, not a folder" if kind == "file" else "no such folder"
        fix = "Name a Hugging Face model folder; hub names are not downloaded."
        yield (
            _unseen(settings, "model.source", f"{folder}: {what}", fix)
            if kind == "missing"
            else UserError(f"{folder}: {what}", where=where, fix=fix)
        )
    elif not (folder / "config.json").is_file():
        yield UserError(
            f"{folder} has no config.json, so it is no Hugging Face model folder",
            where=where,
            fix="Name the folder that holds config.json, the weights and the tokenizer.",
        )
    else:
        yield from _folder(settings, folder)
    config = planned_config(settings)
    if config is not None:
        yield from architecture_problems(settings, config)


def _folder(settings: Settings, folder: Path) -> Iterator[UserError]:
    where = settings.where("model.source")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield UserError(
            f"{folder} has no tokenizer ({' or '.join(TOKENIZER_FILES[:2])})",
            where=where,
            fix="Copy the tokenizer files of the model into it.",
        )
    if not any(any(folder.glob(pattern)) for pattern in WEIGHT_PATTERNS):
        yield UserError(
            f"{folder} has no weights ({' or '.join(WEIGHT_PATTERNS)})", where=where, fix="Download the whole model."
        )
    try:
        read_model_config(folder)
    except UserError as error:
        yield UserError(error.what, where=where)


def _plan_config(settings: Settings) -> Iterator[UserError]:
    source = plan_config_source(settings)
    if source is None:
        return
    where = settings.where("model.plan_config")
    try:
        path = shape_file(source)
    except UserError as error:
        yield UserError(error.what, where=where, fix=error.fix)
        return
    try:
        _read_config_file(path)
    except UserError as error:
        yield UserError(error.what, where=where, fix="Name a config.json, or builtin:NAME.")


def _unseen(settings: Settings, key: str, what: str, fix: str) -> UserError:
    """Return what a missing input means: an error here, but not where a run elsewhere may well see it."""
    where = settings.where(key)
    backend = derive.launch_backend(settings).value
    if backend != "local":
        name = {"slurm": "SLURM", "beaker": "Beaker"}[backend]
        return Advice(
            f"{what} on this machine, so it was not checked",
            where=where,
            fix=f"The nodes that {name} gives must see it.",
        )
    if key == "model.source" and settings.value("model.plan_config") is not None:
        return NotRunnable(f"{what}; planned with model.plan_config instead", where=where, fix=fix)
    return UserError(what, where=where, fix=fix)


def _tasks(settings: Settings) -> Iterator[UserError]:
    tasks = settings.value("data.tasks")
    if tasks is None:
        return
    from grpo.data.tasks import TASKS  # only where tasks are used: plan starts in a fraction of a second

    if not any(task.train_count for task in tasks):
        yield UserError(
            "the data set is empty: no task has a train_count above 0",
            where=settings.where("data.tasks"),
            fix="Set train_count of a task.",
        )
    seen: set[str] = set()
    for index, task in enumerate(tasks):
        path = ("data", "tasks", index)
        if task.task in PLANNED_TASKS - set(TASKS):
            yield NotRunnable(
                f"task {task.task!r} is not built yet",
                where=settings.raw.where((*path, "task")),
                fix="Give its prompts as data.prompt_data.",
            )
            continue
        if task.task not in TASKS:
            yield UserError(
                f"there is no task {task.task!r}",
                where=settings.raw.where((*path, "task")),
                fix=f"The tasks are: {', '.join(sorted(TASKS))}.",
            )
            continue
        if task.task in seen:
            yield UserError(
                f"task {task.task!r} is given twice",
                where=settings.raw.where((*path, "task")),
                fix="Give it once, with the sum of the counts.",
            )
        seen.add(task.task)
        info = TASKS[task.task]
        for key, count, capacity in (
            ("train_count", task.train_count, info.train_capacity),
            ("eval_count", task.eval_count, info.eval_capacity),
        ):
            if count > capacity:
                yield UserError(
                    f"{count} prompts of {task.task}, which has {capacity}",
                    where=settings.raw.where((*path, key)),
                    fix=f"Set it to at most {capacity}.",
                )


def prompt_files(settings: Settings) -> list[tuple[str, str, Path]]:
    """Return ``(key, name, path)`` of every prompt file, training data first; the name is empty for it."""
    files: list[tuple[str, str, Path]] = []
    if (train := settings.path("data.prompt_data")) is not None:
        files.append(("data.prompt_data", "", train))
    pairs = settings.value("data.eval_prompt_data") or []
    for name, text in zip(pairs[::2], pairs[1::2], strict=False):
        files.append(("data.eval_prompt_data", name, settings.absolute("data.eval_prompt_data", text)))
    return files


def _prompt_files(settings: Settings) -> Iterator[UserError]:
    for key, _, path in prompt_files(settings):
        if (kind := path_kind(path)) != "file":
            fix = "Name a JSONL file of prompts."
            if kind == "missing":
                yield _unseen(settings, key, f"{path}: no such file", fix)
            else:
                yield UserError(f"{path}: is a folder", where=settings.where(key), fix=fix)
            continue
        from grpo.data.jsonl import check_prompt_file

        yield from check_prompt_file(path)
