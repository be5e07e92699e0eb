"""``grpo plan`` shows every number with its arithmetic, and gives the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo.cli.main import app
from grpo.plan.estimate import estimate
from grpo.plan.estimate_base import Quantity, hardware, show
from grpo.plan.resolve import plan

Write = Callable[..., Path]
EXAMPLES = Path(__file__).parents[2] / "configs" / "examples"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words])


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        (0, "bytes", "0 B"),
        (1023, "bytes", "1023 B"),
        (1536, "bytes", "1.5 KiB"),
        (8 * 2**30, "bytes", "8 GiB"),
        (1000 * 2**20, "bytes", "1000 MiB"),
        (3 * 2**50, "bytes", "3072 TiB"),
        (0.25, "s", "0.25 s"),
        (150, "s", "2.5 min"),
        (9000, "s", "2.5 h"),
        (1, "nodes", "1 node"),
        (12345, "tokens", "12,345 tokens"),
        (12345.6, "tokens/s", "12,346 tokens/s"),
        (0.601872, "", "0.6019"),
        ("text", "", "text"),
    ],
)
def test_a_number_reads_as_people_write_it(value: object, unit: str, wanted: str) -> None:
    assert show(value, unit) == wanted


def test_a_quantity_is_a_line_with_formula_inputs_and_note() -> None:
    quantity = Quantity("a.b", "label", 2048, "bytes", "s x n", {"s": 4, "n": 512, "unknown": None}, "a note")
    assert quantity.text() == "2 KiB = s x n (s 4, n 512); a note"
    unknown = Quantity("a.b", "label", None, "s", "", {}, "why")
    assert (unknown.amount, unknown.arithmetic) == ("unknown", "why")


def test_the_text_has_a_line_for_every_quantity(write: Write) -> None:
    path = write()
    shown = run(str(path))
    assert shown.exit_code == 0, shown.output
    lines = [line.strip() for line in shown.stdout.splitlines()]
    for part in estimate(plan(path).job).parts:
        assert f"{part.title[0].upper()}{part.title[1:]}:" in lines
        for quantity in part.quantities:
            found = [line for line in lines if line.startswith(f"{quantity.label}  ") and quantity.arithmetic in line]
            assert len(found) == 1 and quantity.amount in found[0], quantity.name


def test_the_json_has_the_same_numbers_and_the_assumptions(write: Write) -> None:
    path = write()
    given = json.loads(run(str(path), "--json", "--gpu", "h200").stdout)["estimate"]
    assert given == json.loads(json.dumps(estimate(plan(path).job, hardware("h200")).as_json()))
    assert given["assumptions"]["gpu"] == "h200"


def test_rates_of_a_file_give_times(write: Write, folder: Path) -> None:
    path = write()
    (folder / "rates.toml").write_text("generate_tokens_per_s = 1000\ntrain_tokens_per_s = 4096\n")
    given = json.loads(run(str(path), "--json", "--rates", "rates.toml").stdout)["estimate"]["quantities"]
    assert given["time.generation"]["value"] == 64 * 32 / 1000
    assert given["time.training"]["value"] == 64 * 64 / 4096
    assert given["time.collection"]["value"] == 64 * 32 / 1000 + 1
    wrong = run(str(path), "--rates", "no.toml")
    assert (wrong.exit_code, str(wrong.exception)) == (1, "--rates no.toml: cannot be read (No such file or directory)")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_has_all_parts_of_an_estimate(path: Path) -> None:
    result = estimate(plan(path).job)
    for name in ("learner.peak", "engine.contexts", "publication.bytes", "disk.checkpoint", "cost.hours", "sync.lag"):
        result.get(name)
    notes = [quantity.note for part in result.parts for quantity in part.quantities]
    assert not [note for note in notes if "does not fit" in note]
    assert len(plan(path).job.topology.engines) == plan(path).job.engine.count
    assert len(plan(path).job.topology.learner) == plan(path).job.learner.ranks
