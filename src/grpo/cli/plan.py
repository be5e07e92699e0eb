"""``grpo plan``: what will happen, and where every value came from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.cli.options import Debug, Json, Overrides, RunFile

if TYPE_CHECKING:
    from grpo.plan.resolve import Plan


def plan(
    run_file: RunFile,
    overrides: Overrides = None,
    all_values: Annotated[bool, typer.Option("--all", help="Show every value, defaults too.")] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="KEY", help="Show where one value came from.", show_default=False),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", metavar="OTHER.toml", help="Show how another run file differs.", show_default=False),
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(
            "--rates",
            metavar="FILE",
            help="Measured rates: metrics.jsonl of an earlier run, or a small TOML or JSON file.",
            show_default=False,
        ),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Rehearse it on a simulated fleet, in every publication mode.")
    ] = False,
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="The GPU that estimates assume.")] = "h100",
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a run file means, without side effects."""
    from grpo.plan.resolve import plan as resolve_plan

    resolved = resolve_plan(run_file, overrides or ())
    if explain is not None or diff is not None:
        _compare(resolved, explain, resolve_plan(diff) if diff is not None else None, json_output=json_output)
        return
    if simulate:
        from grpo.cli.simulate import show_simulation

        show_simulation(resolved.job, json_output=json_output)
        return
    from grpo.plan.estimate import estimate
    from grpo.plan.estimate_base import hardware
    from grpo.plan.rates import read_rates

    measured = None if rates is None else read_rates(rates, resolved.job)
    estimated = estimate(resolved.job, hardware(gpu), measured)
    if json_output:
        import json

        found = resolved.findings
        shown = {**resolved.as_json(), "estimate": estimated.as_json()}
        shown["warnings"] = [str(problem) for problem in found.warnings]
        shown["cannot_run"] = [str(problem) for problem in found.cannot_run]
        typer.echo(json.dumps(shown, indent=2))
        return
    from grpo.cli.show import show_plan

    show_plan(resolved, estimated, all_values=all_values)
    for problem in resolved.findings.warnings:
        typer.echo(f"warning: {problem}", err=True)
    for problem in resolved.findings.cannot_run:
        typer.echo(f"cannot run yet: {problem}", err=True)


def _compare(resolved: "Plan", key: str | None, other: "Plan | None", *, json_output: bool) -> None:
    """Show one value and where it came from, or what another run file does otherwise."""
    import json

    from grpo.plan import explain

    if key is not None:
        explained = explain.explain(resolved, key)
        if json_output:
            typer.echo(json.dumps([each.as_json() for each in explained], indent=2))
        else:
            typer.echo("\n".join(line for each in explained for line in each.lines()))
    if other is not None:
        rows = explain.difference(resolved, other)
        if json_output:
            typer.echo(json.dumps(rows, indent=2))
        else:
            typer.echo("\n".join(explain.difference_lines(rows, (resolved.raw.name, other.raw.name))))
