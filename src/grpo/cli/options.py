"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=TOML",
        help="Set one key, over the file; may be given again. Text needs quotes of its own: "
        "--set output.root='\"runs/x\"'. A path is relative to the working directory.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
