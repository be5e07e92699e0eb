import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.data.jsonl import check_prompt_file, read_prompt_file
from grpo.data.row import Message, RawRow
from grpo.errors import UserError

GOOD = {"prompt": "12+34=", "ground_truth": "46", "verifier": "integer"}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*lines: Any, name: str = "data.jsonl") -> str:
    """Write lines: bytes and strings as they are, other values as JSON."""
    parts = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    Path(name).write_bytes(b"\n".join(parts) + b"\n")
    return name


def problems(*lines: Any) -> list[str]:
    return [str(problem) for problem in check_prompt_file(write(*lines))]


def with_fields(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def without(field: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != field}


def test_rows_are_read_in_order_with_every_field() -> None:
    path = write(
        {
            "id": "first",
            "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "12+34=", "name": "x"}],
            "ground_truth": ["46", 47, 4.5],
            "verifier": "gsm8k",
            "difficulty": 3,
        },
        "",
        "   \t",
        {"prompt": " a\u2028b ", "ground_truth": 46, "dataset": "string_match", "options": {"mode": "contains"}},
        GOOD,
    )
    assert check_prompt_file(path) == []
    assert list(read_prompt_file(path)) == [
        RawRow(
            id="first",
            prompt=(Message("system", ""), Message("user", "12+34=")),
            ground_truth=("46", "47", "4.5"),
            verifier="gsm8k",
            source="data",
            where="data.jsonl:1",
        ),
        RawRow(
            id="data/4",
            prompt=" a\u2028b ",
            ground_truth="46",
            verifier="string_match",
            source="data",
            where="data.jsonl:4",
            options={"mode": "contains"},
        ),
        RawRow(
            id="data/5",
            prompt="12+34=",
            ground_truth="46",
            verifier="integer",
            source="data",
            where="data.jsonl:5",
        ),
    ]


def test_a_raw_line_separator_inside_a_string_a_byte_order_mark_and_windows_line_ends_are_no_problem() -> None:
    line = json.dumps(with_fields(prompt="a\u2028\u0085b"), ensure_ascii=False).encode()
    Path("data.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + json.dumps(GOOD).encode())
    assert check_prompt_file("data.jsonl") == []
    assert [(row.id, row.prompt) for row in read_prompt_file("data.jsonl")] == [
        ("data/1", "a\u2028\u0085b"),
        ("data/3", "12+34="),
    ]


def test_the_source_can_be_named() -> None:
    rows = list(read_prompt_file(write(GOOD), source="held-out"))
    assert [(row.id, row.source) for row in rows] == [("held-out/1", "held-out")]


def test_numbers_become_their_decimal_spelling() -> None:
    path = write(
        *(f'{{"prompt": "x", "ground_truth": {n}, "verifier": "gsm8k"}}' for n in ("-3", "1e22", "2.50", "1e-7"))
    )
    assert [row.ground_truth for row in read_prompt_file(path)] == ["-3", "10000000000000000000000", "2.5", "0.0000001"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": ', "broken JSON at column 12: Expecting value. Write one JSON object a line."),
        ("[1]", "a row must be a JSON object, not a list"),
        ("null", "a row must be a JSON object, not null"),
        ('{"prompt": "x"} {}', "broken JSON at column 17: Extra data. Write one JSON object a line."),
        ("[" * 200_000, "the JSON is nested too deeply"),
        (
            '{"prompt": "x", "verifier": "gsm8k", "ground_truth": NaN}',
            "NaN is not JSON. Leave the value out, or write a number or a string.",
        ),
        (
            '{"prompt": "x", "verifier": "gsm8k", "ground_truth": 1e999}',
            "'ground_truth' is too large for a number. Write it as a string.",
        ),
        (
            json.dumps(GOOD).encode().replace(b"12", b"1\xff2"),
            "not UTF-8: byte 14 of the line is 0xff. Save the file as UTF-8.",
        ),
        (with_fields(prompt="\ud800"), "'prompt' holds half of a surrogate pair, which is no character"),
        (without("prompt"), "missing field 'messages' (or 'prompt')"),
        (without("ground_truth"), "missing field 'ground_truth'"),
        (without("verifier"), "missing field 'verifier' (or 'dataset')"),
        (with_fields(messages=[]), "'messages' and 'prompt' are both given. Keep one of them."),
        (with_fields(prompt=7), "'prompt' must be a string, not a number"),
        (with_fields(prompt="  "), "'prompt' is empty"),
        ({**without("prompt"), "messages": "hi"}, "'messages' must be a list, not a string"),
        ({**without("prompt"), "messages": []}, "'messages' is empty"),
        ({**without("prompt"), "messages": ["hi"]}, "'messages[0]' must be an object, not a string"),
        ({**without("prompt"), "messages": [{"role": "user"}]}, "'messages[0]' has no 'content'"),
        (
            {**without("prompt"), "messages": [{"role": "user", "content": [1]}]},
            "'messages[0].content' must be a string, not a list",
        ),
        (
            {
                **without("prompt"),
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            },
            "the last message is the assistant's, but a prompt ends where the assistant is to speak. "
            "Remove it, or move its content to 'ground_truth'.",
        ),
        (with_fields(ground_truth=""), "'ground_truth' is empty"),
        (with_fields(ground_truth=[]), "'ground_truth' is an empty list"),
        (with_fields(ground_truth=["46", " "]), "'ground_truth[1]' is empty"),
        (with_fields(ground_truth=None), "missing field 'ground_truth'"),
        (
            with_fields(ground_truth=True),
            "'ground_truth' must be a string, a number or a list of them, not a boolean",
        ),
        (
            with_fields(ground_truth=["46", {"a": 1}]),
            "'ground_truth[1]' must be a string, a number or a list of them, not an object",
        ),
        (with_fields(ground_truth="x"), "ground truth 'x' is not an integer (verifier 'integer')"),
        (
            with_fields(verifier="intger"),
            "unknown verifier 'intger'. Did you mean 'integer'? Verifiers: gsm8k, integer, regex, string_match.",
        ),
        (with_fields(verifier=["integer"]), "'verifier' must be a string, not a list"),
        (with_fields(dataset="gsm8k"), "'verifier' and 'dataset' are both given and differ. Keep one of them."),
        (with_fields(options=[1]), "'options' must be an object, not a list"),
        (with_fields(options={"x": 1}), "verifier 'integer' has no option 'x'. It has no options."),
        (with_fields(id=7), "'id' must be a string, not a number"),
        (with_fields(opitons={}), "unknown field 'opitons'. Did you mean 'options'?"),
        (
            {"prompt": "x", "groundtruth": "46", "verifier": "integer"},
            "unknown field 'groundtruth'. Did you mean 'ground_truth'?",
        ),
    ],
)
def test_a_bad_row_is_one_problem_that_names_file_and_line(line: Any, problem: str) -> None:
    assert problems(GOOD, GOOD, GOOD, GOOD, GOOD, GOOD, line, GOOD) == [f"data.jsonl:7: {problem}"]


def test_reading_stops_at_the_bad_line_with_the_same_error() -> None:
    rows = read_prompt_file(write(GOOD, "{", GOOD))
    assert next(rows).id == "data/1"
    with pytest.raises(UserError, match=r"^data\.jsonl:2: broken JSON"):
        next(rows)


def test_a_duplicate_id_names_both_lines() -> None:
    assert problems(with_fields(id="a"), GOOD, with_fields(id="a"), with_fields(id="data/2")) == [
        "data.jsonl:3: duplicate id 'a', first used in line 1",
        "data.jsonl:4: duplicate id 'data/2', first used in line 2",
    ]


def test_all_problems_are_found_the_first_twenty_shown_and_the_rest_counted() -> None:
    found = problems(*(["{"] * 3 + [GOOD] + ["{"] * 20))
    shown = [n for n in range(1, 22) if n != 4]
    broken = "Expecting property name enclosed in double quotes. Write one JSON object a line."
    assert found == [
        *(f"data.jsonl:{number}: broken JSON at column 2: {broken}" for number in shown),
        "data.jsonl: 3 more problems in this file",
    ]


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_a_file_without_rows_is_a_problem(content: bytes) -> None:
    Path("data.jsonl").write_bytes(content)
    assert [str(problem) for problem in check_prompt_file("data.jsonl")] == [
        "data.jsonl: the file has no rows. Write one JSON object a line."
    ]


def test_a_file_that_cannot_be_read_is_a_problem() -> None:
    Path("folder").mkdir()
    assert [str(problem) for problem in check_prompt_file("none.jsonl") + check_prompt_file("folder")] == [
        "none.jsonl: no such file. Check the path in the [data] section.",
        "folder: cannot read the file: Is a directory",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELD = st.sampled_from(["messages", "prompt", "ground_truth", "verifier", "dataset", "id", "options", "role"])
LINE = st.binary(max_size=30) | st.dictionaries(FIELD, JSON | st.sampled_from(["integer", "regex"])).map(
    lambda record: json.dumps(record).encode()
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINE, max_size=4))
def test_whatever_a_file_holds_it_is_rows_or_problems_never_a_traceback(lines: list[bytes]) -> None:
    path = write(*lines)
    found = check_prompt_file(path)
    if found:
        with pytest.raises(UserError) as caught:
            list(read_prompt_file(path))
        assert str(caught.value) == str(found[0])
    else:
        assert list(read_prompt_file(path))
