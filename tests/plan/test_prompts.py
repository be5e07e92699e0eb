"""The data as the model will see it: rendered and counted as the run does, and looked at as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.data.load import load_prompts, load_tokenizer
from grpo.errors import UserError
from grpo.plan.paths import model_dir
from grpo.plan.prompts import CannotRender, Renderer, _train_rows
from grpo.plan.resolve import Checked, check

Write = Callable[..., Path]
DATA = '[data]\nprompt_data = "train.jsonl"\neval_prompt_data = ["dev", "dev.jsonl"]\n'
ROOM = ["miles.rollout_max_prompt_len=8"]


def rows(path: Path, *prompts: str) -> None:
    path.write_text(
        "".join(json.dumps({"prompt": text, "ground_truth": "2", "verifier": "integer"}) + "\n" for text in prompts)
    )


def lines(checked: Checked) -> list[str]:
    findings = checked.findings
    return [str(problem) for problem in (*findings.errors, *findings.warnings)]


@pytest.mark.parametrize("source", ["model", "builtin:tiny-arithmetic"])
def test_prompts_are_rendered_and_counted_as_the_run_does(write: Write, folder: Path, source: str) -> None:
    (folder / "chat.jsonl").write_text(
        json.dumps(
            {
                "messages": [{"role": "system", "content": " add "}, {"role": "user", "content": "1+1="}],
                "ground_truth": "2",
                "verifier": "integer",
            }
        )
        + "\n"
    )
    with (folder / "chat.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "3*4=", "ground_truth": "12", "verifier": "integer"}) + "\n")
    for data in ('[[data.tasks]]\ntask = "addition"\ntrain_count = 40\n', '[data]\nprompt_data = "chat.jsonl"\n'):
        checked = check(write(data), [f'model.source="{source}"'])
        assert checked.plan is not None and lines(checked) == []
        job = checked.plan.job
        renderer = Renderer(model_dir(job.model.source))
        found = list(_train_rows(job))
        texts = [renderer.text(row) for row in found]
        real = load_prompts(job, load_tokenizer(model_dir(job.model.source))).train
        assert texts == [prompt.text for prompt in real]
        assert renderer.lengths(found, texts) == [len(prompt.tokens) for prompt in real]
        assert checked.prompt is not None and checked.prompt.endswith(f":\n{real[0].text}")
        assert f"{len(real[0].tokens)} tokens" in checked.prompt


TEMPLATE = """\
{%- set quiet = namespace(on=false) %}
{% for message in messages %}
    {% if message.content == "skip" %}{% continue %}{% endif %}
  {{ message.role[0] }}{{ message.content | trim }}
    {% if loop.last and add_generation_prompt %}
={{ bos_token }}{{ [message.content] | tojson }}
    {% endif %}
{% endfor %}
"""


def test_a_template_of_blocks_is_rendered_as_transformers_does(write: Write, folder: Path) -> None:
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    messages = [{"role": "system", "content": "skip"}, {"role": "user", "content": " 1+1<é "}]
    row = {"messages": messages, "ground_truth": "2", "verifier": "integer"}
    (folder / "train.jsonl").write_text(json.dumps(row))
    checked = check(write('[data]\nprompt_data = "train.jsonl"\n'))
    real = load_tokenizer(folder / "model").apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert checked.prompt is not None and checked.prompt.partition(":\n")[2] == real
    assert isinstance(real, str) and real.startswith("  u1+1<é\n=<bos>")


def test_a_prompt_over_the_limit_is_an_error_with_its_line(write: Write, folder: Path) -> None:
    rows(folder / "train.jsonl", "1+1=", "11111+22222=", "1+2=", "1111111+22222=")
    rows(folder / "dev.jsonl", "2+2=")
    assert lines(check(write(DATA), ROOM)) == [
        f"{folder}/train.jsonl:2: the prompt of row 'train/2' has 12 tokens, more than the limit of 8 (of 2 such "
        "training prompts, the longest has 14). Shorten it, or leave at least 14 tokens of max_context_length to "
        "prompts."
    ]
    (line,) = lines(check(write(DATA), ["miles.rollout_max_prompt_len=13"]))
    assert line.startswith(
        f"{folder}/train.jsonl:4: the prompt of row 'train/4' has 14 tokens, more than the limit of 13."
    )
    assert check(write(DATA), ["miles.rollout_max_prompt_len=14"]).plan is not None


def test_repeated_prompts_are_a_warning_and_held_out_ones_that_are_trained_an_error(write: Write, folder: Path) -> None:
    rows(folder / "train.jsonl", "1+1=", "1+2=", "1+1=", "1+1=", "1+3=", "1+1=", "1+2=")
    rows(folder / "dev.jsonl", "1+2=", "1+3=", "9+9=")
    checked = check(write(DATA), ROOM)
    assert lines(checked) == [
        "held-out prompt 'dev/1' of 'dev' is also trained on, as 'train/2' (and 1 more). Remove it from one of the two "
        "sets.",
        f"{folder}/train.jsonl:3: 4 of 7 training prompts repeat another: {folder}/train.jsonl:3 repeats 'train/1', "
        f"{folder}/train.jsonl:4 repeats 'train/1', {folder}/train.jsonl:6 repeats 'train/1' and 1 more. Remove them, "
        "unless they are meant to count more.",
    ]
    assert checked.plan is None
    # The run says the same.
    with pytest.raises(UserError, match="held-out prompt 'dev/1' of 'dev' is also trained on"):
        from grpo.plan.resolve import plan

        job = plan(write(DATA), ROOM).job
        load_prompts(job, load_tokenizer(model_dir(job.model.source)))


def test_an_empty_ground_truth_and_an_unknown_verifier_are_errors_with_their_lines(write: Write, folder: Path) -> None:
    row = {"prompt": "1+1=", "ground_truth": "", "verifier": "integer"}
    (folder / "train.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'verifier': 'intger'})}\n")
    rows(folder / "dev.jsonl", "2+2=")
    first, second = lines(check(write(DATA), ROOM))
    assert first == f"{folder}/train.jsonl:1: 'ground_truth' is empty"
    assert second.startswith(f"{folder}/train.jsonl:2: ")


def test_a_template_that_refuses_the_messages_is_an_error(write: Write, folder: Path) -> None:
    row = {"messages": [{"role": "robot", "content": "1+1="}], "ground_truth": "2", "verifier": "integer"}
    (folder / "train.jsonl").write_text(json.dumps(row))
    assert lines(check(write('[data]\nprompt_data = "train.jsonl"\n'), ['model.source="builtin:tiny-arithmetic"'])) == [
        f"{folder}/train.jsonl:1: the chat template refuses these messages: unknown role: robot"
    ]


def test_a_host_without_the_packages_is_told_what_was_not_checked(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    for package in ("tokenizers", "jinja2"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)  # an import of it fails
            checked = check(path)
        assert lines(checked) == [
            "run.toml:4 model.source: prompts were not rendered and their lengths not checked: the package "
            f"{package} is not installed. pip install 'grpo[local]' to check them here."
        ]
        assert checked.plan is not None


def test_a_broken_tokenizer_is_said_and_no_traceback(write: Write, folder: Path) -> None:
    (folder / "model" / "tokenizer.json").write_text("{}")
    (line,) = lines(check(write()))
    assert "prompts were not rendered" in line and "tokenizer.json does not load" in line
    with pytest.raises(CannotRender, match=r"has no tokenizer\.json"):
        Renderer(folder)
