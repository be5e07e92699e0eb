"""From raw values to typed settings, with every problem of the file found at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo.config import engine_args
from grpo.config.aliases import ALIASES, TWINS
from grpo.config.findings import NotRunnable
from grpo.config.load import Place, RawConfig, dotted
from grpo.config.messages import describe, explain
from grpo.config.names import nearest
from grpo.config.positions import KeyPath
from grpo.config.schema import INNER, SECTIONS, WORKFLOW_SECTIONS, Top
from grpo.config.schema_base import Section, keys_of, unsupported
from grpo.errors import UserError

MAX_INTEGER = 2**63 - 1
MAX_TEXT = 4096  # letters; the longest path that Linux takes


class BadKey(Exception):
    """A rule asked for a key whose value is wrong; that problem is already reported, so the rule is skipped."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value with the key and place that gave it. ``place`` is None for a default."""

    key: str
    value: Any
    place: Place | None

    @property
    def given(self) -> bool:
        """Whether the user gave it."""
        return self.place is not None


@dataclass
class Settings:
    """All settings of a run file, by structured name; a low-level twin answers for its structured key."""

    raw: RawConfig
    sections: dict[str, Section]
    bad: set[str] = field(default_factory=set)

    @property
    def low_level(self) -> bool:
        """Whether the file is a low-level one: [core] or [miles], and no workflow section. Overlays do not count."""
        present = self.raw.file_sections
        return bool(present & {"core", "miles"}) and not present & WORKFLOW_SECTIONS

    def get(self, key: str) -> Setting:
        """Return the setting of a structured key such as ``inference.gpus``: given, by a twin, or by default.

        Raises:
            BadKey: its value, or that of a twin, is wrong.
        """
        names = [key, *(alias.low_level for alias in TWINS.get(key, ()))]
        if self._names_bad(key):
            raise BadKey(key)
        # The command line wins, also under another name than the file's.
        given = [(name, place) for name in names if (place := self._place(name))]
        for name, place in sorted(given, key=lambda found: not found[1].is_set):
            return Setting(name, self._converted(key, name), place)
        # Defaults differ by route.
        name = names[1] if self.low_level and len(names) > 1 else key
        return Setting(key, self._converted(key, name), None)

    def value(self, key: str) -> Any:
        """Return the value of :meth:`get`."""
        return self.get(key).value

    def given(self, key: str) -> bool:
        """Whether the key or a twin of it was given."""
        return self.get(key).given

    def where(self, key: str) -> str:
        """Return the place and name under which the key was given, for an error."""
        name = key if self._names_bad(key) else self.get(key).key
        return self.raw.where(tuple(name.split(".")))

    def path(self, key: str) -> Path | None:
        """Return a path as an absolute one: relative to the file that gave it, or to the working directory for --set.

        Nothing is expanded: neither ``~`` nor variables.
        """
        text = self.value(key)
        return None if text is None else self.absolute(key, text)

    def absolute(self, key: str, text: str) -> Path:
        """Return a path that the value of ``key`` names, as :meth:`path` does."""
        place = self.get(key).place
        base = Path.cwd() if place and place.is_set else self.raw.path.parent
        return Path(os.path.normpath(base / text))

    def _names_bad(self, key: str) -> bool:
        return not self.bad.isdisjoint([key, *(alias.low_level for alias in TWINS.get(key, ()))])

    def _place(self, name: str) -> Place | None:
        return self.raw.places.get(tuple(name.split(".")))

    def _read(self, name: str) -> Any:
        section, _, attribute = name.rpartition(".")
        return getattr(self.sections[section], attribute)

    def _converted(self, key: str, name: str) -> Any:
        value = self._read(name)
        if name == key or value is None:
            return value
        return next(alias.convert(value) for alias in TWINS[key] if alias.low_level == name)


def read_settings(raw: RawConfig) -> tuple[Settings, list[UserError]]:
    """Check every key and value against the schema; return the settings and all problems, in the order of the file.

    The settings are usable even when there are problems: a wrong value is left out and its key marked as bad, so that
    the rules between fields can still be checked for the others.
    """
    problems: list[tuple[KeyPath, UserError]] = []
    settings = Settings(raw, {})
    settings.sections[""] = _section(settings, (), Top, _top_values(raw, problems), problems)
    for name, info in SECTIONS.items():
        values = raw.data.get(name, {})
        if not isinstance(values, dict):
            problems.append(_problem(raw, (name,), f"must be a table, not {describe(values)}", f"Write [{name}]."))
            values = {}
        elif info.refused and values:
            problems.append(_problem(raw, (name,), f"is refused: {info.refused.reason}"))
            values = {}
        if not info.named:
            settings.sections[name] = _section(settings, (name,), info.model, values, problems)
    problems += _conflicts(settings)
    return settings, [problem for _, problem in sorted(problems, key=lambda found: _order(raw, found[0]))]


