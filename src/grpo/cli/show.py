"""How ``grpo plan`` looks in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from grpo.plan.describe import facts, headline, origins
from grpo.plan.estimate import Estimate
from grpo.plan.resolve import Plan


def show_plan(plan: Plan, estimated: Estimate, *, all_values: bool) -> None:
    """Print a plan: what will happen, what it needs, and where the values came from."""
    console = Console(highlight=False, markup=False)
    # Piped output is for tools: nothing is cut at the width of a terminal that is not there.
    if not console.is_terminal:
        console.width = 400
    console.print(headline(plan.job), style="bold")
    _print(console, facts(plan.job))
    for part in estimated.parts:
        console.print()
        console.print(f"{part.title[:1].upper()}{part.title[1:]}:", style="bold")
        _print(console, [(quantity.label, quantity.amount, quantity.arithmetic) for quantity in part.quantities])
    console.print()
    console.print("Every value:" if all_values else "Values given (all: --all):", style="bold")
    _print(console, origins(plan, all_values=all_values))


def _print(console: Console, rows: list[tuple[str, str]] | list[tuple[str, str, str]]) -> None:
    if not console.is_terminal:
        console.out(_aligned(rows))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for _ in rows[0][1:] if rows else ():
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row("  " + row[0], *row[1:])
    console.print(table)


def _aligned(rows: list[tuple[str, str]] | list[tuple[str, str, str]]) -> str:
    """Return rows as lines, every column but the last as wide as its widest text."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)] if rows else []
    lines = []
    for row in rows:
        first = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        lines.append(f"  {first}  {row[-1]}".rstrip())
    return "\n".join(lines)
