"""Imports go one way, and the launcher half is light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "grpo"
HEAVY = {"torch", "ray", "transformers", "vllm", "sglang", "tokenizers", "safetensors", "numpy", "jinja2"}

# What the modules of a room may import at their top, and what only inside a function, where it is needed.
ALLOWED = {
    "types": set(),
    "errors": set(),
    "config": {"errors"},
    "plan": {"errors", "config"},
    "launch": {"errors", "types", "config", "plan"},
    "cli": {"errors", "types", "config", "plan", "launch"},
}
LATE = {
    "plan/inspect.py": {"data.tasks", "data.jsonl"},
    "plan/prompts.py": {"data.tasks", "data.jsonl", "data.row"},
    "launch/local.py": {"runtime"},
    "cli/inspect.py": {"obs.trail", "obs.jsonl"},
    "cli/simulate.py": {"runtime.simulation"},
}
# To look at prompts as the model sees them, where these are installed.
LATE_HEAVY = {"plan/prompts.py": {"tokenizers", "jinja2"}}
RUNTIME_ROOMS = {"data", "rewards", "engine", "learner", "weights", "runtime"}
RUNTIME_MAY = RUNTIME_ROOMS | {"errors", "types", "plan.job", "plan.paths", "obs", "waits", "crash"}


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return every module of grpo or heavy package that a file imports, and whether at its top."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING")
        for node in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [(name, id(node) not in inside) for name in names]
    return found


def modules(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in (sorted((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"])]


@pytest.mark.parametrize("path", modules(*ALLOWED), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_launcher_half_imports_only_what_comes_before_it(path: Path) -> None:
    relative = str(path.relative_to(SOURCE))
    room = relative.partition("/")[0].removesuffix(".py")
    allowed = ALLOWED[room] | {room}
    for name, at_top in imports(path):
        heavy = name.partition(".")[0] in HEAVY
        late_heavy = not at_top and name.partition(".")[0] in LATE_HEAVY.get(relative, set())
        assert not heavy or late_heavy, f"{relative} imports {name}"
        if not name.startswith("grpo."):
            continue
        inner = name.removeprefix("grpo.")
        if inner.partition(".")[0] in allowed or inner == "__version__":
            continue
        late = LATE.get(relative, set())
        assert not at_top and any(inner == part or inner.startswith(f"{part}.") for part in late), (
            f"{relative} imports {name}"
        )


@pytest.mark.parametrize("path", modules(*sorted(RUNTIME_ROOMS)), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_runtime_half_sees_only_the_job_and_the_paths_of_the_launcher(path: Path) -> None:
    for name, _ in imports(path):
        inner = name.removeprefix("grpo.")
        if name.startswith("grpo.") and inner != "__version__":
            assert any(inner == part or inner.startswith(f"{part}.") for part in RUNTIME_MAY), f"{path}: {name}"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "code",
    [
        "import grpo.cli",
        "import grpo.cli.main, grpo.launch.local, grpo.launch.receipt, grpo.cli.show",
        "import grpo.data.tasks, grpo.data.jsonl, grpo.rewards.registry",
        "from pathlib import Path\nfrom grpo.plan.resolve import find_problems\nfrom grpo.config.load import load\n"
        f"find_problems(load(Path({str(SOURCE.parents[1] / 'configs/examples/cpu.toml')!r})))",
    ],
)
def test_nothing_heavy_is_loaded_by_the_launcher(code: str) -> None:
    done = run(f"{code}\nimport sys\nprint(sorted({HEAVY!r} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_command_line_alone_loads_neither_the_schema_nor_rich() -> None:
    done = run("import sys, grpo.cli.main\nprint(sorted({'pydantic', 'rich', 'grpo.plan.job'} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


PLAN = [sys.executable, "-m", "grpo", "plan", str(SOURCE.parents[1] / "configs" / "examples" / "three-node.toml")]


def planned(**environment: str) -> str:
    """Return the stdout of a plan into a pipe."""
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    return subprocess.run(PLAN, capture_output=True, text=True, check=True, env={**clean, **environment}).stdout


def test_a_plan_into_a_pipe_does_without_rich() -> None:
    done = run(
        f"import atexit, sys\nsys.argv = {['grpo', *PLAN[3:]]!r}\n"
        "atexit.register(lambda: print('rich' in sys.modules, 'pydantic' in sys.modules))\n"
        "import grpo.cli.main\ngrpo.cli.main.main()"
    )
    assert done.stdout.splitlines()[-1] == "False True"


@pytest.mark.parametrize("environment", [{"FORCE_COLOR": ""}, {"TTY_COMPATIBLE": "0"}], ids=str)
def test_a_plan_into_a_pipe_is_plain_where_the_environment_does_not_ask_for_styles(environment: dict[str, str]) -> None:
    assert planned(**environment) == planned()


@pytest.mark.parametrize("environment", [{"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}], ids=str)
def test_a_plan_is_styled_where_the_environment_asks_for_it(environment: dict[str, str]) -> None:
    styled, plain = planned(TERM="xterm", COLUMNS="400", **environment), planned()
    assert styled.startswith("\x1b[1m")
    without = re.sub(r"\x1b\[[0-9;]*m", "", styled)
    assert [line.split() for line in without.splitlines()] == [line.split() for line in plain.splitlines()]
