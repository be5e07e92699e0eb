"""``grpo validate``: every problem of a run file at once."""

from __future__ import annotations

import typer

from grpo.cli.options import Debug, Json, Overrides, RunFile


def validate(run_file: RunFile, overrides: Overrides = None, json_output: Json = False, debug: Debug = False) -> None:
    """Check a run file, the model folder and the data that it names, without side effects."""
    from grpo.plan.resolve import plan

    resolved = plan(run_file, overrides or ())
    if json_output:
        import json

        typer.echo(json.dumps({"status": "ok", "name": resolved.job.name, "job_sha256": resolved.job.sha256()}))
    else:
        typer.echo(f"{resolved.raw.name}: no problems found")
