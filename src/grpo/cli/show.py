"""How ``grpo plan`` looks in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from grpo.plan.describe import facts, headline, origins
from grpo.plan.resolve import Plan


def show_plan(plan: Plan, *, all_values: bool) -> None:
    """Print a plan: what will happen, then where the values came from."""
    console = Console(highlight=False, markup=False)
    # Piped output is for tools: a path must not be cut at the width of a terminal that is not there.
    if not console.is_terminal:
        console.width = 400
    console.print(headline(plan.job), style="bold")
    _print(console, facts(plan.job))
    console.print()
    console.print("Every value:" if all_values else "Values given (all: --all):", style="bold")
    _print(console, origins(plan, all_values=all_values))


def _print(console: Console, rows: list[tuple[str, str]] | list[tuple[str, str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for _ in rows[0][1:] if rows else ():
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row("  " + row[0], *row[1:])
    console.print(table)
