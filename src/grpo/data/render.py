"""Raw rows -> prompts: chat template, token ids, and the length limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from grpo.data.row import RawRow
from grpo.errors import UserError
from grpo.types import Prompt

_CHUNK_ROWS = 1024


class LongPrompts(StrEnum):
    """What becomes of a row whose prompt is longer than the limit."""

    ERROR = "error"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Rendered:
    """Prompts in the order of their rows, and how many rows were dropped for their length."""

    prompts: tuple[Prompt, ...]
    dropped: int


class Renderer:
    """Renders rows with one tokenizer.

    A chat goes through the tokenizer's chat template, with the generation prompt, and the result is tokenised without
    adding special tokens: the template has written them. A text is tokenised as it is; if the tokenizer begins texts
    with its beginning-of-text token, so does the prompt, once. No end-of-text token is ever added: a prompt goes on.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        probe = tokenizer("a")["input_ids"]
        bos = tokenizer.bos_token_id
        self._text_prefix = (bos,) if isinstance(bos, int) and list(probe)[:1] == [bos] else ()

    def render(self, row: RawRow) -> Prompt:
        """Render one row; see :meth:`render_all`."""
        return next(self.render_all([row]))

    def render_all(self, rows: Iterable[RawRow]) -> Iterator[Prompt]:
        """Yield the prompt of each row, in order; tokenises a chunk at a time.

        Raises:
            UserError: the row has messages and the tokenizer no chat template, or the template refuses them, or the
                row renders to no tokens.
        """
        rows = iter(rows)
        while chunk := list(islice(rows, _CHUNK_ROWS)):
            yield from self._render_chunk(chunk)

    def _render_chunk(self, rows: Sequence[RawRow]) -> Iterator[Prompt]:
        texts = [self._text(row) for row in rows]
        encoded = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        for row, text, ids in zip(rows, texts, encoded, strict=True):
            tokens = tuple(ids)
            if isinstance(row.prompt, str) and tokens[:1] != self._text_prefix:
                tokens = self._text_prefix + tokens
            if not tokens:
                raise UserError("the prompt renders to no tokens", where=row.where)
            yield Prompt(
                id=row.id,
                tokens=tokens,
                text=text,
                ground_truth=row.ground_truth,
                verifier=row.verifier,
                source=row.source,
                options=row.options,
            )

    def _text(self, row: RawRow) -> str:
        if isinstance(row.prompt, str):
            return row.prompt
        if not self._tokenizer.chat_template:
            raise UserError(
                "the row has 'messages', but the model's tokenizer has no chat template",
                where=row.where,
                fix="Use a chat model, or give rows with 'prompt' instead.",
            )
        messages = [{"role": message.role, "content": message.content} for message in row.prompt]
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(f"the chat template refuses these messages: {error}", where=row.where) from error
        assert isinstance(text, str)
        return text


def render_rows(
    rows: Iterable[RawRow],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_length: int,
    long_prompts: LongPrompts = LongPrompts.ERROR,
) -> Rendered:
    """Render all rows; prompts of more than ``max_prompt_length`` tokens are an error, or dropped and counted.

    Raises:
        UserError: see :meth:`Renderer.render_all`; or prompts are too long, naming the first and saying how many.
    """
    rows = list(rows)
    kept: list[Prompt] = []
    long: list[tuple[RawRow, int]] = []
    for row, prompt in zip(rows, Renderer(tokenizer).render_all(rows), strict=True):
        if len(prompt.tokens) > max_prompt_length:
            long.append((row, len(prompt.tokens)))
        else:
            kept.append(prompt)
    if long and long_prompts is LongPrompts.ERROR:
        row, length = long[0]
        others = (
            f" ({len(long) - 1} more {'rows are' if len(long) > 2 else 'row is'} too long)" if len(long) > 1 else ""
        )
        raise UserError(
            f"the prompt of row {row.id!r} has {length} tokens, more than max_prompt_length = "
            f"{max_prompt_length}{others}",
            where=row.where,
            fix=f"Raise max_prompt_length to at least {max(length for _, length in long)}, or shorten the rows.",
        )
    return Rendered(tuple(kept), len(long))
