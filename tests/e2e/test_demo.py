"""The first-run example learns, in every publication mode, through the command that users type."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.data.load import load_prompts
from grpo.plan.job import JobSpec

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def demo(root: Path, *overrides: str) -> dict:
    """Run the example to its end and return the object that ``--json`` prints last."""
    command = [sys.executable, "-m", "grpo", "run", "configs/examples/cpu.toml", "--json"]
    for override in (f'output.root="{root}"', *overrides):
        command += ["--set", override]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def held_out_accuracy(root: Path) -> float:
    """Greedy accuracy of the exported model, with plain transformers, on the run's held-out prompts."""
    job = JobSpec.read(root / "job.json")
    tokenizer = AutoTokenizer.from_pretrained(root / "export-hf")
    model: Any = AutoModelForCausalLM.from_pretrained(root / "export-hf").eval()
    prompts = load_prompts(job, tokenizer).evals["addition"]
    right = 0
    for prompt in prompts:
        ids = torch.tensor([prompt.tokens])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        right += tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True) == prompt.ground_truth
    return right / len(prompts)


def test_the_demo_learns_and_its_export_scores_the_same(tmp_path: Path) -> None:
    result = demo(tmp_path / "run")
    assert result["status"] == "complete"
    assert result["eval"]["before"] <= 0.5
    assert result["eval"]["after"] >= 0.9
    assert held_out_accuracy(tmp_path / "run") == result["eval"]["after"]


@pytest.mark.parametrize("mode", ["refresh", "engine_drain"])
def test_the_demo_learns_in_every_other_publication_mode(tmp_path: Path, mode: str) -> None:
    result = demo(tmp_path / "run", f'core.publication_mode="{mode}"')
    assert result["eval"]["before"] <= 0.5
    assert result["eval"]["after"] >= 0.9


@pytest.mark.parametrize("mode", ["barrier", "refresh", "engine_drain"])
def test_the_demo_learns_while_generation_overlaps_training(tmp_path: Path, mode: str) -> None:
    result = demo(
        tmp_path / "run", f'core.publication_mode="{mode}"', "async.fully_async=true", "async.max_weight_staleness=2"
    )
    assert result["eval"]["before"] <= 0.5
    assert result["eval"]["after"] >= 0.9
