"""From a job to its prompts, and the tokenizer of a model folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from grpo.data.load import DataSets, load_prompts, load_tokenizer
from grpo.data.render import LongPrompts
from grpo.data.tasks import TASKS
from grpo.errors import UserError
from grpo.plan.job import EvalFile, TaskSpec
from grpo.types import Prompt
from support.data_tokenizers import ids, make_tokenizer
from support.jobs import make_job


def task(name: str, train: int, evals: int, **more: str) -> TaskSpec:
    return TaskSpec(task=name, train_count=train, eval_count=evals, **more)


def write(path: Path, *prompts: str) -> str:
    rows = ({"prompt": prompt, "ground_truth": "3", "verifier": "integer"} for prompt in prompts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, long: LongPrompts = LongPrompts.ERROR, **data: Any
) -> DataSets:
    data = {"tasks": (), **data}
    return load_prompts(make_job(tmp_path, data=data, batch={"max_prompt_length": 12}), tokenizer, long_prompts=long)


def test_tasks_give_training_and_held_out_prompts(tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast) -> None:
    data = load(tmp_path, chat_tokenizer, tasks=(task("addition", 30, 20), task("multiplication", 5, 0)), seed=9)

    def expected(name: str, split: Any, count: int) -> tuple[Prompt, ...]:
        questions = [(row, row.id.split("/")[1] + "=") for row in TASKS[name].rows(split, count, 9)]
        return tuple(
            Prompt(
                id=row.id,
                tokens=ids("<s>", "<user>", question, "</s>", "<bot>"),
                text=f"<s><user>{question}</s><bot>",
                ground_truth=row.ground_truth,
                verifier="integer",
                source=name,
            )
            for row, question in questions
        )

    assert data == DataSets(
        train=expected("addition", "train", 30) + expected("multiplication", "train", 5),
        evals={"addition": expected("addition", "eval", 20)},
    )


def test_files_give_training_and_held_out_prompts(tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast) -> None:
    data = load(
        tmp_path,
        chat_tokenizer,
        prompt_data=write(tmp_path / "train.jsonl", "1+2=", "2+1="),
        eval_prompt_data=(
            EvalFile(name="easy", path=write(tmp_path / "a.jsonl", "0+3=")),
            EvalFile(name="hard", path=write(tmp_path / "b.jsonl", "3+0=", "4-1=")),
        ),
    )

    def prompt(source: str, line: int, text: str) -> Prompt:
        return Prompt(f"{source}/{line}", ids("<s>", text), text, "3", "integer", source)

    assert data == DataSets(
        train=(prompt("train", 1, "1+2="), prompt("train", 2, "2+1=")),
        evals={"easy": (prompt("easy", 1, "0+3="),), "hard": (prompt("hard", 1, "3+0="), prompt("hard", 2, "4-1="))},
    )


def test_prompts_over_the_limit_are_dropped_and_counted_over_all_sets(
    tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast
) -> None:
    data = load(
        tmp_path,
        chat_tokenizer,
        LongPrompts.DROP,
        prompt_data=write(tmp_path / "train.jsonl", "1+2=", "1" * 12, "1" * 13),
        eval_prompt_data=(EvalFile(name="e", path=write(tmp_path / "a.jsonl", "1" * 14, "1" * 11)),),
    )
    assert [p.text for p in data.train] == ["1+2="]
    assert [p.text for p in data.evals["e"]] == ["1" * 11]
    assert data.dropped == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "the training set is empty: no prompts"),
        ({"tasks": (task("addition", 0, 5),)}, "the training set is empty: no prompts"),
        (
            {"tasks": (task("multiplication", 136, 5),)},
            "train_count is 136, but task 'multiplication' has 135 train prompts. Set train_count to at most 135.",
        ),
        ({"tasks": (task("sums", 1, 0),)}, "unknown task 'sums'. Tasks: addition, multiplication."),
        (
            {"tasks": (task("addition", 1, 0), task("addition", 1, 0))},
            "task 'addition' is listed twice. Give it one [[data.tasks]] with the sum.",
        ),
        (
            {"tasks": (task("addition", 1, 0, prompt_wrapper="r1"),)},
            "prompt_wrapper 'r1' is not available. Use 'none'.",
        ),
    ],
)
def test_a_job_without_usable_tasks_is_an_error(
    tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast, data: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, chat_tokenizer, **data)
    assert str(caught.value) == message


def test_bad_files_are_errors(tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast) -> None:
    good, empty, broken = tmp_path / "good.jsonl", tmp_path / "empty.jsonl", tmp_path / "broken.jsonl"
    write(good, *(f"1+{n}=" for n in range(9)))
    empty.touch()
    broken.write_text("\n".join([*good.read_text().splitlines()[:6], "{oops"]))

    def error(train: Path, *evals: tuple[str, Path], long: LongPrompts = LongPrompts.ERROR) -> str:
        files = tuple(EvalFile(name=name, path=str(path)) for name, path in evals)
        with pytest.raises(UserError) as caught:
            load(tmp_path, chat_tokenizer, long, prompt_data=str(train), eval_prompt_data=files)
        return str(caught.value)

    assert error(empty) == f"{empty}: the file has no rows. Write one JSON object a line."
    assert error(broken).startswith(f"{broken}:7: broken JSON at column 2")
    assert error(good, ("e", empty)) == f"{empty}: the file has no rows. Write one JSON object a line."
    write(tmp_path / "long.jsonl", "1" * 20)
    assert error(tmp_path / "long.jsonl", long=LongPrompts.DROP) == (
        "the training set is empty: all 1 prompts are over max_prompt_length"
    )
    write(tmp_path / "eval.jsonl", "2+2=")
    assert error(good, ("e", tmp_path / "eval.jsonl"), ("e", tmp_path / "eval.jsonl")) == (
        "two held-out sets are named 'e'. Give each a name of its own."
    )


def test_a_prompt_that_is_trained_and_held_out_is_an_error(
    tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast
) -> None:
    train = write(tmp_path / "train.jsonl", "1+2=", "2+1=", "3+0=")
    evals = (EvalFile(name="e", path=write(tmp_path / "a.jsonl", "0+3=", "3+0=", "2+1=")),)
    with pytest.raises(UserError) as caught:
        load(tmp_path, chat_tokenizer, prompt_data=train, eval_prompt_data=evals)
    assert str(caught.value) == (
        "held-out prompt 'e/2' of 'e' is also trained on, as 'train/3' (and 1 more). "
        "Remove it from one of the two sets."
    )


def test_a_saved_tokenizer_is_loaded_as_it_was(tmp_path: Path, chat_tokenizer: PreTrainedTokenizerFast) -> None:
    chat_tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.chat_template, loaded.get_vocab(), loaded("a")["input_ids"]) == (
        chat_tokenizer.chat_template,
        chat_tokenizer.get_vocab(),
        list(ids("<s>", "a")),
    )


def test_a_folder_without_a_usable_tokenizer_is_an_error(tmp_path: Path) -> None:
    def error(folder: Path) -> str:
        with pytest.raises(UserError) as caught:
            load_tokenizer(folder)
        return str(caught.value)

    assert error(tmp_path / "none") == f"{tmp_path / 'none'}: no such model folder. Check model.source."
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert error(tmp_path) == (
        f"{tmp_path}: the model folder has no tokenizer. "
        "Save one there with tokenizer.save_pretrained, so that tokenizer.json is next to config.json."
    )
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    assert error(tmp_path).startswith(f"{tmp_path}: the tokenizer does not load: ")
