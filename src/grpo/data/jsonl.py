"""Prompt files: one JSON object a line. Imports no torch: ``grpo validate`` reads the same rows that training reads.

A row has ``messages`` (a list of ``{"role", "content"}``) or ``prompt`` (a text), ``ground_truth`` (a string, a number
or a list of them), ``verifier`` (or ``dataset``) and optionally ``id`` and ``options``. Other fields are ignored,
unless one looks like a misspelt field of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from grpo.data.parse import parse_line
from grpo.data.row import RawRow
from grpo.errors import UserError

PROBLEMS_SHOWN = 20


def read_prompt_file(path: Path | str, *, source: str | None = None) -> Iterator[RawRow]:
    """Yield the rows of a prompt file, one at a time, in file order.

    Args:
        path: the file; errors name it as it is given here.
        source: ``RawRow.source`` and the head of generated ids (``source/7`` for line 7); default the file's stem.

    Raises:
        UserError: at the first problem, when it is reached.
    """
    for item in _scan(path, source):
        if isinstance(item, UserError):
            raise item
        yield item


def check_prompt_file(path: Path | str) -> list[UserError]:
    """Return the problems of a prompt file, in file order: the first 20, then one that says how many more there are."""
    problems = (item for item in _scan(path, None) if isinstance(item, UserError))
    shown = list(islice(problems, PROBLEMS_SHOWN))
    more = sum(1 for _ in problems)
    if more:
        shown.append(UserError(f"{more} more problem{'s' if more > 1 else ''} in this file", where=str(path)))
    return shown


def _scan(path: Path | str, source: str | None) -> Iterator[RawRow | UserError]:
    """Yield a row or a problem for each line that is not blank; memory holds one line, and the ids seen."""
    head = Path(path).stem if source is None else source
    line_of_id: dict[str, int] = {}
    empty = True
    for number, line in _lines(path):
        empty = False
        if isinstance(line, UserError):
            yield line
            continue
        try:
            row = parse_line(line, where=f"{path}:{number}", source=head, default_id=f"{head}/{number}")
        except UserError as problem:
            yield problem
            continue
        first = line_of_id.setdefault(row.id, number)
        if first == number:
            yield row
        else:
            yield UserError(f"duplicate id {row.id!r}, first used in line {first}", where=row.where)
    if empty:
        yield UserError("the file has no rows", where=str(path), fix="Write one JSON object a line.")


def _lines(path: Path | str) -> Iterator[tuple[int, str | UserError]]:
    """Yield line number (from 1) and text of each line that is not blank.

    Lines end at a newline only: JSON strings may hold the other characters that Python takes for line breaks.
    """
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, start=1):
                data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
                if not data.strip():
                    continue
                try:
                    # Without its end, so that the columns of JSON errors are those of this line.
                    yield number, data.rstrip(b"\r\n").decode("utf-8")
                except UnicodeDecodeError as error:
                    problem = f"not UTF-8: byte {error.start + 1} of the line is 0x{data[error.start]:02x}"
                    yield number, UserError(problem, where=f"{path}:{number}", fix="Save the file as UTF-8.")
    except FileNotFoundError:
        yield 1, UserError("no such file", where=str(path), fix="Check the path in the [data] section.")
    except OSError as error:
        yield 1, UserError(f"cannot read the file: {error.strerror}", where=str(path))
