"""``grpo plan``: what will happen, and where every value came from."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo.cli.options import Debug, Json, Overrides, RunFile


def plan(
    run_file: RunFile,
    overrides: Overrides = None,
    all_values: Annotated[bool, typer.Option("--all", help="Show every value, defaults too.")] = False,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a run file means, without side effects."""
    from grpo.plan.resolve import plan as resolve_plan

    resolved = resolve_plan(run_file, overrides or ())
    if json_output:
        import json

        typer.echo(json.dumps(resolved.as_json(), indent=2))
        return
    from grpo.cli.show import show_plan

    show_plan(resolved, all_values=all_values)
