"""Rehearsing run files on a simulated fleet, through the command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo.obs.jsonl import read_rows
from grpo.plan.paths import RunPaths

EXAMPLES = Path(__file__).parents[2] / "configs" / "examples"


def grpo(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "grpo", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The run folder, the result, and the console of a rehearsed three-node run."""
    root = tmp_path_factory.mktemp("rehearsal") / "run"
    words = ["--set", 'inference.backend="simulated"', "--set", f'output.root="{root}"']
    words += ["--set", "training.num_rollouts=3", "--set", "optimizer.lr_warmup_iters=0"]
    done = grpo("run", EXAMPLES / "three-node.toml", *words, "--json")
    return root, json.loads(done.stdout), done.stderr


def test_grpo_run_rehearses_a_three_node_file_and_says_that_it_is_simulated(rehearsed: Any) -> None:
    root, result, console = rehearsed
    assert (result["status"], result["steps"]) == ("simulated", 3)
    assert "SIMULATED" in console
    paths = RunPaths(root)
    assert [row["step"] for row in read_rows(paths.metrics)] == [1, 2, 3]
    written = json.loads(paths.result.read_text())
    assert written["simulated"] is True and written["status"] == "simulated"
    assert not paths.checkpoints.exists()
    assert Counter(row["after"] for row in read_rows(paths.ledger))["trained"] == 3 * 128


def test_grpo_inspect_tells_what_became_of_every_prompt(rehearsed: Any) -> None:
    root, _, _ = rehearsed
    whole = json.loads(grpo("inspect", root, "--ledger", "--json").stdout)
    assert whole["states"]["trained"] == 3 * 128
    assert whole["groups"] == sum(whole["states"].values()) == sum(whole["by_source"]["simulated"].values())
    text = grpo("inspect", root, "--ledger").stdout
    assert f"{whole['groups']} groups of {whole['prompts']} prompts: " in text and "retries: " in text
    first = read_rows(RunPaths(root).ledger)[0]
    (story,) = json.loads(grpo("inspect", root, "--ledger", "--prompt", first["prompt_id"], "--json").stdout)["stories"]
    assert story["prompt_id"] == first["prompt_id"]
    passed = [state for attempt in story["attempts"] for state in attempt["passed"]]
    assert passed == [row["after"] for row in read_rows(RunPaths(root).ledger) if row["group_id"] == story["group_id"]]


def test_grpo_inspect_says_what_is_wrong_in_one_line(rehearsed: Any, tmp_path: Path) -> None:
    root, _, _ = rehearsed
    assert grpo("inspect", root).stdout == grpo("inspect", root, "--ledger").stdout != ""
    assert "was never drawn" in grpo("inspect", root, "--ledger", "--prompt", "nobody", code=2).stderr
    assert "cannot be read (No such file or directory)" in grpo("inspect", tmp_path, "--ledger", code=2).stderr


def test_plan_simulate_compares_the_modes_of_a_file_for_vllm_and_labels_them_simulated() -> None:
    words = ["--simulate", "--set", "simulation.length_sigma=1.2", "--set", "training.num_rollouts=3"]
    words += ["--set", "optimizer.lr_warmup_iters=0"]
    shown = json.loads(grpo("plan", EXAMPLES / "node.toml", *words, "--json").stdout)
    assert shown["simulated"] is True and shown["assumptions"]["length_sigma"] == 1.2
    assert set(shown["modes"]) == {"barrier", "refresh", "engine_drain"}
    for report in shown["modes"].values():
        assert report["simulated"] is True and report["optimizer_steps"] == 3
        assert sum(report["lag_groups"].values()) == 3 * 64
        assert report["accepted_tokens_per_s"] > 0 and 0 < report["trainer_wait_fraction"] < 1
        assert set(report["wasted_tokens"]) <= {"zero_std", "truncated", "stale", "ungraded"}
    text = grpo("plan", EXAMPLES / "node.toml", *words).stdout
    assert text.startswith("SIMULATED, not measured: 4 engines x 256 slots")
    assert [row.split()[0] for row in text.splitlines()[2:]] == ["mode", "barrier", "refresh", "engine_drain"]


def test_simulation_needs_no_torch() -> None:
    heavy = {"torch", "numpy", "transformers", "ray"}
    code = f"import sys, grpo.runtime.rehearsal; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.slow
def test_every_command_of_the_async_page_works(tmp_path: Path) -> None:
    root = EXAMPLES.parents[1]
    (tmp_path / "configs").symlink_to(root / "configs")
    blocks = (root / "docs" / "async.md").read_text().split("```")[1::2]
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("grpo ")]
    assert len(commands) >= 5
    for command in commands:
        words = [sys.executable, "-m", "grpo", *shlex.split(command)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
