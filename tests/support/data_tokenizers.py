"""Real tokenizers, small enough to read: one token a character."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHARACTERS = [chr(code) for code in range(32, 127)]
SPECIAL = ["<unk>", "<s>", "</s>", "<user>", "<system>", "<bot>"]
IDS = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['user', 'system'] %}{{ raise_exception('unknown role: ' + m.role) }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


def make_tokenizer(*, template: str | None = TEMPLATE, post: str | None = None) -> PreTrainedTokenizerFast:
    """Return a tokenizer; ``post`` is what it makes of a text by default, such as ``<s> $A </s>``."""
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(SPECIAL)
    if post is not None:
        tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            single=post, special_tokens=[("<s>", IDS["<s>"]), ("</s>", IDS["</s>"])]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=4096
    )
    fast.chat_template = template
    return fast


def ids(*tokens: str) -> tuple[int, ...]:
    """Return token ids: special tokens as they are, other texts one id a character."""
    return tuple(i for token in tokens for i in ([IDS[token]] if token in SPECIAL else [IDS[c] for c in token]))
