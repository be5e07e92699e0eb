"""The console: plain lines without a terminal, a picture on one."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from obs_examples import make_row, make_score, make_status
from rich.console import Console

from grpo.obs.live import LiveConsole
from grpo.obs.observer import Observer
from grpo.obs.picture import picture
from grpo.obs.plain import PlainConsole
from grpo.obs.progress import Progress
from grpo.obs.rows import StepRow
from grpo.obs.text import count, duration, number, seconds, sparkline
from grpo.types import RunResult
from support.jobs import make_job


def _written_run(tmp_path: Path) -> RunResult:
    root = tmp_path / "run"
    for folder in ("checkpoints", "export-hf"):
        (root / folder).mkdir(parents=True)
    for file in ("metrics.jsonl", "receipt.json"):
        (root / file).touch()
    return RunResult("complete", 4, 41.0, 0.125, 0.9375, str(root))


def _drive(console: Observer, tmp_path: Path) -> None:
    """A run of four steps and two held-out sets that ends well."""
    result = _written_run(tmp_path)
    console.started(make_job(tmp_path, name="my run"))
    console.pipeline(make_status(0, waiting="training waits for the initial evaluation"))
    for name in ("addition", "乗算"):
        console.evaluation(make_score(0, 0.125, name))
    console.step(make_row(1, reward=0.0625))
    console.step(make_row(2, reward=0.5, outcomes={"stale": 2}))
    console.warning("W&B is slow")
    console.step(make_row(3, reward=-0.25))
    console.step(make_row(4, reward=1.0))
    for name in ("addition", "乗算"):
        console.evaluation(make_score(4, 0.9375, name))
    console.finished(result)
    console.close()


PLAIN = """\
my run: 4 steps of 32 responses, 8 prompts x 4 a collection, barrier, lag limit 0
eval addition @ step 0: 12.5% of 16 prompts, 3.5 tokens, 6.2% truncated
eval 乗算 @ step 0: 12.5% of 16 prompts, 3.5 tokens, 6.2% truncated
step 1/4  reward  0.062  solved  40.0%  lag 0.5 (max 1)  loss   0.0125  grad   0.750  entropy  1.250    1,234 tok/s\
   0:10, 0:30 left
step 2/4  reward  0.500  solved  40.0%  lag 0.5 (max 1)  loss   0.0125  grad   0.750  entropy  1.250    1,234 tok/s\
   0:20, 0:20 left
warning: W&B is slow
step 3/4  reward -0.250  solved  40.0%  lag 0.5 (max 1)  loss   0.0125  grad   0.750  entropy  1.250    1,234 tok/s\
   0:30, 0:10 left
step 4/4  reward  1.000  solved  40.0%  lag 0.5 (max 1)  loss   0.0125  grad   0.750  entropy  1.250    1,234 tok/s\
   0:40
eval addition @ step 4: 93.8% of 16 prompts, 3.5 tokens, 6.2% truncated
eval 乗算 @ step 4: 93.8% of 16 prompts, 3.5 tokens, 6.2% truncated
complete: 4 steps in 0:41

  held-out set          before           after  change  prompts
  addition      12.5% @ step 0  93.8% @ step 4   +81.2       16
  乗算          12.5% @ step 0  93.8% @ step 4   +81.2       16
  all prompts            12.5%           93.8%   +81.2       32

written to {root}
  metrics.jsonl  a row a step and evaluation
  checkpoints/   to resume from
  export-hf/     the trained model, for transformers
  receipt.json   what is needed to repeat the run
