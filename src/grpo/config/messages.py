"""What a wrong value is called, in a user's words."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from grpo.config.names import nearest

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_LIMITS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "Use letters, digits, '.', '_', '-'; start with a letter or digit.",
    r"^(\d+[smhd])+$": "Write a duration such as 90s, 30m, 24h or 1d12h.",
    r"^(\d+-)?\d+(:\d{1,2}){0,2}$": "Write a SLURM time such as 24:00:00 or 2-00:00:00.",
    r"^\d+[KMGT]?$": "Write an amount of memory such as 512G, or 0 for all of a node.",
    r"^\d+(\.\d+)?\s?([KMGT]i?B?)?$": "Write an amount of memory such as 64GiB.",
    "^/": "Write an absolute path.",
}


def describe(value: Any) -> str:
    """Return a short description of a TOML value: ``text "8"``, ``true``, ``1.5``, ``an array``."""
    if isinstance(value, str):
        return f"text {_quoted(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "an integer of more than 20 digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, datetime.date | datetime.time):
        return "a date or time"
    return str(value)


def _quoted(text: str) -> str:
    # An error is one line of printable letters, whatever the file holds.
    return json.dumps(text[:60], ensure_ascii=not text.isprintable())


def explain(error: Mapping[str, Any]) -> tuple[str, str]:
    """Turn one pydantic error of a section into what is wrong and a fix (may be empty)."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {describe(value)}", ""
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"must be {words} {context[name]:g}, not {describe(value)}", ""
    if kind == "missing":
        return "is missing", ""
    if kind == "string_too_short":
        return "must not be empty", ""
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} letters", ""
    if kind == "string_pattern_mismatch":
        return f"{describe(value)} is not allowed", _PATTERNS.get(context["pattern"], "See the description of the key.")
    if kind == "literal_error":
        allowed = context["expected"].replace("'", '"')
        names = allowed.replace(" or ", ", ").replace('"', "").split(", ")
        near = nearest(value, names)[0] if isinstance(value, str) else []
        return f"must be {allowed}, not {describe(value)}", f'Did you mean "{near[0]}"?' if near else ""
    return f"is wrong: {error['msg']}", ""
