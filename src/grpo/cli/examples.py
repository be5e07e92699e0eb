"""``grpo examples``: the maintained run files, and a copy to start from."""

import os
from pathlib import Path
from typing import Annotated

import typer

from grpo.cli.options import Debug

app = typer.Typer(help="Maintained run files: list them, or copy one to start from.", no_args_is_help=True)


def examples_dir() -> Path:
    """Return the folder of the examples: in the installed package, or in the checkout."""
    from grpo.errors import GrpoError

    package = Path(__file__).parents[1]
    for folder in (package / "_examples", package.parents[1] / "configs" / "examples"):
        if folder.is_dir():
            return folder
    raise GrpoError("the examples are not installed", fix="Install grpo again.")


@app.command("list")
def list_examples(debug: Debug = False) -> None:
    """List the examples, each with its purpose."""
    found = sorted(examples_dir().glob("*.toml"))
    width = max((len(path.stem) for path in found), default=0)
    for path in found:
        typer.echo(f"{path.stem:<{width}}  {purpose(path.read_text(encoding='utf-8'))}")


@app.command("copy")
def copy_example(
    name: Annotated[str, typer.Argument(help="Name of the example.", show_default=False)],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="New file, or a folder.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Copy an example; the copy writes into runs/NAME beside it."""
    from grpo.errors import UserError

    known = {path.stem: path for path in sorted(examples_dir().glob("*.toml"))}
    source = known.get(name.removesuffix(".toml"))
    if source is None:
        raise UserError(f"there is no example {name!r}", fix=f"The examples are: {', '.join(known)}.")
    target = destination / source.name if destination.is_dir() else destination
    text = with_root(source.read_text(encoding="utf-8"), f"runs/{target.stem}")
    text = with_schema(text, target, source.parents[1] / "schema.json")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            "exists already, and nothing is overwritten", where=str(target), fix="Name a new file."
        ) from None
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror})", where=str(target)) from None
    typer.echo(f"{target}: copied from {source.stem}. Next: grpo plan {target}")


def purpose(text: str) -> str:
    """Return what an example is for: its first comment that is not a directive."""
    return next((line[2:] for line in text.splitlines() if line.startswith("# ")), "")


def with_schema(text: str, target: Path, schema: Path) -> str:
    """Return the text of a run file with its ``#:schema`` line pointing to ``schema`` from ``target``.

    Where there is no such file, as in an installed package, the line is left out.
    """
    first, newline, rest = text.partition("\n")
    if not first.startswith("#:schema "):
        return text
    if not schema.is_file():
        return rest
    return f"#:schema {os.path.relpath(schema, target.resolve().parent)}{newline}{rest}"


def with_root(text: str, root: str) -> str:
    """Return the text of a run file with another ``output.root``; everything else, comments too, stays."""
    import json

    from grpo.config.positions import key_lines

    lines = text.splitlines(keepends=True)
    index = key_lines(text)["output", "root"] - 1
    lines[index] = f"root = {json.dumps(root)}\n"
    return "".join(lines)