"""


def test_without_a_terminal_a_run_is_these_lines(tmp_path: Path) -> None:
    stream = io.StringIO()
    _drive(PlainConsole(stream), tmp_path)
    assert stream.getvalue() == PLAIN.format(root=tmp_path / "run")


def test_plain_lines_need_no_more_than_ascii(tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    _drive(PlainConsole(stream), tmp_path)
    expected = PLAIN.format(root=tmp_path / "run").replace("乗算", "??")
    assert raw.getvalue().decode("ascii") == expected


def test_a_long_silence_is_broken_by_the_state_of_the_pipeline() -> None:
    now = 0.0
    stream = io.StringIO()
    console = PlainConsole(stream, clock=lambda: now)
    for now in (1.0, 59.0, 61.0, 62.0, 120.0, 122.0):
        console.pipeline(make_status(0, waiting="" if now > 100 else "the trainer waits for groups"))
    assert stream.getvalue() == (
        "  .. 5 in flight, 1 graded, 3 buffered, 16 trained, 12,346 tok/s; the trainer waits for groups\n"
        "  .. 5 in flight, 1 graded, 3 buffered, 16 trained, 12,346 tok/s\n"
    )


def test_a_run_without_evaluations_ends_without_a_table(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = PlainConsole(stream)
    console.started(make_job(tmp_path))
    console.finished(RunResult("interrupted", 0, 5.0, None, None, str(tmp_path / "run")))
    assert stream.getvalue().splitlines()[1:] == [
        "interrupted: 0 steps in 0:05",
        "",
        f"written to {tmp_path / 'run'}",
    ]


def test_a_set_that_was_evaluated_once_has_no_before(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = PlainConsole(stream)
    console.started(make_job(tmp_path))
    console.evaluation(make_score(4, 0.5))
    console.finished(RunResult("complete", 4, 5.0, None, 0.5, str(tmp_path / "run")))
    assert stream.getvalue().splitlines()[4:6] == [
        "  held-out set  before           after  change  prompts",
        "  addition           -  50.0% @ step 4               16",
    ]


def _picture(progress: Progress, *, width: int = 80, over: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=stream, width=width, height=24, force_terminal=True, color_system=None, highlight=False)
    console.print(picture(progress, elapsed_s=33.0, since_row_s=3.0, over=over, options=console.options))
    stream.flush()
    return raw.getvalue().decode(encoding)


def _progress(tmp_path: Path) -> Progress:
    progress = Progress(make_job(tmp_path, name="my run", sync=dict(asynchronous=True, publication_mode="refresh")))
    progress = progress.with_score(make_score(0, 0.125)).with_score(make_score(0, 0.25, "乗算"))
    for step, reward in ((1, 0.0625), (2, 0.5), (3, 1.0)):
        progress = progress.with_row(make_row(step, reward=reward))
    progress = progress.with_score(make_score(3, 0.875))
    return progress.with_status(make_status(3)).with_warning("W&B [red]failed: " + "x" * 100)


PICTURE = """\
╭─ my run ─────────────────────────────────────────────────────────────────────╮
│ ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━             step 3/4  75%  0:33, 0:07 left │
│                                                                              │
│ reward       1.000  solved 40.0%   ▁▄█                                       │
│ accuracy     addition  87.5% @ step 3 (+75.0)  ▁█                            │
│              乗算      25.0% @ step 0                                        │
│ lag          0.5 mean, 1 max                                                 │
│ policy       loss 0.0125   grad norm 0.750   entropy 1.250                   │
│ length       2.0 mean, 4 max, 16.7% truncated                                │
│ time         10.0 s a step: train 4.00 s, wait 5.50 s, publish 0.25 s        │
│                                                                              │
│ groups       in flight 5 → graded 1 → buffered 3 → trained 16                │
│ not trained  12 zero-std                                                     │
│ engines      12,346 tokens/s   policy 3, engines 1                           │
│ now          the trainer waits for groups                                    │
│                                                                              │
│ warning: W&B [red]failed: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… │
╰────────────────────────────────────────────── async refresh, lag ≤ 0, 8 x 4 ─╯
"""


def test_on_a_terminal_a_run_looks_like_this(tmp_path: Path) -> None:
    assert _picture(_progress(tmp_path)) == PICTURE


def test_before_the_first_step_the_picture_says_what_is_awaited(tmp_path: Path) -> None:
    waiting = make_status(0, trained=0, waiting="training waits for the initial evaluation")
    text = _picture(Progress(make_job(tmp_path)).with_status(waiting))
    assert "step 0/4  0%  0:33 " in text and "left" not in text
    assert "reward       after the first step" in text
    assert "now          training waits for the initial evaluation" in text


def test_the_last_picture_has_no_time_left_and_leaves_the_warnings_to_the_lines_below(tmp_path: Path) -> None:
    text = _picture(_progress(tmp_path), over=True)
    assert "left" not in text and "warning" not in text


@pytest.mark.parametrize("width", [1, 10, 40, 80, 200])
def test_no_line_of_a_picture_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    progress = _progress(tmp_path)
    for name in "abcdefghij":
        progress = progress.with_score(make_score(3, 0.5, name * 30)).with_warning(name * 300)
    console = Console(file=io.StringIO(), width=width, height=24, color_system=None)
    shown = picture(progress, elapsed_s=1.0, since_row_s=0.0, over=False, options=console.options)
    lines = console.render_lines(shown, pad=False)
    assert max(sum(segment.cell_length for segment in line) for line in lines) <= width
    if width >= 80:
        assert len(lines) <= 23


def test_a_terminal_that_knows_only_ascii_gets_only_ascii(tmp_path: Path) -> None:
    progress = Progress(make_job(tmp_path)).with_status(make_status(2)).with_score(make_score(0, 0.5))
    for step, reward in ((1, 0.0), (2, 1.0)):
        progress = progress.with_row(make_row(step, reward=reward))
    text = _picture(progress.with_warning("short"), encoding="ascii")
    assert "in flight 5 -> graded 1" in text and "solved 40.0%   _#" in text


def _rendered(raw: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode()).replace("\r\n", "\n")


def test_a_live_run_ends_with_its_warnings_the_table_and_the_paths(tmp_path: Path) -> None:
    stream = io.StringIO()
    _drive(LiveConsole(Console(file=stream, width=80, height=24, force_terminal=True, color_system=None)), tmp_path)
    end = _rendered(stream.getvalue().encode()).partition("warning: ")[2].replace(" \n", "\n")
    assert [line.rstrip() for line in end.splitlines()] == [
        "W&B is slow",
        "complete: 4 steps in 0:41",
        "",
        " held-out set           before            after   change   prompts",
        " ─────────────────────────────────────────────────────────────────",
        " addition       12.5% @ step 0   93.8% @ step 4    +81.2        16",
        " 乗算           12.5% @ step 0   93.8% @ step 4    +81.2        16",
        " all prompts             12.5%            93.8%    +81.2        32",
        "",
        f"written to {tmp_path / 'run'}",
        "  metrics.jsonl  a row a step and evaluation",
        "  checkpoints/   to resume from",
        "  export-hf/     the trained model, for transformers",
        "  receipt.json   what is needed to repeat the run",
    ]


_RUN = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from test_console import _drive
from grpo.obs.console import make_console
console = make_console(json_output="--json" in sys.argv)
step = console.step
console.step = lambda row: (print(f"printed at step {row.step}"), step(row)) if row.step == 2 else step(row)
_drive(console, Path(sys.argv[2]))
print('{"status":"complete"}')
"""