def _order(raw: RawConfig, path: KeyPath) -> tuple[int, int]:
    place = raw.place(path)
    return (0, 0) if place is None else (1, 0) if place.is_set else (0, place.line or 0)


def _problem(raw: RawConfig, path: KeyPath, what: str, fix: str = "") -> tuple[KeyPath, UserError]:
    return path, UserError(what, where=raw.where(path), fix=fix)


def _top_values(raw: RawConfig, problems: list[tuple[KeyPath, UserError]]) -> dict[str, Any]:
    """Return the keys above the first table, and report names that are neither such a key nor a section."""
    known = keys_of(Top)
    for name, value in raw.data.items():
        if name in known or name in SECTIONS:
            continue
        if isinstance(value, dict):
            near, _ = nearest(name, SECTIONS)
            fix = f"Did you mean {' or '.join(f'[{section}]' for section in near)}?" if near else ""
            problems.append(_problem(raw, (name,), "unknown section", fix))
        else:
            problems.append(_problem(raw, (name,), "unknown key", _did_you_mean((), name, Top)))
    return {name: value for name, value in raw.data.items() if name in known}


def _section(
    settings: Settings,
    path: KeyPath,
    model: type[Section],
    values: dict[str, Any],
    problems: list[tuple[KeyPath, UserError]],
) -> Section:
    """Validate one section; wrong keys are reported, marked as bad and left out."""
    found = [*_unknown(settings.raw, path, model, values), *_unusable(settings.raw, path, values)]
    found += [item for item in _engine_keys(settings.raw, path, model, values) if item[0] not in dict(found)]
    known = {name: value for name, value in values.items() if name in keys_of(model)}
    try:
        model.model_validate(_without(known, [inner[len(path) :] for inner, _ in found]))
    except ValidationError as error:
        misspelt = {inner[:-1] for inner, _ in found}
        for item in error.errors(include_url=False):
            if item["type"] == "missing" and (*path, *item["loc"][:-1]) in misspelt:
                continue  # it is there, under the wrong name
            found.append(_problem(settings.raw, (*path, *item["loc"]), *explain(item)))
    reported = {inner for inner, _ in found}
    found += [item for item in _refused(settings.raw, path, model, values) if item[0] not in reported]
    problems += found
    wrong = {str(inner[len(path)]) for inner, problem in found if not isinstance(problem, NotRunnable)}
    settings.bad |= {dotted((*path, name)) for name in wrong}
    good = {name: value for name, value in known.items() if name not in wrong}
    return model.model_validate(good) if good else model.model_construct()


def _without(values: Any, paths: list[KeyPath]) -> Any:
    """Return ``values`` with what stands at each of the paths left out, so that the rest is still checked.

    Elements of arrays stay, because the places of those behind them would change.
    """
    if not paths or not isinstance(values, dict | list):
        return values
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    kept = {
        name: _without(inner, [path[1:] for path in paths if path[0] == name and len(path) > 1])
        for name, inner in pairs
        if not (isinstance(values, dict) and (name,) in paths)
    }
    return kept if isinstance(values, dict) else list(kept.values())


def _tables(
    path: KeyPath, model: type[Section], values: dict[str, Any]
) -> Iterator[tuple[KeyPath, type[Section], dict[str, Any]]]:
    """Yield a table and the tables inside it, each with its path and model."""
    yield path, model, values
    for name, value in values.items():
        inner = INNER.get((str(path[0]), name)) if len(path) == 1 else None
        if inner is None:
            continue
        if isinstance(value, dict):
            yield (*path, name), inner, value
        elif isinstance(value, list):
            yield from (((*path, name, i), inner, table) for i, table in enumerate(value) if isinstance(table, dict))


