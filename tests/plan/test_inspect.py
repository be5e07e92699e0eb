"""What files show: a model folder or data that cannot work is found before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config.load import load
from grpo.plan.paths import builtin_models
from grpo.plan.resolve import find_problems

Write = Callable[..., Path]


def problems(path: Path, *overrides: str) -> list[str]:
    return [str(problem) for problem in find_problems(load(path, overrides))[1]]


def test_a_real_model_folder_and_task_have_no_problem(write: Write) -> None:
    assert problems(write()) == []


def test_a_folder_without_a_tokenizer_is_named(write: Write, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).unlink(missing_ok=True)
    assert problems(write()) == [
        f"run.toml:4 model.source: {folder}/model has no tokenizer (tokenizer.json or tokenizer_config.json). Copy the "
        "tokenizer files of the model into it."
    ]


def test_a_folder_without_weights_is_named(write: Write, folder: Path) -> None:
    (folder / "model" / "model.safetensors").unlink()
    assert problems(write()) == [
        f"run.toml:4 model.source: {folder}/model has no weights (*.safetensors or pytorch_model*.bin). Download the "
        "whole model."
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "cannot be read (not JSON)"),
        ("[]", "is not a JSON object"),
        ("[" * 99999, "cannot be read (nested too deeply)"),
    ],
)
def test_a_broken_model_config_is_named(write: Write, folder: Path, text: str, what: str) -> None:
    (folder / "model" / "config.json").write_text(text)
    assert problems(write()) == [f"run.toml:4 model.source: {folder}/model/config.json {what}"]


def test_a_folder_that_is_no_model_is_named(write: Write, folder: Path) -> None:
    (folder / "model" / "config.json").unlink()
    assert problems(write()) == [
        f"run.toml:4 model.source: {folder}/model has no config.json, so it is no Hugging Face model folder. Name the "
        "folder that holds config.json, the weights and the tokenizer."
    ]
    assert problems(write(), 'model.source="nowhere"') == [
        f"--set model.source: {folder}/nowhere: no such folder. Name a Hugging Face model folder; hub "
        "names are not downloaded."
    ]
    assert problems(write(), 'model.source="run.toml"') == [
        f"--set model.source: {folder}/run.toml: is a file, not a folder. Name a Hugging Face model "
        "folder; hub names are not downloaded."
    ]
    names = ", ".join(builtin_models())
    assert problems(write(), 'model.source="builtin:nope"') == [
        f"--set model.source: no built-in model 'nope'. The built-in models are: {names}."
    ]


def test_a_context_over_the_positions_of_the_model_is_named(write: Write, folder: Path) -> None:
    limit = json.loads((folder / "model" / "config.json").read_text())["max_position_embeddings"]
    assert problems(write(), f"inference.max_context_length={limit}") == []
    assert problems(write(), f"inference.max_context_length={limit + 1}") == [
        f"--set inference.max_context_length: {limit + 1} tokens exceed the {limit} positions of the model. Set it to "
        f"at most {limit}."
    ]
    default = 'name = "x"\nmodel.source = "model"\noutput.root = "out"\n'
    assert problems(write(text=default)) == [
        f"run.toml inference.max_context_length: 6144 tokens (the default) exceed the {limit} positions of the model. "
        f"Set it to at most {limit}."
    ]


def test_an_empty_data_set_is_named(write: Write) -> None:
    assert problems(write('[[data.tasks]]\ntask = "addition"\ntrain_count = 0\neval_count = 8\n')) == [
        "run.toml:9 data.tasks: the data set is empty: no task has a train_count above 0. Set train_count of a task."
    ]


def test_a_task_that_does_not_exist_or_is_too_small_is_named(write: Write) -> None:
    from grpo.data.tasks import TASKS

    capacity = TASKS["multiplication"].eval_capacity
    text = (
        '[[data.tasks]]\ntask = "adition"\ntrain_count = 8\n'
        f'[[data.tasks]]\ntask = "multiplication"\ntrain_count = 1\neval_count = {capacity + 1}\n'
        '[[data.tasks]]\ntask = "multiplication"\ntrain_count = 1\n'
    )
    names = ", ".join(sorted(TASKS))
    assert problems(write(text)) == [
        f"run.toml:10 data.tasks[0].task: there is no task 'adition'. The tasks are: {names}.",
        f"run.toml:15 data.tasks[1].eval_count: {capacity + 1} prompts of multiplication, which has {capacity}. Set it "
        f"to at most {capacity}.",
        "run.toml:17 data.tasks[2].task: task 'multiplication' is given twice. "
        "Give it once, with the sum of the counts.",
    ]


def test_prompt_files_are_checked_line_by_line(write: Write, folder: Path) -> None:
    row = json.dumps({"prompt": "1+1=", "ground_truth": "2", "verifier": "integer"})
    (folder / "train.jsonl").write_text("\n".join([row] * 6 + ["{broken", row]))
    (folder / "dev.jsonl").write_text(row)
    data = '[data]\nprompt_data = "train.jsonl"\neval_prompt_data = ["dev", "dev.jsonl", "test", "test.jsonl"]\n'
    found = problems(write(data))
    assert len(found) == 2
    assert found[0].startswith(f"{folder}/train.jsonl:7: ")
    assert found[1] == (
        f"run.toml:11 data.eval_prompt_data: {folder}/test.jsonl: no such file. Name a JSONL file of prompts."
    )
