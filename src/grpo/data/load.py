"""From a job to its training and held-out prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from grpo.data.jsonl import read_prompt_file
from grpo.data.render import LongPrompts, render_rows
from grpo.data.row import RawRow
from grpo.data.tasks import task_info
from grpo.errors import UserError
from grpo.plan.job import DataSpec, JobSpec
from grpo.types import Prompt

# Any one of these makes a folder one with a tokenizer. Without this check transformers builds an empty tokenizer for
# some model types instead of failing.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
)


@dataclass(frozen=True, slots=True)
class DataSets:
    """The prompts of a run. ``evals`` by name of task or file; ``dropped`` counts rows left out for their length."""

    train: tuple[Prompt, ...]
    evals: Mapping[str, tuple[Prompt, ...]]
    dropped: int = 0


def load_tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder; never asks the network, never runs code from the folder.

    Raises:
        UserError: no such folder, no tokenizer in it, or one that does not load.
    """
    if not model_dir.is_dir():
        raise UserError("no such model folder", where=str(model_dir), fix="Check model.source.")
    if not any((model_dir / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            "the model folder has no tokenizer",
            where=str(model_dir),
            fix="Save one there with tokenizer.save_pretrained, so that tokenizer.json is next to config.json.",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for a broken file
        line = " ".join(str(error).split())[:200]
        raise UserError(f"the tokenizer does not load: {line}", where=str(model_dir)) from error
    if not len(tokenizer):
        raise UserError("the tokenizer has no tokens", where=str(model_dir))
    return tokenizer


def load_prompts(
    job: JobSpec, tokenizer: PreTrainedTokenizerBase, *, long_prompts: LongPrompts = LongPrompts.ERROR
) -> DataSets:
    """Read, render and check all prompts of a job.

    Raises:
        UserError: a bad row, an empty set, a prompt over ``batch.max_prompt_length``, or a prompt that is both trained
            and held out (compared as rendered text).
    """
    dropped = 0

    def render(name: str, rows: Iterable[RawRow]) -> tuple[Prompt, ...]:
        nonlocal dropped
        rendered = render_rows(
            rows, tokenizer, max_prompt_length=job.batch.max_prompt_length, long_prompts=long_prompts
        )
        dropped += rendered.dropped
        if not rendered.prompts:
            reason = f"all {rendered.dropped} prompts are over max_prompt_length" if rendered.dropped else "no prompts"
            raise UserError(f"the {name} set is empty: {reason}")
        return rendered.prompts

    train = render("training", _train_rows(job.data))
    evals: dict[str, tuple[Prompt, ...]] = {}
    for name, rows in _eval_rows(job.data):
        if name in evals:
            raise UserError(f"two held-out sets are named {name!r}", fix="Give each a name of its own.")
        evals[name] = render(f"held-out {name!r}", rows)
    _check_disjoint(train, evals)
    return DataSets(train, evals, dropped)


def _train_rows(data: DataSpec) -> Iterable[RawRow]:
    if data.prompt_data is not None:
        yield from read_prompt_file(data.prompt_data)
    names = [task.task for task in data.tasks]
    for task in data.tasks:
        if task.prompt_wrapper != "none":
            raise UserError(f"prompt_wrapper {task.prompt_wrapper!r} is not available", fix="Use 'none'.")
        if names.count(task.task) > 1:
            raise UserError(f"task {task.task!r} is listed twice", fix="Give it one [[data.tasks]] with the sum.")
        yield from task_info(task.task).rows("train", task.train_count, data.seed)


def _eval_rows(data: DataSpec) -> Iterable[tuple[str, Iterable[RawRow]]]:
    for task in data.tasks:
        if task.eval_count:
            yield task.task, task_info(task.task).rows("eval", task.eval_count, data.seed)
    for file in data.eval_prompt_data:
        yield file.name, read_prompt_file(file.path, source=file.name)


def _check_disjoint(train: Iterable[Prompt], evals: Mapping[str, tuple[Prompt, ...]]) -> None:
    trained = {prompt.text: prompt.id for prompt in train}
    for name, prompts in evals.items():
        both = [prompt for prompt in prompts if prompt.text in trained]
        if both:
            others = f" (and {len(both) - 1} more)" if len(both) > 1 else ""
            raise UserError(
                f"held-out prompt {both[0].id!r} of {name!r} is also trained on, as {trained[both[0].text]!r}{others}",
                fix="Remove it from one of the two sets.",
            )
