"""The run file as a JSON Schema, for editors (taplo, Even Better TOML) and for ``docs/configuration.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.config.aliases import ALIASES
from grpo.config.engine_args import OWN, engine_list
from grpo.config.schema import SECTIONS, Top
from grpo.config.schema_base import Section, Unsupported, keys_of, unsupported

_JSON_TYPES = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


def json_schema() -> dict[str, Any]:
    """Return the schema (draft-07, which taplo reads): descriptions with units, enums, defaults, limits."""
    properties = _table(Top, "")["properties"]
    for name, info in SECTIONS.items():
        table = _table(info.model, name)
        if info.named:
            table = {"type": "object", "additionalProperties": table, "description": table["description"]}
        if info.refused:
            table["description"] += f" Not built yet: {info.refused.reason}."
        properties[name] = table
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "grpo run file",
        "description": "One TOML file becomes a GRPO training run.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def default_text(section: str, name: str, field: Any) -> str:
    """Return the default of a key in words: a value, how it is derived, or nothing."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    if field.is_required():
        return "required"
    if "derived" in extra:
        return str(extra["derived"])
    return "" if field.default is None or field.default in ({}, []) else _toml(field.default)


def other_names(key: str) -> list[str]:
    """Return the other names of ``section.key``."""
    twins = {alias.low_level for alias in ALIASES if alias.structured == key}
    return sorted(twins | {alias.structured for alias in ALIASES if alias.low_level == key})


def refusal(marker: Unsupported) -> str:
    """Return one sentence about a feature that is not built."""
    what = " or ".join(_toml(value) for value in marker.values)
    if not what and marker.unless:
        what = f"Anything but {' or '.join(_toml(value) for value in marker.unless)}"
    how = "is planned and validated, but cannot be run yet" if marker.plans else "is refused"
    return f"{what or 'It'} {how}: {marker.reason}."


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _table(model: type[Section], section: str) -> dict[str, Any]:
    raw = model.model_json_schema()
    definitions = raw.pop("$defs", {})
    table = _cleaned(raw, definitions, section)
    table["description"] = " ".join((model.__doc__ or "").split())
    for engine in model.engines:
        table["properties"] |= _engine_properties(engine)
    for prefix, marker in model.prefixes.items():
        table["patternProperties"] = {f"^{prefix}": {"description": f"Not built yet: {marker.reason}."}}
    for name, field in keys_of(model).items():
        table["properties"][name]["description"] = _description(model, section, name, field)
    return table


def _description(model: type[Section], section: str, name: str, field: Any) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    parts = [field.description or ""]
    if "unit" in extra:
        parts.append(f"Unit: {extra['unit']}.")
    if "derived" in extra:
        parts.append(f"Default: {extra['derived']}.")
    if names := other_names(f"{section}.{name}"):
        parts.append(f"Also: {', '.join(names)}.")
    parts += [refusal(marker) for marker in unsupported(model, name)]
    return " ".join(parts)


def _engine_properties(engine: str) -> dict[str, Any]:
    listing = engine_list(engine)
    found: dict[str, Any] = {}
    for name, argument in listing["arguments"].items():
        if name in OWN[engine]:
            continue
        kinds = [_JSON_TYPES[kind] for kind in argument["types"] if kind in _JSON_TYPES]
        entry: dict[str, Any] = {"description": f"{name} of {engine} {listing['version']}."}
        if kinds:
            entry["type"] = kinds[0] if len(kinds) == 1 else kinds
        if argument.get("choices"):
            entry["enum"] = argument["choices"]
        if argument.get("default") is not None:
            entry["default"] = argument["default"]
        found[f"{engine}_{name}"] = entry
    return found


def _cleaned(node: Any, definitions: Mapping[str, Any], section: str) -> Any:
    """Return pydantic's schema without null (TOML has none), references, and titles made of names."""
    if isinstance(node, list):
        return [_cleaned(item, definitions, section) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        node = {**target, **{name: value for name, value in node.items() if name != "$ref"}}
    kept = {name: value for name, value in node.items() if name not in ("title", "unit", "derived", "anyOf")}
    if kept.get("default", 0) is None:
        del kept["default"]
    options = [item for item in node.get("anyOf", []) if item != {"type": "null"}]
    if len(options) == 1:
        kept = {**options[0], **kept}
        return _cleaned(kept, definitions, section)
    if options:
        kept["anyOf"] = options
    if "properties" in kept:  # names of keys are no keywords of the schema
        inner = {name: _cleaned(value, definitions, section) for name, value in kept.pop("properties").items()}
        return {**_cleaned(kept, definitions, section), "properties": inner}
    return {name: _cleaned(value, definitions, section) for name, value in kept.items()}
