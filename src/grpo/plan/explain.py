"""Where one value of a job came from, and how two jobs differ. Pure text and data, no printing."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import Any

from grpo.config.aliases import ALIASES
from grpo.config.load import dotted
from grpo.config.names import nearest
from grpo.config.positions import key_lines
from grpo.config.provenance import Sourced
from grpo.config.schema import INNER, SECTIONS, Top
from grpo.config.schema_base import Section, keys_of
from grpo.errors import UserError
from grpo.plan.resolve import Plan


@dataclass(frozen=True)
class Explanation:
    """One value of a job, explained.

    Attributes:
        path: in the job, such as ``sync.max_policy_lag``.
        origin: where it came from; its value.
        overrides: ``(key, value, place)`` of what it replaced, the default last.
        inputs: explanations of the values that it was derived from, one level deep.
        text: description of the key that gave it; ``names`` are the other names of that key.
    """

    path: str
    origin: Sourced
    overrides: tuple[tuple[str, Any, str], ...]
    inputs: tuple[tuple[str, Any, str], ...]
    text: str
    unit: str
    names: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return {
            "path": self.path,
            "value": self.origin.value,
            **self.origin.as_json(),
            "unit": self.unit,
            "description": self.text,
            "names": list(self.names),
            "overrides": [{"key": key, "value": value, "place": place} for key, value, place in self.overrides],
            "derived_from": [{"key": key, "value": value, "origin": text} for key, value, text in self.inputs],
        }

    def lines(self) -> list[str]:
        """Return it as lines for a terminal."""
        unit = f" {self.unit}" if self.unit else ""
        shown = [f"{self.path} = {_value(self.origin.value)}{unit}"]
        shown.append(f"  from       {_origin(self.origin)}")
        shown += [f"  instead of {key} = {_value(value)} ({place})" for key, value, place in self.overrides]
        shown += [f"  because    {key} = {_value(value)} ({text})" for key, value, text in self.inputs]
        if self.names:
            shown.append(f"  also named {', '.join(self.names)}")
        if self.text:
            shown.append(f"  {self.text}")
        return shown


def explain(plan: Plan, key: str) -> list[Explanation]:
    """Explain the values that ``key`` means: a key of the run file, under any of its names, or a path in the job.

    Raises:
        UserError: there is no such key, or the job holds no value of it.
    """
    known = all_keys()
    # A key without its section is meant wherever there is one.
    keys = {each for each in known if each == key or ("." not in key and each.endswith(f".{key}"))}
    names = {key, *keys}.union(*(_names_of(each) for each in keys))
    paths = [path for path, origin in plan.provenance.items() if path == key or origin.key in names]
    paths = paths or [path for path in plan.provenance if path.startswith(f"{key}.") or path.endswith(f".{key}")]
    if not paths:
        if keys:
            raise UserError(f"{key} has no value of its own in the job", fix="It only affects other values.")
        whole = {*plan.provenance, *known}
        near, _ = nearest(key, whole if "." in key else {each.rpartition(".")[2] for each in whole})
        near = near if "." in key else [each for each in known if each.rpartition(".")[2] in near]
        raise UserError(f"there is no key {key!r}", fix=f"Did you mean {' or '.join(near)}?" if near else "")
    return [_explained(plan, path) for path in paths]


def difference(ours: Plan, theirs: Plan) -> list[dict[str, Any]]:
    """Return every value in which two jobs differ, in the order of the job: path, and value and origin on each side."""
    rows = []
    for path in list(dict.fromkeys([*ours.provenance, *theirs.provenance])):
        sides = (ours.provenance.get(path), theirs.provenance.get(path))
        values = [None if side is None else side.value for side in sides]
        if path == "config_sha256" or (values[0] == values[1] and type(values[0]) is type(values[1])):
            continue
        row: dict[str, Any] = {"path": path}
        for name, side in zip(("ours", "theirs"), sides, strict=True):
            row[name] = None if side is None else {"value": _plain(side.value), "origin": _origin(side)}
        rows.append(row)
    return rows


def difference_lines(rows: list[dict[str, Any]], names: tuple[str, str]) -> list[str]:
    """Return a difference as lines for a terminal."""
    if not rows:
        return [f"{names[0]} and {names[1]} are the same job"]
    shown = []
    for row in rows:
        shown.append(row["path"])
        for mark, side, name in (("-", row["ours"], names[0]), ("+", row["theirs"], names[1])):
            text = "not there" if side is None else f"{_value(side['value'])}  ({side['origin']})"
            shown.append(f"  {mark} {name}: {text}")
    return shown


def all_keys() -> dict[str, tuple[type[Section], str]]:
    """Return every key of a run file, as ``section.key``, with its section and name; named tables aside."""
    models: dict[str, type[Section]] = {"": Top} | {
        name: each.model for name, each in SECTIONS.items() if not each.named
    }
    models |= {".".join(path): model for path, model in INNER.items()}
    return {
        f"{section}.{name}".lstrip("."): (model, name) for section, model in models.items() for name in keys_of(model)
    }


def _names_of(key: str) -> set[str]:
    """Return the other names of a key."""
    names = {key}
    for _ in range(2):  # a twin of a twin
        for alias in ALIASES:
            if names & {alias.structured, alias.low_level}:
                names |= {alias.structured, alias.low_level}
    return names - {key}


def _explained(plan: Plan, path: str) -> Explanation:
    origin = plan.provenance[path]
    names = _names_of(origin.key)
    model, name = all_keys().get(origin.key.replace("[0]", ""), (None, ""))
    field = keys_of(model)[name] if model else None
    extra = field.json_schema_extra if field is not None and isinstance(field.json_schema_extra, dict) else {}
    return Explanation(
        path=path,
        origin=Sourced(_plain(origin.value), origin.kind, origin.key, origin.place, origin.arithmetic, origin.inputs),
        overrides=tuple(_overridden(plan, origin, {origin.key, *names})),
        inputs=tuple(_input(plan, key) for key in origin.inputs),
        text=(field.description or "") if field is not None else "",
        unit="" if origin.kind == "derived" else str(extra.get("unit", "")),  # arithmetic has units of its own
        names=tuple(sorted(names)),
    )


def _overridden(plan: Plan, origin: Sourced, names: set[str]) -> list[tuple[str, Any, str]]:
    """Return what a given value replaced: a line of the file that ``--set`` covers, then the default."""
    found: list[tuple[str, Any, str]] = []
    if origin.kind not in ("file", "set"):
        return found
    if origin.kind == "set":
        text = plan.raw.text.decode()
        data, lines = tomllib.loads(text), key_lines(text)
        for name in sorted(names):
            value, parts = data, tuple(name.split("."))
            for part in parts:
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found.append((dotted(parts), value, f"{plan.raw.name}:{lines[parts]}"))
    model, name = all_keys().get(origin.key, (None, ""))
    if model is not None:
        field = keys_of(model)[name]
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        derived = extra.get("derived")
        if not field.is_required():
            default = f"default: {derived}" if derived else "default"
            found.append((origin.key, _plain(field.default), default))
    return found


def _input(plan: Plan, key: str) -> tuple[str, Any, str]:
    names = {key, *_names_of(key)}
    for origin in plan.provenance.values():
        if origin.key in names:
            return key, _plain(origin.value), _origin(origin)
    return key, None, "not given"


def _origin(origin: Sourced) -> str:
    if origin.kind in ("file", "set"):
        return f"{origin.place} {origin.key}"
    if origin.kind == "derived":
        return f"derived: {origin.arithmetic}"
    return f"default of {origin.key}"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(_plain(value), ensure_ascii=False)
