"""Where every key of a TOML text stands.

``tomllib`` reads values but gives no positions. This scanner reads positions but no values: it walks a text that
``tomllib`` has already accepted, so it never has to report a syntax error, and skips over values as cheaply as it can.
"""

from __future__ import annotations

import bisect
import re

KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")
# Strings, longest opening quote first. A multi-line string may end in up to two quotes of its own.
_STRING = re.compile(
    r'"""(?:\\.|(?!""")[^\\])*?"""(?:"{1,2}(?!"))?'
    r"|'''(?:(?!''')[\s\S])*?'''(?:'{1,2}(?!'))?"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line, counted from 1, of every key, table and array element of a valid TOML text.

    A path holds names and, inside arrays, indices: ``("data", "tasks", 0, "task")``. A table that is only implied by a
    dotted name (``a`` in ``[a.b]``) has the line where it is first named.

    Raises:
        RecursionError: arrays or inline tables are nested too deeply; ``tomllib`` raises it for the same texts or
            slightly deeper ones.
    """
    return _Scanner(text).scan()


def split_key(text: str) -> tuple[tuple[str, ...], int]:
    """Read the dotted key that ``text`` starts with; return its parts and the offset behind it."""
    scanner = _Scanner(text)
    return scanner.dotted_key(), scanner.at


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        self.lines: dict[KeyPath, int] = {}
        self.array_lengths: dict[KeyPath, int] = {}  # of arrays of tables: [[name]] seen so far

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_SPACE_AND_LINES)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self._header(opening=2)
            elif self.text[self.at] == "[":
                table = self._header(opening=1)
            else:
                self._key_value(table)
            self._skip(_SPACE_AND_LINES)
        return self.lines

    def dotted_key(self) -> tuple[str, ...]:
        """Read ``a . "b c" . d``; leaves ``at`` behind the last part and the spaces that follow it."""
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(self._key_part())
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _key_part(self) -> str:
        if match := _BARE_KEY.match(self.text, self.at):
            self.at = match.end()
            return match.group()
        match = _STRING.match(self.text, self.at)
        if not match:
            raise ValueError(f"no key at offset {self.at}")
        self.at = match.end()
        quoted = match.group()
        return _unescape(quoted[1:-1]) if quoted[0] == '"' else quoted[1:-1]

    def _header(self, *, opening: int) -> KeyPath:
        line = self._line()
        self.at += opening
        parts = self.dotted_key()
        self.at += opening
        path: KeyPath = ()
        for part in parts[:-1]:
            path = self._enter((*path, part), line)
        path = (*path, parts[-1])
        if opening == 1:
            return self._enter(path, line)
        self.lines.setdefault(path, line)
        index = self.array_lengths.get(path, 0)
        self.array_lengths[path] = index + 1
        self.lines[*path, index] = line
        return (*path, index)

    def _enter(self, path: KeyPath, line: int) -> KeyPath:
        """Return the table that a name in a header means: the last element if it is an array of tables."""
        self.lines.setdefault(path, line)
        length = self.array_lengths.get(path)
        return path if length is None else (*path, length - 1)

    def _key_value(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for part in self.dotted_key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        opening = self.text[self.at]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        elif opening in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while True:
            self._skip(_SPACE_AND_LINES)
            if self.text[self.at] == "]":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            element = (*path, index)
            self.lines[element] = self._line()
            self._value(element)
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while True:
            self._skip(_SPACE_AND_LINES)
            if self.text[self.at] == "}":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._key_value(path)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self.text, self.at):
            self.at = match.end()

    def _line(self) -> int:
        return bisect.bisect_right(self.starts, self.at)


_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        return chr(int(name[1:], 16)) if name[0] in "uUx" else _ESCAPES[name]

    return re.sub(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", replace, text)
