"""From a TOML file and ``--set`` overlays to raw values that know where they stand."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config.positions import KeyPath, key_lines, split_key
from grpo.errors import UserError

MAX_BYTES = 1_000_000  # of a run file; the largest sensible one has a few hundred lines


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was given: a line of the file, or ``--set`` (then ``line`` is None)."""

    file: str
    line: int | None

    def __str__(self) -> str:
        return "--set" if self.line is None else f"{self.file}:{self.line}"

    @property
    def is_set(self) -> bool:
        """Whether the value came from the command line."""
        return self.line is None


@dataclass(frozen=True)
class RawConfig:
    """A run file as the user wrote it.

    Attributes:
        path: of the file, absolute.
        name: of the file as the user typed it; errors show it.
        text: the bytes of the file.
        data: the values, with overlays applied.
        places: where every key of ``data`` was given.
        file_sections: top-level names that stand in the file itself, overlays aside.
        overrides: the ``--set`` arguments, as typed.
    """

    path: Path
    name: str
    text: bytes
    data: dict[str, Any]
    places: dict[KeyPath, Place]
    file_sections: frozenset[str]
    overrides: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the bytes of the file, overlays aside."""
        return hashlib.sha256(self.text).hexdigest()

    def table(self, name: str) -> dict[str, Any]:
        """Return the top-level table ``name`` as it was given; empty where there is none."""
        values = self.data.get(name)
        return values if isinstance(values, dict) else {}

    def place(self, path: KeyPath) -> Place | None:
        """Return where ``path``, or else the nearest table or array around it, was given; None if neither was."""
        for length in range(len(path), 0, -1):
            if found := self.places.get(path[:length]):
                return found
        return None

    def where(self, path: KeyPath) -> str:
        """Return ``my-run.toml:41 async.max_weight_staleness``; without a line if nothing around it was given."""
        return f"{self.place(path) or self.name} {dotted(path)}"


def dotted(path: KeyPath) -> str:
    """Return a key path as a user writes it: ``data.tasks[0].task``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # A name may be any text in quotes; an error stays on one line.
            shown = (
                part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else '"' + part.encode("unicode_escape").decode() + '"'
            )
            text += f".{shown}" if text else shown
    return text


def load(path: Path, overrides: Sequence[str] = ()) -> RawConfig:
    """Read a run file and apply ``section.key=TOML`` overlays, in order.

    Raises:
        UserError: the file is missing, a folder, too large, not UTF-8 or not TOML, or an overlay is wrong.
    """
    name = str(path)
    content = _read(path, name)
    try:
        text = content.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError("not UTF-8 text", where=f"{name}:{line}", fix="Save the file with UTF-8 encoding.") from None
    data, lines = _parse(text, name)
    places = {key: Place(name, line) for key, line in lines.items()}
    sections = frozenset(data)
    for override in overrides:
        _apply(override, data, places)
    return RawConfig(path.resolve(), name, content, data, places, sections, tuple(overrides))


def _read(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            raise UserError("is a folder, not a run file", where=name, fix="Give the TOML file in it.")
        if path.exists() and not path.is_file():
            raise UserError("is not a regular file", where=name, fix="Give a TOML file.")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(
                f"has {size:,} bytes, and a run file has at most {MAX_BYTES:,}",
                where=name,
                fix="Put data into files that the run file names.",
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            "no such file",
            where=name,
            fix="Check the path, or start from a maintained example: grpo examples list",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"cannot be read ({reason})", where=name.encode("unicode_escape").decode()) from None


def _parse(text: str, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    try:
        return tomllib.loads(text), key_lines(text)
    except RecursionError:
        raise UserError("arrays or tables are nested too deeply", where=name) from None
    except ValueError as error:  # TOMLDecodeError, or a number that Python refuses
        message = str(error)
        # Only Python 3.14 gives the position as attributes.
        if match := re.search(r" \(at line (\d+), column (\d+)\)$", message):
            where, message = f"{name}:{match[1]}", f"{message[: match.start()]} at column {match[2]}"
        elif message.endswith(" (at end of document)"):
            where = f"{name}:{text.count(chr(10), 0, len(text.rstrip())) + 1}"
            message = message.removesuffix(" (at end of document)") + " at the end of the file"
        else:
            where = name
        raise UserError(f"not valid TOML: {_one_line(message)}", where=where) from None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _apply(override: str, data: dict[str, Any], places: dict[KeyPath, Place]) -> None:
    """Put one overlay into ``data``; a digit steps into an array (``data.tasks.0.train_count=64``)."""
    parts, value = _parse_override(override)
    where = f"--set {'.'.join(parts)}"
    target: Any = data
    path: KeyPath = ()
    for depth, part in enumerate(parts, 1):
        step: Any = part
        if isinstance(target, list):
            if not part.isdecimal() or int(part) >= len(target):
                raise UserError(f"{dotted(path)} has elements 0 to {len(target) - 1}, not {part!r}", where=where)
            step = int(part)
        elif not isinstance(target, dict):
            raise UserError(f"{dotted(path)} is a value, not a table", where=where)
        path = (*path, step)
        if depth == len(parts):
            target[step] = value
        elif isinstance(target, dict) and step not in target:
            target[step] = {}
            places[path] = Place("--set", None)
        target = target[step]
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]
    for inner in _paths(value, path):
        places[inner] = Place("--set", None)


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    where = f"--set {_one_line(override)[:80]}"
    try:
        parts, end = split_key(override)
    except ValueError:
        parts, end = (), 0
    if not parts or not override[end:].startswith("="):
        raise UserError("not of the form section.key=VALUE", where=where)
    try:
        value: Any = tomllib.loads(f"value = {override[end + 1 :]}")
        if set(value) != {"value"}:
            raise ValueError("several values")
        return parts, value["value"]
    except (ValueError, RecursionError):
        key, text = override[:end].strip(), override[end + 1 :].strip()
        hint = f"Text needs quotes: --set {key}='\"{text}\"'" if re.fullmatch(r"[\w./:-]+", text) else ""
        raise UserError("the value is not TOML", where=where, fix=hint) from None


def _paths(value: Any, path: KeyPath) -> list[KeyPath]:
    found = [path]
    if isinstance(value, dict):
        for name, inner in value.items():
            found += _paths(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _paths(inner, (*path, index))
    return found
