"""Where a resolved value came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from grpo.config.settings import Setting, Settings


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value and its origin.

    Attributes:
        kind: ``file``, ``set`` (the command line), ``default``, or ``derived`` from other keys.
        key: the key that gave it, or whose default or derivation it is, such as ``inference.samples_per_prompt``.
        place: ``my-run.toml:41`` or ``--set``; empty for defaults and derived values.
        arithmetic: how it was derived, with the numbers put in: ``32 x 8 = 256``.
        inputs: the keys that it was derived from.
    """

    value: Any
    kind: Literal["file", "set", "default", "derived"]
    key: str
    place: str = ""
    arithmetic: str = ""
    inputs: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the origin without the value; empty parts are left out."""
        parts = {
            "kind": self.kind,
            "key": self.key,
            "place": self.place,
            "arithmetic": self.arithmetic,
            "inputs": list(self.inputs),
        }
        return {name: part for name, part in parts.items() if part}


def taken(settings: Settings, key: str) -> Sourced:
    """Return a setting as it was given or as its default is."""
    return from_setting(settings.get(key))


def from_setting(setting: Setting) -> Sourced:
    """Return the origin of a setting."""
    if setting.place is None:
        return Sourced(setting.value, "default", setting.key)
    kind = "set" if setting.place.is_set else "file"
    return Sourced(setting.value, kind, setting.key, str(setting.place))


def derived(value: Any, key: str, arithmetic: str, *inputs: str) -> Sourced:
    """Return a value computed from other keys."""
    return Sourced(value, "derived", key, arithmetic=arithmetic, inputs=inputs)
