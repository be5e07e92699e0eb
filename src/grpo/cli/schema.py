"""``grpo schema``: the run file as a JSON Schema, for editors."""

import typer

from grpo.cli.options import Debug


def schema(debug: Debug = False) -> None:
    """Print the JSON Schema of a run file.

    Editors that know TOML schemas (taplo, Even Better TOML) complete and check keys with it: save it, and begin a run
    file with #:schema PATH.
    """
    import json

    from grpo.config.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
