"""The JSON Schema for editors agrees with the code, and what is generated from the schema is fresh."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grpo.config.json_schema import json_schema
from grpo.config.schema import SECTIONS
from grpo.config.schema_base import keys_of

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "configs" / "examples").glob("*.toml"))


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_docs", ROOT / "scripts" / "config_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_files_are_fresh() -> None:
    stale = [path.name for path, text in script().outputs().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/config_docs.py"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_satisfies_the_schema_that_it_names(path: Path) -> None:
    text = path.read_text()
    assert (path.parent / text.splitlines()[0].removeprefix("#:schema ")).resolve() == ROOT / "configs" / "schema.json"
    jsonschema.Draft7Validator(json_schema()).validate(tomllib.loads(text))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[inference]\nsampels_per_prompt = 8", ["inference"]),
        ("[inference]\nsamples_per_prompt = '8'", ["inference", "samples_per_prompt"]),
        ("[inference]\nsamples_per_prompt = 0", ["inference", "samples_per_prompt"]),
        ("[core]\npublication_mode = 'refesh'", ["core", "publication_mode"]),
        ("[[data.tasks]]\ntask = 'x'", ["data", "tasks", 0]),
        ("[launch.slurm]\nacount = 'x'", ["launch", "slurm"]),
        ("[inference]\nsglang_attention_backend = 'fa5'", ["inference", "sglang_attention_backend"]),
        ("[inference]\nvllm_max_num_seqs = 'x'", ["inference", "vllm_max_num_seqs"]),
        ("[judges.a]\nmodle = 'm'", ["judges", "a"]),
        ("nme = 'x'", []),
    ],
)
def test_a_wrong_file_is_wrong_for_the_editor_too(text: str, where: list[Any]) -> None:
    (error,) = jsonschema.Draft7Validator(json_schema()).iter_errors(tomllib.loads(text))
    assert list(error.absolute_path) == where


def test_every_key_is_there_with_its_description_and_default() -> None:
    schema = json_schema()["properties"]
    for section, info in SECTIONS.items():
        table = schema[section]["additionalProperties"] if info.named else schema[section]
        for name, field in keys_of(info.model).items():
            shown = table["properties"][name]
            assert shown["description"].startswith(field.description), f"{section}.{name}"
            if isinstance(field.default, bool | int | float | str):
                assert shown["default"] == field.default, f"{section}.{name}"
    assert schema["core"]["properties"]["max_policy_lag"]["description"] == (
        "Low-level name of async.max_weight_staleness; above 0, a low-level run is asynchronous. Unit: optimizer "
        "steps. Default: 0. Also: async.max_weight_staleness."
    )
    assert (
        "is planned and validated, but cannot be run yet"
        in schema["tracking"]["properties"]["wandb_mode"]["description"]
    )
