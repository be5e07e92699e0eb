"""One line of a prompt file -> :class:`~grpo.data.row.RawRow`, or an error that says what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NoReturn

from grpo.data.row import Message, RawRow
from grpo.errors import UserError
from grpo.rewards.registry import check_row
from grpo.rewards.verifier import as_truths

FIELDS = ("messages", "prompt", "ground_truth", "verifier", "dataset", "id", "options")


def parse_line(line: str, *, where: str, source: str, default_id: str) -> RawRow:
    """Read one row and check everything about it that needs no tokenizer.

    Args:
        line: the text of the line.
        where: its place, for errors.
        source: for ``RawRow.source``.
        default_id: the id of a row without one.

    Raises:
        UserError: at the first thing that is wrong, with ``where``.
    """
    try:
        record = _load(line)
        _no_misspelt_field(record)
        ground_truth = _ground_truth(record)
        verifier = _verifier(record)
        options = record.get("options")
        if options is not None and not isinstance(options, dict):
            raise UserError(f"'options' must be an object, not {_kind(options)}")
        row = RawRow(
            id=default_id if record.get("id") is None else _text(record["id"], "id"),
            prompt=_prompt(record),
            ground_truth=ground_truth,
            verifier=verifier,
            source=source,
            where=where,
            options=options or {},
        )
        check_row(verifier, as_truths(ground_truth), row.options)
    except UserError as problem:
        raise UserError(problem.what, where=where, fix=problem.fix) from None
    return row


def _load(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_not_json)
    except json.JSONDecodeError as error:
        raise UserError(
            f"broken JSON at column {error.colno}: {error.msg}", fix="Write one JSON object a line."
        ) from None
    except RecursionError:
        raise UserError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"unreadable JSON: {error}") from None
    if not isinstance(record, dict):
        raise UserError(f"a row must be a JSON object, not {_kind(record)}")
    return record


def _not_json(name: str) -> NoReturn:
    raise UserError(f"{name} is not JSON", fix="Leave the value out, or write a number or a string.")


def _no_misspelt_field(record: Mapping[str, Any]) -> None:
    """Refuse a field that is one slip away from a field that the row lacks; other fields are the user's own."""
    for name in record:
        if name in FIELDS:
            continue
        near = get_close_matches(name.lower(), FIELDS, n=1, cutoff=0.85)
        if near and near[0] not in record:
            raise UserError(f"unknown field {name!r}", fix=f"Did you mean {near[0]!r}?")


def _prompt(record: Mapping[str, Any]) -> str | tuple[Message, ...]:
    messages, prompt = record.get("messages"), record.get("prompt")
    if messages is None and prompt is None:
        raise UserError("missing field 'messages' (or 'prompt')")
    if messages is not None and prompt is not None:
        raise UserError("'messages' and 'prompt' are both given", fix="Keep one of them.")
    if messages is None:
        return _text(prompt, "prompt")
    if not isinstance(messages, list):
        raise UserError(f"'messages' must be a list, not {_kind(messages)}")
    if not messages:
        raise UserError("'messages' is empty")
    turns = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(messages))
    if turns[-1].role == "assistant":
        raise UserError(
            "the last message is the assistant's, but a prompt ends where the assistant is to speak",
            fix="Remove it, or move its content to 'ground_truth'.",
        )
    return turns


def _message(item: Any, name: str) -> Message:
    if not isinstance(item, dict):
        raise UserError(f"'{name}' must be an object, not {_kind(item)}")
    for key in ("role", "content"):
        if key not in item:
            raise UserError(f"'{name}' has no '{key}'")
    return Message(_text(item["role"], f"{name}.role"), _text(item["content"], f"{name}.content", blank=True))


def _ground_truth(record: Mapping[str, Any]) -> str | tuple[str, ...]:
    if record.get("ground_truth") is None:
        raise UserError("missing field 'ground_truth'")
    value = record["ground_truth"]
    if not isinstance(value, list):
        return _answer(value, "ground_truth")
    if not value:
        raise UserError("'ground_truth' is an empty list")
    return tuple(_answer(item, f"ground_truth[{index}]") for index, item in enumerate(value))


def _answer(value: Any, name: str) -> str:
    """Return one ground truth; a number becomes its decimal spelling, without an exponent."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise UserError(f"'{name}' is too large for a number", fix="Write it as a string.")
        return format(Decimal(repr(value)), "f")
    return _text(value, name, expected="a string, a number or a list of them")


def _verifier(record: Mapping[str, Any]) -> str:
    given = {key: record[key] for key in ("verifier", "dataset") if record.get(key) is not None}
    if not given:
        raise UserError("missing field 'verifier' (or 'dataset')")
    names = {key: _text(value, key) for key, value in given.items()}
    if len(set(names.values())) > 1:
        raise UserError("'verifier' and 'dataset' are both given and differ", fix="Keep one of them.")
    return next(iter(names.values()))


def _text(value: Any, name: str, *, blank: bool = False, expected: str = "a string") -> str:
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be {expected}, not {_kind(value)}")
    if not blank and not value.strip():
        raise UserError(f"'{name}' is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can escape half of a surrogate pair; no tokenizer can encode it.
        raise UserError(f"'{name}' holds half of a surrogate pair, which is no character") from None
    return value


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
