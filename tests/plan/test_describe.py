"""The plan in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grpo.plan.describe import facts, headline, origins
from grpo.plan.resolve import plan


def test_a_synchronous_run_in_words(write: Callable[..., Path], folder: Path) -> None:
    job = plan(write()).job
    assert headline(job) == "plain: synchronous GRPO on this machine, 100 collections = 100 optimizer steps"
    assert facts(job) == [
        ("model", f"{folder}/model (llama, 66,880 parameters)"),
        ("data", "addition: 64 training and 0 held-out prompts; shuffled by seed 17"),
        ("batch", "8 groups x 8 responses = 64 responses a collection, trained as 1 optimizer step of 64 responses"),
        ("length", "prompt up to 32, response up to 32, context 64 tokens"),
        ("learner", "fsdp, 1 rank, float32, 1 sequence a micro-batch; AdamW at 1e-06, constant"),
        (
            "objective",
            "ppo, clip 0.2 / 0.28, advantage minus the mean of the group, loss per token, correction tis",
        ),
        ("filter", "drops groups whose rewards do not vary, leaves ungraded ones out"),
        (
            "weights",
            "barrier: every response finishes on the weights it began with, then all engines load the new ones",
        ),
        ("pacing", "lag 0; at most 8 groups in the system, buffer of 16"),
        ("evaluation", "none"),
        ("output", f"{folder}/out (fresh)"),
    ]


def test_an_asynchronous_run_in_words(write: Callable[..., Path]) -> None:
    job = plan(write(), ["async.fully_async=true", "training.filter_zero_std_groups=false"]).job
    words = dict(facts(job))
    assert headline(job) == "plain: asynchronous GRPO on this machine, 100 collections = 100 optimizer steps"
    assert words["weights"].startswith("refresh: decoding pauses")
    assert words["pacing"] == (
        "lag up to 6 optimizer steps, older groups are generated again; at most 56 groups in the system, buffer of 16"
    )
    assert words["filter"] == "keeps groups without variation, leaves ungraded ones out"


def test_the_values_given_are_shown_with_their_lines(write: Callable[..., Path], folder: Path) -> None:
    resolved = plan(write(), ["data.seed=3"])
    assert origins(resolved, all_values=False) == [
        ("schema_version", "1", "run.toml:1"),
        ("name", '"plain"', "run.toml:2"),
        ("model.source", f'"{folder}/model"', "run.toml:4"),
        ("output.root", f'"{folder}/out"', "run.toml:6"),
        ("data.seed", "3", "--set"),
        ("data.tasks[0].task", '"addition"', "run.toml:10"),
        ("data.tasks[0].train_count", "64", "run.toml:11"),
        ("inference.max_context_length", "64", "run.toml:8"),
    ]
    every = origins(resolved, all_values=True)
    assert len(every) == len(resolved.provenance)
    assert ("inference.global_batch_size", "64", "derived: 8 groups x 8 samples = 64 responses") in every
    assert ("tracking.wandb_team", "-", "default") in every
