"""``grpo export``: a Hugging Face folder from a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from grpo.cli.options import Debug


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's output.root.", show_default=False)],
    step: Annotated[
        int | None, typer.Option(help="Policy version; the newest checkpoint if not given.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder; RUN/export-hf-step-NNNNNN if not given.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a checkpoint's policy as a Hugging Face folder."""
    from grpo.launch import local

    typer.echo(str(local.export(run, step=step, out=out)))
