"""Rewards from a model: [judges.NAME], [rubrics.NAME], [judging.bindings."VERIFIER"]."""

from typing import Any, Literal

from grpo.config.schema_base import Section, key


class Judge(Section):
    """A model that grades."""

    mode: Literal["managed", "external"] = key("managed", "managed is served by the run, external by someone else.")
    endpoint: str | None = key(None, "Address of an external judge.")
    model: str | None = key(None, "Model of the judge.")
    revision: str | None = key(None, "Revision of that model.")
    backend: str | None = key(None, "Server of a managed judge.")
    gpus: int | None = key(None, "GPUs of a managed judge.", unit="GPUs", ge=0)
    tensor_parallel_size: int | None = key(None, "GPUs of one replica.", unit="GPUs", ge=1)
    max_context_length: int = key(40960, "Limit of prompt and verdict together.", unit="tokens", ge=2)
    context_extension: Any = key(None, "How the context is extended beyond the model's own.")
    max_concurrent_calls: int = key(16, "Calls at the same time.", unit="calls", ge=1)
    timeout: float = key(120.0, "Time limit of one call.", unit="seconds", gt=0)
    chat_template: str | None = key(None, "Chat template of the judge.")
    prepared_dir: str | None = key(None, "Folder with a prepared model.")


class Rubric(Section):
    """How a judge is asked."""

    profile: str | None = key(None, "Name of the rubric's prompt.")
    max_response_tokens: int = key(2048, "Limit of a verdict.", unit="tokens", ge=1)
    temperature: float = key(1.0, "Temperature of the judge.", ge=0)


class Binding(Section):
    """Which judge and rubric a verifier uses."""

    judge: str | None = key(None, "Name of the judge.")
    rubric: str | None = key(None, "Name of the rubric.")


class Judging(Section):
    """Verifiers that ask a judge."""

    bindings: dict[str, Binding] = key({}, "Verifier name to its judge and rubric.")
