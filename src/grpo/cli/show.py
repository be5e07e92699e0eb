"""How ``grpo plan`` looks: styled in a terminal, aligned text elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from grpo.plan.describe import facts, headline, origins
from grpo.plan.estimate import Estimate
from grpo.plan.resolve import Plan

if TYPE_CHECKING:
    from rich.console import Console

Rows = Sequence[tuple[str, ...]]
Block = tuple[str, Rows]
"""A heading and the rows under it."""


def show_plan(plan: Plan, estimated: Estimate, *, all_values: bool) -> None:
    """Print a plan: what will happen, what it needs, and where the values came from."""
    blocks = list(_blocks(plan, estimated, all_values=all_values))
    console = _terminal()
    if console is not None:
        _show_styled(console, blocks)
    else:
        typer.echo("\n\n".join(f"{heading}\n{_aligned(rows)}" for heading, rows in blocks))


def _blocks(plan: Plan, estimated: Estimate, *, all_values: bool) -> Iterable[Block]:
    yield headline(plan.job), facts(plan.job)
    for part in estimated.parts:
        rows = [(quantity.label, quantity.amount, quantity.arithmetic) for quantity in part.quantities]
        yield f"{part.title[:1].upper()}{part.title[1:]}:", rows
    yield "Every value:" if all_values else "Values given (all: --all):", origins(plan, all_values=all_values)


def _terminal() -> Console | None:
    """Return a console if stdout is a terminal or is to be taken for one.

    rich decides, but importing it takes a tenth of the whole command, so it is only asked where the answer can be yes.
    """
    if not sys.stdout.isatty() and not {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        return None
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else None


def _show_styled(console: Console, blocks: Iterable[Block]) -> None:
    from rich.table import Table

    for index, (heading, rows) in enumerate(blocks):
        if index:
            console.print()
        console.print(heading, style="bold")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True)
        for _ in rows[0][1:] if rows else ():
            table.add_column(overflow="fold")
        for row in rows:
            table.add_row("  " + row[0], *row[1:])
        console.print(table)


def _aligned(rows: Rows) -> str:
    """Return rows as lines, every column but the last as wide as its widest text.

    Such output is for tools: nothing is cut at the width of a terminal that is not there.
    """
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)] if rows else []
    lines = []
    for row in rows:
        first = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        lines.append(f"  {first}  {row[-1]}".rstrip())
    return "\n".join(lines)
