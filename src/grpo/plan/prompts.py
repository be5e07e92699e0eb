"""The data as the model will see it: read whole, rendered through the chat template, and counted in tokens.

Only ``grpo validate`` reads it so far. ``tokenizers`` and ``jinja2`` do the work where they are installed; a submitting
host may lack them, and is then told what was not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.config.findings import Advice
from grpo.config.settings import Settings
from grpo.errors import UserError
from grpo.plan.inspect import path_kind
from grpo.plan.job import JobSpec
from grpo.plan.paths import model_dir

if TYPE_CHECKING:
    from grpo.data.row import RawRow

CHUNK_ROWS = 1024
SHOWN = 3  # rows named in one message


class CannotRender(Exception):
    """Prompts cannot be rendered here, for the reason given."""


class Renderer:
    """Renders rows as the run does: chat template with the generation prompt, or the text as it is.

    Args:
        folder: of the model.

    Raises:
        CannotRender: a package or the tokenizer is missing, or one of its files cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise CannotRender(f"{folder} has no tokenizer.json")
        try:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except ImportError:
            raise CannotRender("the package tokenizers is not installed") from None
        except Exception as error:  # tokenizers raises bare Exception for a broken file
            raise CannotRender(f"{folder / 'tokenizer.json'} does not load: {_one_line(error)}") from None
        config = _json(folder / "tokenizer_config.json")
        self._special = _special_tokens(config, _json(folder / "special_tokens_map.json"))
        self._template = _template(folder, config)
        first = self._tokenizer.encode("a").ids[:1]
        bos = self._tokenizer.token_to_id(self._special.get("bos_token", ""))
        self._text_prefix = [bos] if bos is not None and first == [bos] else []

    def text(self, row: RawRow) -> str:
        """Return the prompt of a row.

        Raises:
            UserError: the template is missing or refuses the messages.
        """
        if isinstance(row.prompt, str):
            return row.prompt
        if self._template is None:
            raise UserError(
                "the row has 'messages', but the model's tokenizer has no chat template",
                where=row.where,
                fix="Use a chat model, or give rows with 'prompt' instead.",
            )
        messages = [{"role": message.role, "content": message.content} for message in row.prompt]
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except Exception as error:  # a template runs code of its own, and may fail in any way
            raise UserError(f"the chat template refuses these messages: {_one_line(error)}", where=row.where) from None

    def lengths(self, rows: list[RawRow], texts: list[str]) -> list[int]:
        """Return the tokens of each prompt."""
        found = []
        for row, encoded in zip(rows, self._tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
            prefix = self._text_prefix if isinstance(row.prompt, str) and encoded.ids[:1] != self._text_prefix else []
            found.append(len(encoded.ids) + len(prefix))
        return found


def prompt_problems(job: JobSpec, settings: Settings) -> tuple[list[UserError], str | None]:
    """Read all prompts of a job; return what is wrong with them, and the first training prompt as text.

    The prompt files have been checked line by line before; here they are looked at together.
    """
    where = settings.where("model.source")
    folder = model_dir(job.model.source)
    if path_kind(folder) != "folder":
        return [], None  # that it cannot be seen is reported already
    try:
        renderer = Renderer(folder)
    except CannotRender as error:
        what = f"prompts were not rendered and their lengths not checked: {error}"
        return [Advice(what, where=where, fix="pip install 'grpo[local]' to check them here.")], None
    look = _Look(renderer, job)
    found: list[UserError] = []
    trained: dict[str, str] = {}
    try:
        found += look.read("training", _train_rows(job), trained)
        for name, rows in _eval_rows(job):
            held_out: dict[str, str] = {}
            found += look.read(f"held-out {name!r}", rows, held_out)
            found += _overlap(name, held_out, trained)
    except UserError as error:
        found.append(error)
    return found, look.first


class _Look:
    """One look at the sets of a job, one after the other."""

    def __init__(self, renderer: Renderer, job: JobSpec) -> None:
        self._renderer = renderer
        self._limit = job.batch.max_prompt_length
        self.first: str | None = None

    def read(self, title: str, rows: Iterable[RawRow], seen: dict[str, str]) -> Iterator[UserError]:
        """Yield what is wrong with one set; put the text of each prompt, with the id of its row, into ``seen``."""
        rows, count = iter(rows), 0
        long: list[tuple[int, RawRow]] = []
        twice: list[tuple[RawRow, str]] = []
        while chunk := list(islice(rows, CHUNK_ROWS)):
            count += len(chunk)
            texts = [self._renderer.text(row) for row in chunk]
            for row, text, length in zip(chunk, texts, self._renderer.lengths(chunk, texts), strict=True):
                self.first = self.first or _shown(row, text, length)
                if not length:
                    yield UserError("the prompt renders to no tokens", where=row.where)
                if length > self._limit:
                    long.append((length, row))
                first = seen.setdefault(text, row.id)
                if first != row.id:
                    twice.append((row, first))
        yield from self._long(title, long)
        if twice:
            names = ", ".join(f"{row.where} repeats {first!r}" for row, first in twice[:SHOWN])
            more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
            yield Advice(
                f"{len(twice)} of {count} {title} prompts repeat another: {names}{more}",
                where=twice[0][0].where,
                fix="Remove them, unless they are meant to count more.",
            )

    def _long(self, title: str, long: list[tuple[int, RawRow]]) -> Iterator[UserError]:
        if not long:
            return
        longest = max(length for length, _ in long)
        length, row = long[0]
        others = f" (of {len(long)} such {title} prompts, the longest has {longest})" if len(long) > 1 else ""
        yield UserError(
            f"the prompt of row {row.id!r} has {length} tokens, more than the limit of {self._limit}{others}",
            where=row.where,
            fix=f"Shorten it, or leave at least {longest} tokens of max_context_length to prompts.",
        )


def _overlap(name: str, held_out: Mapping[str, str], trained: Mapping[str, str]) -> Iterator[UserError]:
    both = [text for text in held_out if text in trained]
    if both:
        others = f" (and {len(both) - 1} more)" if len(both) > 1 else ""
        yield UserError(
            f"held-out prompt {held_out[both[0]]!r} of {name!r} is also trained on, as {trained[both[0]]!r}{others}",
            fix="Remove it from one of the two sets.",
        )


def _train_rows(job: JobSpec) -> Iterator[RawRow]:
    from grpo.data.jsonl import read_prompt_file
    from grpo.data.tasks import TASKS

    if job.data.prompt_data is not None and Path(job.data.prompt_data).is_file():
        yield from read_prompt_file(job.data.prompt_data)
    for task in job.data.tasks:
        if task.task in TASKS:
            yield from TASKS[task.task].rows("train", task.train_count, job.data.seed)


def _eval_rows(job: JobSpec) -> Iterator[tuple[str, Iterable[RawRow]]]:
    from grpo.data.jsonl import read_prompt_file
    from grpo.data.tasks import TASKS

    for task in job.data.tasks:
        if task.task in TASKS and task.eval_count:
            yield task.task, TASKS[task.task].rows("eval", task.eval_count, job.data.seed)
    for file in job.data.eval_prompt_data:
        if Path(file.path).is_file():
            yield file.name, read_prompt_file(file.path, source=file.name)


def _shown(row: RawRow, text: str, length: int) -> str:
    return f"prompt {row.id!r}, {length} tokens, verifier {row.verifier}, ground truth {row.ground_truth!r}:\n{text}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """Return the named special tokens; a file may give one as a text or as an object that holds it."""
    found: dict[str, str] = {}
    for config in configs:
        for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"):
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found.setdefault(name, token)
    return found


def _template(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return the compiled chat template, or None if there is none; compiled as transformers does."""
    try:
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, ValueError):
        source = config.get("chat_template")
    if isinstance(source, list):  # named templates
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    try:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise CannotRender("the package jinja2 is not installed") from None

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        from datetime import datetime

        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise CannotRender(f"the chat template does not compile: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
