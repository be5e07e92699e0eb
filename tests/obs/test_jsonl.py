"""JSON lines stay valid whatever happens to the process or the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from obs_examples import make_row, make_score

from grpo.errors import RunFailed
from grpo.obs.jsonl import JsonLines, MetricsFile, read_rows
from grpo.obs.rows import eval_row


def test_a_metrics_file_has_a_line_for_each_step_and_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.evaluation(make_score(0, 0.25))
    metrics.step(make_row(1))
    expected = [eval_row(make_score(0, 0.25)), make_row(1).as_json()]
    # Before it is closed: a line is on disk when the event returns.
    assert path.read_text() == "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in expected)
    metrics.close()
    metrics.close()
    assert read_rows(path) == expected


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = os.write

    def record(fd: int, data: bytes) -> int:
        written.append(data)
        return write(fd, data)

    lines = JsonLines(tmp_path / "a.jsonl")
    monkeypatch.setattr(os, "write", record)
    lines.write({"a": 1})
    lines.write({"b": "x" * 100_000})
    assert written == [b'{"a":1}\n', b'{"b":"' + b"x" * 100_000 + b'"}\n']


def test_values_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.write({"a": float("nan"), "b": {"c": [1.5, float("inf"), ("é", float("-inf"))]}, "d": "NaN"})
    assert (tmp_path / "a.jsonl").read_bytes() == '{"a":null,"b":{"c":[1.5,null,["é",null]]},"d":"NaN"}\n'.encode()


def test_a_line_separator_inside_a_text_does_not_split_a_line(tmp_path: Path) -> None:
    row = {"text": "a\nb\u2028c\rd\x85e"}
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.write(row)
    lines.write(row)
    assert read_rows(tmp_path / "a.jsonl") == [row, row]


def test_wherever_the_last_line_is_torn_readers_skip_it_and_the_next_run_cuts_it(tmp_path: Path) -> None:
    first, last, new = {"step": 1, "text": "ü"}, {"step": 2, "text": "ü", "more": [1, 2]}, {"step": 3}
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.write(first)
    kept = path.read_bytes()
    lines.write(last)
    whole = path.read_bytes()
    for length in range(len(kept), len(whole)):
        path.write_bytes(whole[:length])
        assert read_rows(path) == [first]
        JsonLines(path).write(new)
        assert path.read_bytes() == kept + b'{"step":3}\n'
    path.write_bytes(whole)
    JsonLines(path).write(new)
    assert read_rows(path) == [first, last, new]


@pytest.mark.parametrize("length", [0, 1, 65535, 65536, 65537, 200_000])
def test_a_torn_line_is_found_however_long_it_is(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.jsonl"
    for head in (b"", b'{"a":1}\n'):
        path.write_bytes(head + b"x" * length)
        JsonLines(path).close()
        assert path.read_bytes() == head


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert read_rows(tmp_path / "a.jsonl") == []


def test_a_line_that_is_broken_before_the_end_is_damage_and_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":1}\n{"a":\n{"a":3}\n')
    with pytest.raises(json.JSONDecodeError):
        read_rows(tmp_path / "a.jsonl")


_WRITER = """
import sys
from pathlib import Path
from grpo.obs.jsonl import JsonLines
lines = JsonLines(Path(sys.argv[1]))
for number in range(10**9):
    lines.write({"number": number, "padding": "x" * (number % 7 * 5000)})
"""


def test_a_writer_killed_at_any_moment_leaves_whole_rows_and_the_next_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(4):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)])
        try:
            while not path.exists() or path.stat().st_size < 1_000_000:
                assert writer.poll() is None, "the writer died by itself"
                time.sleep(0.001)
                if path.exists():  # while it writes, a reader sees whole rows only
                    _assert_numbered(read_rows(path))
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        rows = read_rows(path)
        _assert_numbered(rows)
        JsonLines(path).write({"number": len(rows), "padding": ""})
        for line in path.read_bytes().splitlines(keepends=True):
            assert line.endswith(b"\n") and json.loads(line)
        _assert_numbered(read_rows(path))


def _assert_numbered(rows: list[dict]) -> None:
    assert [row["number"] for row in rows] == list(range(len(rows)))


def test_metrics_that_cannot_be_written_fail_the_run_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(RunFailed) as caught:
        MetricsFile(tmp_path / "run" / "metrics.jsonl")
    assert str(caught.value) == (
        f"{tmp_path}/run/metrics.jsonl: cannot write: [Errno 17] File exists: '{tmp_path}/run'. "
        "Free space on that disk or make the folder writable, then run the same command again."
    )
    assert MetricsFile.essential


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from grpo.errors import RunFailed
from grpo.obs.jsonl import JsonLines
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lines = JsonLines(Path(sys.argv[1]))
lines.write({"a": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))  # as a full disk: a write takes what fits
try:
    lines.write({"a": "x" * 100})
except RunFailed as error:
    print(error.what)
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    done = subprocess.run([sys.executable, "-c", _LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "cannot write: only 12 of 109 bytes could be written\n"
    assert path.read_bytes() == b'{"a":1}\n'