def _on_a_terminal(tmp_path: Path, *options: str, stdout: int | None = None, **environment: str) -> str:
    """Run a whole run in a process of its own under a pseudo-terminal of 80 x 24; return what the terminal got."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    here = Path(__file__).parent
    folders = f"{here}:{here.parent}"
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, folders, str(tmp_path), *options],
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env=clean | {"TERM": "xterm-256color"} | environment,
    )
    os.close(slave)
    received = b""
    while chunk := _read(master):
        received += chunk
    os.close(master)
    assert process.wait() == 0, received.decode()
    return received.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # how Linux says that the other side is closed
        return b""


def test_a_terminal_gets_a_picture_in_colour_and_its_cursor_back(tmp_path: Path) -> None:
    text = _on_a_terminal(tmp_path)
    # What others print goes on a line of its own, above the picture.
    assert "printed at step 2\r\n" in text
    assert "╭─" in text and "\x1b[36m" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.endswith('{"status":"complete"}\r\n')


def test_no_color_is_honoured_and_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    colours = re.compile(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[0-9;]*m")
    text = _on_a_terminal(tmp_path / "a", NO_COLOR="1")
    assert "╭─" in text and not colours.search(text)
    text = _on_a_terminal(tmp_path / "b", TERM="dumb")
    lines = PLAIN.format(root=tmp_path / "b" / "run").replace("step 2/4", "printed at step 2\nstep 2/4")
    assert text == (lines + '{"status":"complete"}\n').replace("\n", "\r\n")


def test_with_json_the_picture_goes_to_stderr_and_stdout_holds_the_json_alone(tmp_path: Path) -> None:
    with (tmp_path / "stdout").open("wb") as stdout:
        text = _on_a_terminal(tmp_path, "--json", stdout=stdout.fileno())
    assert "╭─" in text and "status" not in text
    assert (tmp_path / "stdout").read_text() == 'printed at step 2\n{"status":"complete"}\n'


def test_a_run_that_fails_keeps_its_last_picture_and_the_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = LiveConsole(Console(file=stream, width=80, height=24, force_terminal=True, color_system=None))
    stdout = sys.stdout
    console.warning("before the start")
    console.started(make_job(tmp_path))
    console.pipeline(make_status(2))
    console.close()
    console.close()
    assert sys.stdout is stdout
    text = _rendered(stream.getvalue().encode())
    assert "now          the trainer waits for groups" in text
    assert text.endswith("warning: before the start\n")


CASES: list[tuple[Callable[..., str], tuple[object, ...], str]] = [
    (duration, (0.4,), "0:00"),
    (duration, (59.6,), "1:00"),
    (duration, (3600 * 27 + 61,), "27:01:01"),
    (duration, (-5,), "0:00"),
    (seconds, (0.004,), "0.00 s"),
    (seconds, (9.996,), "10.0 s"),
    (seconds, (99.96,), "1:40"),
    (number, (0.0,), "0.000"),
    (number, (0.00049,), "4.9e-04"),
    (number, (-12.3456, 2), "-12.35"),
    (number, (3.2e7,), "3.2e+07"),
    (number, (None,), "-"),
    (count, (1234567.8,), "1,234,568"),
    (sparkline, ([], 10), ""),
    (sparkline, ([None, None], 10), ""),
    (sparkline, ([0.5], 10), "▁"),
    (sparkline, ([3, 3, 3], 10), "▁▁▁"),
    (sparkline, (list(range(8)), 8), "▁▂▃▄▅▆▇█"),
    (sparkline, (list(range(80)), 8), "▁▂▃▄▅▆▇█"),
    (sparkline, ([0, None, 1], 3), "▁ █"),
    (sparkline, ([0, 0, 1, None, None, None], 3), "▁█ "),
]


@pytest.mark.parametrize(("function", "arguments", "expected"), CASES)
def test_numbers_are_short(function: Callable[..., str], arguments: tuple[object, ...], expected: str) -> None:
    assert function(*arguments) == expected


def _timed_row(step: int, *, elapsed_s: float, interval_s: float) -> StepRow:
    row = make_row(step)
    return replace(row, time=replace(row.time, elapsed_s=elapsed_s, interval_s=interval_s))


def test_the_time_left_of_a_resumed_run_counts_from_its_own_first_step(tmp_path: Path) -> None:
    progress = Progress(make_job(tmp_path, batch=dict(num_rollouts=100)))
    assert progress.seconds_left is None
    # Resumed at step 40; 5 s went by before its first interval began.
    progress = progress.with_row(_timed_row(41, elapsed_s=15.0, interval_s=10.0))
    assert progress.seconds_left == 59 * 10.0


def test_the_time_left_follows_the_last_twenty_steps_and_forgets_slow_ones_before(tmp_path: Path) -> None:
    progress = Progress(make_job(tmp_path, batch=dict(num_rollouts=100)))
    progress = progress.with_row(_timed_row(1, elapsed_s=500.0, interval_s=500.0))
    for step in range(2, 22):
        progress = progress.with_row(_timed_row(step, elapsed_s=500.0 + 2 * (step - 1), interval_s=2.0))
    assert progress.seconds_left == 79 * 2.0


def test_a_drawing_thread_sees_one_moment(tmp_path: Path) -> None:
    before = _progress(tmp_path)
    shown = _picture(before)
    before.with_row(make_row(4)).with_score(make_score(4, 1.0)).with_warning("more")
    assert _picture(before) == shown


def test_console_text_needs_no_heavy_import() -> None:
    code = """
        import grpo.obs.console, grpo.obs.rollouts, grpo.obs.log, sys
        print({"torch", "ray", "transformers"} & set(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
