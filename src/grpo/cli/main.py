"""The command line. One thin file a command; errors become exit codes here.

Modules with commands do without ``from __future__ import annotations``: typer would have to evaluate the annotations of
all commands, as text, at every start. ``benchmarks/startup.py`` shows what a start takes.
"""

import gc
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from grpo import __version__
from grpo.cli.examples import app as examples_app
from grpo.cli.export import export
from grpo.cli.inspect import inspect
from grpo.cli.options import Debug
from grpo.cli.plan import plan
from grpo.cli.run import run, train
from grpo.cli.schema import schema
from grpo.cli.validate import validate
from grpo.errors import ConfigErrors, GrpoError

GC_THRESHOLDS = (50_000, 20, 20)  # as in runtime/garbage.py
EXIT_FAILED = 3
EXIT_KEYBOARD = 130  # 128 + SIGINT, as shells report it
EXIT_PIPE = 141  # 128 + SIGPIPE

app = typer.Typer(
    name="grpo",
    help="One TOML file becomes a GRPO training run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(plan)
app.command()(validate)
app.command()(schema)
app.command()(run)
app.add_typer(examples_app, name="examples")
app.command()(train)
app.command()(export)
app.command()(inspect)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"grpo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """One TOML file becomes a GRPO training run."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    # Starting makes many objects and hardly any cycles of garbage, so CPython's search for them is put off.
    gc.set_threshold(*GC_THRESHOLDS)
    debug, json_output = "--debug" in sys.argv[1:], "--json" in sys.argv[1:]
    code = guarded(lambda: app(prog_name="grpo", standalone_mode=True), debug=debug, json_output=json_output)
    gc.freeze()  # at exit the interpreter searches again, among what goes away anyhow: a fifth of the time of a plan
    sys.exit(code)


def guarded(command: Callable[[], object], *, debug: bool = False, json_output: bool = False) -> int:
    """Run a command and return its exit code; show its error as one line, with ``debug`` also as a traceback."""
    code = 0
    try:
        command()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.__context__, BrokenPipeError):  # typer has turned it into exit code 1
            code = EXIT_PIPE
    except GrpoError as error:
        _show(error, debug=debug, json_output=json_output)
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = EXIT_KEYBOARD
    except BrokenPipeError:
        code = EXIT_PIPE
    except Exception as error:
        if debug:
            _traceback()
        text = " ".join(str(error).split())
        print(f"internal error: {type(error).__name__}: {text}. Rerun with --debug for details", file=sys.stderr)
        code = EXIT_FAILED
    return _flush(code)


def _show(error: GrpoError, *, debug: bool, json_output: bool) -> None:
    if debug:
        _traceback()
    problems = error.problems if isinstance(error, ConfigErrors) else (error,)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if json_output:
        import json

        shown = [{"where": problem.where, "what": problem.what, "fix": problem.fix} for problem in problems]
        print(json.dumps({"status": "error", "exit_code": error.exit_code, "errors": shown}))


def _traceback() -> None:
    import traceback

    traceback.print_exc()


def _flush(code: int) -> int:
    """Flush stdout now: at exit, a closed pipe would be a traceback that nobody can catch."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    return code
