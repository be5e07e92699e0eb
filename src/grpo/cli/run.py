"""``grpo run`` and ``grpo train``: start a run, and what a node executes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.cli.options import Debug, Json, Overrides, RunFile

if TYPE_CHECKING:
    from grpo.types import RunResult


def run(
    run_file: RunFile,
    overrides: Overrides = None,
    fork_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="Begin from a checkpoint folder of another run, in a fresh output.root.",
            show_default=False,
        ),
    ] = None,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Train what a run file says, on this machine; an unfinished run goes on from its newest checkpoint."""
    from grpo.launch import local
    from grpo.launch.receipt import command_line
    from grpo.plan.resolve import plan

    resolved = plan(run_file, overrides or ())
    resolved.require_runnable()
    _report(local.run(resolved, command_line(), json_output=json_output, fork_from=fork_from), json_output=json_output)


def train(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.json", help="The resolved job.", show_default=False)],
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Train a resolved job; what a node executes."""
    from pydantic import ValidationError

    from grpo.errors import UserError
    from grpo.launch import local
    from grpo.plan.job import JobSpec

    try:
        job = JobSpec.read(job_file)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=str(job_file)) from None
    except (ValidationError, UnicodeDecodeError) as error:
        detail = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "not UTF-8"}
        what = f"not a job of this version ({'.'.join(map(str, detail['loc']))}: {detail['msg']})".replace("(: ", "(")
        raise UserError(what, where=str(job_file), fix="grpo run writes job.json into output.root.") from None
    _report(local.train(job, json_output=json_output), json_output=json_output)


def _report(result: "RunResult", *, json_output: bool) -> None:
    if json_output:
        import json

        typer.echo(json.dumps(result.as_json()))