def _unknown(
    raw: RawConfig, path: KeyPath, model: type[Section], values: dict[str, Any]
) -> Iterator[tuple[KeyPath, UserError]]:
    """Yield keys that do not exist."""
    for place, table, inner in _tables(path, model, values):
        for name in inner:
            passed_on = engine_args.split(name)
            if passed_on and passed_on[0] in table.engines:
                continue
            if name not in keys_of(table) and not unsupported(table, name):
                yield _problem(raw, (*place, name), "unknown key", _did_you_mean(place, name, table))


def _engine_keys(
    raw: RawConfig, path: KeyPath, model: type[Section], values: dict[str, Any]
) -> Iterator[tuple[KeyPath, UserError]]:
    """Yield pass-through keys that the pinned engine does not take, or not with that value."""
    for name, value in values.items():
        passed_on = engine_args.split(name)
        if passed_on and passed_on[0] in model.engines and name not in keys_of(model):
            problem = engine_args.problem(name, value, also=keys_of(model))
            if problem:
                yield _problem(raw, (*path, name), *problem)


def _refused(
    raw: RawConfig, path: KeyPath, model: type[Section], values: dict[str, Any]
) -> Iterator[tuple[KeyPath, UserError]]:
    """Yield keys of features that are not built yet; those that can be planned as such."""
    for place, table, inner in _tables(path, model, values):
        for name, value in inner.items():
            marker = next((item for item in unsupported(table, name) if item.refuses(value)), None)
            if marker is None:
                continue
            key = (*place, name)
            if marker.plans:
                yield key, NotRunnable(f"{_shown(value)}: {marker.reason}", where=raw.where(key))
            else:
                yield _problem(raw, key, f"{describe(value)} is refused: {marker.reason}")


def _unusable(raw: RawConfig, path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, UserError]]:
    """Yield what no setting can mean: huge integers, huge texts, and texts with control characters."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _unusable(raw, (*path, name), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unusable(raw, (*path, index), inner)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        yield _problem(raw, path, f"must be at most {MAX_INTEGER}, not {describe(value)}")
    elif isinstance(value, str) and len(value) > MAX_TEXT:
        yield _problem(raw, path, f"must have at most {MAX_TEXT} letters, not {len(value)}")
    elif isinstance(value, str) and not value.isprintable():
        yield _problem(raw, path, f"{describe(value)} holds a control character")


def _did_you_mean(path: KeyPath, name: str, model: type[Section]) -> str:
    """Return the fix for an unknown key: a near key of its table, else the same or a near key of another table."""
    if engine_args.split(name):
        return "It belongs in [inference]."
    passed_on = [key for engine in model.engines for key in engine_args.keys_like(name, engine)]
    here, distance = nearest(name, [*keys_of(model), *passed_on])
    if here and distance == 1:
        return f"Did you mean {' or '.join(here)}?"
    others = {"": Top} | {other: info.model for other, info in SECTIONS.items() if other not in path and not info.named}
    homes = [other for other, other_model in others.items() if name in keys_of(other_model)]
    if homes:
        return f"It belongs {' or '.join(f'in [{home}]' if home else 'above the first table' for home in homes)}."
    if here:
        return f"Did you mean {' or '.join(here)}?"
    elsewhere = {f"{other}.{key}".lstrip("."): key for other in others for key in keys_of(others[other])}
    near, _ = nearest(name, set(elsewhere.values()))
    full = [key for key, last in elsewhere.items() if last in near]
    return f"Did you mean {' or '.join(full)}?" if full else ""


def _conflicts(settings: Settings) -> Iterator[tuple[KeyPath, UserError]]:
    """Yield pairs of names for one setting that were both given with different values."""
    raw = settings.raw
    for alias in ALIASES:
        first, second = tuple(alias.structured.split(".")), tuple(alias.low_level.split("."))
        if first not in raw.places or second not in raw.places:
            continue
        if raw.places[first].is_set != raw.places[second].is_set:
            continue  # the overlay replaces what the file says
        if not settings.bad.isdisjoint((alias.structured, alias.low_level)):
            continue
        ours, theirs = (settings._read(name) for name in (alias.structured, alias.low_level))
        if ours == alias.convert(theirs):
            continue
        yield _problem(
            raw,
            first,
            f"{describe(ours)} contradicts {alias.low_level} = {_shown(theirs)} at {raw.places[second]}",
            "They are two names of one setting: keep one.",
        )


def _shown(value: Any) -> str:
    return describe(value).removeprefix("text ")
