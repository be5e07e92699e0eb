"""Reading a run file: what is wrong with it is one line; what is right knows where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config.load import Place, dotted, load
from grpo.errors import UserError

Write = Callable[[str], Path]


def test_values_and_places_are_those_of_the_file(write: Write) -> None:
    raw = load(write('name = "x"\n\n[core]\nmax_policy_lag = 2\n'))
    assert raw.data == {"name": "x", "core": {"max_policy_lag": 2}}
    assert {path: str(place) for path, place in raw.places.items()} == {
        ("name",): "run.toml:1",
        ("core",): "run.toml:3",
        ("core", "max_policy_lag"): "run.toml:4",
    }
    assert raw.where(("core", "max_policy_lag")) == "run.toml:4 core.max_policy_lag"
    assert raw.where(("core", "snapshot_capacity")) == "run.toml:3 core.snapshot_capacity"
    assert raw.where(("miles",)) == "run.toml miles"


def test_an_overlay_replaces_adds_and_steps_into_arrays(write: Write) -> None:
    path = write('[core]\na = 1\n[[data.tasks]]\ntask = "x"\ntrain_count = 1\n')
    raw = load(path, ["core.a=2", 'output.root="r"', "data.tasks.0.train_count=5", "data . extra = { b = [1, 2] }"])
    assert raw.data == {
        "core": {"a": 2},
        "data": {"tasks": [{"task": "x", "train_count": 5}], "extra": {"b": [1, 2]}},
        "output": {"root": "r"},
    }
    by_set = {dotted(path) for path, place in raw.places.items() if place == Place("--set", None)}
    assert by_set == {
        "core.a",
        "output",
        "output.root",
        "data.tasks[0].train_count",
        "data.extra",
        "data.extra.b",
        "data.extra.b[0]",
        "data.extra.b[1]",
    }
    assert raw.file_sections == {"core", "data"}


def test_the_last_overlay_of_a_key_wins_and_its_old_places_are_gone(write: Write) -> None:
    raw = load(write("[a]\nb = { c = 1 }\n"), ["a.b={d = 2}", "a.b=3"])
    assert raw.data == {"a": {"b": 3}}
    assert set(raw.places) == {("a",), ("a", "b")}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("core.a", "--set core.a: not of the form section.key=VALUE"),
        ("=1", "--set =1: not of the form section.key=VALUE"),
        ("", "--set : not of the form section.key=VALUE"),
        (
            "output.root=runs/x",
            "--set output.root=runs/x: the value is not TOML. Text needs quotes: --set output.root='\"runs/x\"'",
        ),
        ("core.a=", "--set core.a=: the value is not TOML"),
        ("core.a=1\nb=2", "--set core.a=1 b=2: the value is not TOML"),
        ("core.a.b=1", "--set core.a.b: core.a is a value, not a table"),
        ("tasks.1.x=1", "--set tasks.1.x: tasks has elements 0 to 0, not '1'"),
        ("tasks.x=1", "--set tasks.x: tasks has elements 0 to 0, not 'x'"),
        ("core.a=" + "[" * 5000, "--set core.a=" + "[" * 73 + ": the value is not TOML"),
    ],
)
def test_a_wrong_overlay_is_one_line(write: Write, override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load(write("[core]\na = 1\n[[tasks]]\n"), [override])
    assert str(error.value) == message


def test_a_missing_file_says_where_to_start(write: Write) -> None:
    write("")
    with pytest.raises(UserError) as error:
        load(Path("nope.toml"))
    assert (
        str(error.value)
        == "nope.toml: no such file. Check the path, or start from a maintained example: grpo examples list"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = \n", "run.toml:2: not valid TOML: Invalid value at column 5"),
        ("a = 1\n[b\n", "run.toml:2: not valid TOML: Expected ']' at the end of a table declaration at column 3"),
        ("a = 1\na = 2\n", "run.toml:2: not valid TOML: Cannot overwrite a value at column 6"),
        ("a = [1,\n\n", "run.toml:1: not valid TOML: Invalid value at the end of the file"),
        ("a = " + "9" * 5000, "run.toml: not valid TOML: *"),
        ("a = " + "[" * 100_000, "run.toml: arrays or tables are nested too deeply"),
        ("a = " + "{b=" * 50_000, "run.toml: arrays or tables are nested too deeply"),
        ("a = " + "[" * 200 + "]" * 200, ""),
        ("#" * 1_000_001, "run.toml: has 1,000,001 bytes, and a run file has at most 1,000,000. Put data into files "
         "that the run file names."),
    ],
)  # fmt: skip
def test_broken_toml_is_one_line_with_its_place(write: Write, text: str, message: str) -> None:
    path = write(text)
    if not message:
        assert load(path).data
        return
    with pytest.raises(UserError) as error:
        load(path)
    assert re.fullmatch(re.escape(message).replace(r"\*", ".*"), str(error.value)), str(error.value)


def test_what_is_no_text_file_is_refused(write: Write, tmp_path: Path) -> None:
    path = write("")
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(UserError) as error:
        load(path)
    assert str(error.value) == "run.toml:2: not UTF-8 text. Save the file with UTF-8 encoding."
    with pytest.raises(UserError) as error:
        load(Path("."))
    assert str(error.value) == ".: is a folder, not a run file. Give the TOML file in it."
    with pytest.raises(UserError) as error:
        load(Path("/dev/null"))
    assert str(error.value) == "/dev/null: is not a regular file. Give a TOML file."
    with pytest.raises(UserError) as error:
        load(Path("run.toml/x"))
    assert str(error.value) == "run.toml/x: cannot be read (Not a directory)"
    with pytest.raises(UserError) as error:
        load(Path("a\0b"))
    assert str(error.value).startswith("a\\x00b: cannot be read")
