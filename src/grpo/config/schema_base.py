"""What all sections of the schema share: strict types, a description for every key, and features not built yet."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Marks a documented key whose feature does not exist yet: it is refused with ``reason``, never ignored.

    Attributes:
        reason: completes "KEY: VALUE is refused: ...".
        unless: values that ask for what happens anyway, so they are accepted.
        values: if not empty, only these values are refused.
        plans: ``plan`` and ``validate`` understand the value and say that this build cannot run it; only ``run``
            refuses it. For features that a file of a real size needs and that the plan can describe truthfully.
    """

    reason: str
    unless: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    plans: bool = False

    def refuses(self, value: Any) -> bool:
        """Whether ``value`` asks for the missing feature."""
        if self.values:
            return value in self.values
        return not any(value == accepted and type(value) is type(accepted) for accepted in self.unless)


def key(default: Any, text: str, *, unit: str = "", derived: str = "", **limits: Any) -> Any:
    """Declare one key of a section.

    Args:
        default: the value when the key is not given; None if it is then absent or derived.
        text: the description, for people and editors.
        unit: of the value, such as ``tokens``.
        derived: how a value of None is derived, in words.
        limits: ``ge``, ``gt``, ``le``, ``lt``, ``pattern``, ``min_length`` as pydantic takes them.
    """
    extra: dict[str, Any] = {name: value for name, value in (("unit", unit), ("derived", derived)) if value}
    return Field(default, description=text, json_schema_extra=extra or None, **limits)


class Section(BaseModel):
    """One table of a run file. Types are strict: text is not a number, true is not 1; an integer may be a float.

    ``prefixes`` names families of keys that are not declared one by one, each with its marker. ``engines`` names the
    engines whose own arguments the section passes on (``vllm_max_num_seqs``).
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, defer_build=True, protected_namespaces=(), frozen=True
    )
    prefixes: ClassVar[dict[str, Unsupported]] = {}
    engines: ClassVar[tuple[str, ...]] = ()


def keys_of(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the declared keys of a section as they are written in a file, with what is declared about them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def unsupported(section: type[Section], name: str) -> list[Unsupported]:
    """Return the markers of a key; none if its whole feature exists."""
    field = keys_of(section).get(name)
    if field is not None:
        return [item for item in field.metadata if isinstance(item, Unsupported)]
    return [marker for prefix, marker in section.prefixes.items() if name.startswith(prefix)]
