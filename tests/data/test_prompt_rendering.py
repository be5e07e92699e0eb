from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from grpo.data.render import LongPrompts, Rendered, Renderer, render_rows
from grpo.data.row import Message, RawRow
from grpo.errors import UserError
from grpo.types import Prompt
from support.data_tokenizers import ids, make_tokenizer

CHAT = (Message("system", "be brief"), Message("user", "1+2="))


def row(prompt: str | tuple[Message, ...], number: int = 1) -> RawRow:
    return RawRow(f"data/{number}", prompt, ("3",), "integer", "data", f"data.jsonl:{number}", {})


def test_a_chat_goes_through_the_template_and_gets_its_first_token_once(
    chat_tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert chat_tokenizer("a")["input_ids"] == list(ids("<s>", "a"))  # this tokenizer would add another
    assert Renderer(chat_tokenizer).render(row(CHAT)) == Prompt(
        id="data/1",
        tokens=ids("<s>", "<system>", "be brief", "</s>", "<user>", "1+2=", "</s>", "<bot>"),
        text="<s><system>be brief</s><user>1+2=</s><bot>",
        ground_truth=("3",),
        verifier="integer",
        source="data",
        options={},
    )


@pytest.mark.parametrize(
    ("post", "text", "tokens"),
    [
        (None, "1+2=", ids("1+2=")),
        ("<s> $A", "1+2=", ids("<s>", "1+2=")),
        ("<s> $A", "<s>1+2=", ids("<s>", "1+2=")),
        ("<s> $A </s>", "1+2=", ids("<s>", "1+2=")),  # a prompt does not end the text
        ("$A </s>", "1+2=", ids("1+2=")),
        ("<s> $A", " 1 ", ids("<s>", " 1 ")),
    ],
)
def test_a_text_is_tokenised_as_it_is(post: str | None, text: str, tokens: Sequence[int]) -> None:
    prompt = Renderer(make_tokenizer(template=None, post=post)).render(row(text))
    assert (prompt.text, prompt.tokens) == (text, tokens)


def test_many_rows_keep_their_order_and_their_own_tokens(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [row((Message("user", f"{n}="),) if n % 2 else f"{n}", n) for n in range(2500)]
    rendered = [(prompt.id, prompt.tokens) for prompt in Renderer(chat_tokenizer).render_all(rows)]
    assert rendered == [
        (f"data/{n}", ids("<s>", "<user>", f"{n}=", "</s>", "<bot>") if n % 2 else ids("<s>", f"{n}"))
        for n in range(2500)
    ]


def test_messages_without_a_chat_template_are_an_error() -> None:
    with pytest.raises(UserError) as caught:
        Renderer(make_tokenizer(template=None)).render(row(CHAT))
    assert str(caught.value) == (
        "data.jsonl:1: the row has 'messages', but the model's tokenizer has no chat template. "
        "Use a chat model, or give rows with 'prompt' instead."
    )


def test_messages_that_the_template_refuses_are_an_error(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError) as caught:
        Renderer(chat_tokenizer).render(row((Message("tool", "x"),)))
    assert str(caught.value) == "data.jsonl:1: the chat template refuses these messages: unknown role: tool"


def test_a_prompt_without_tokens_is_an_error() -> None:
    with pytest.raises(UserError, match=r"^data\.jsonl:1: the prompt renders to no tokens$"):
        Renderer(make_tokenizer(template="{# nothing #}")).render(row(CHAT))


def test_a_prompt_of_exactly_the_limit_is_kept_and_a_longer_one_is_an_error_that_names_it() -> None:
    tokenizer = make_tokenizer()
    rows = [row("123", 1), row("12345", 2), row("1", 3), row("123456", 4)]
    assert [p.text for p in render_rows(rows, tokenizer, max_prompt_length=6).prompts] == [
        "123",
        "12345",
        "1",
        "123456",
    ]
    with pytest.raises(UserError) as caught:
        render_rows(rows, tokenizer, max_prompt_length=5)
    assert str(caught.value) == (
        "data.jsonl:4: the prompt of row 'data/4' has 6 tokens, more than max_prompt_length = 5. "
        "Raise max_prompt_length to at least 6, or shorten the rows."
    )
    with pytest.raises(UserError) as caught:
        render_rows(rows, tokenizer, max_prompt_length=4)
    assert str(caught.value) == (
        "data.jsonl:2: the prompt of row 'data/2' has 5 tokens, more than max_prompt_length = 4 "
        "(1 more row is too long). Raise max_prompt_length to at least 6, or shorten the rows."
    )


def test_longer_prompts_can_be_dropped_and_are_counted() -> None:
    tokenizer = make_tokenizer()
    rows = [row("123", 1), row("12345", 2), row("1", 3), row("123456", 4)]
    rendered = render_rows(rows, tokenizer, max_prompt_length=4, long_prompts=LongPrompts.DROP)
    renderer = Renderer(tokenizer)
    assert rendered == Rendered((renderer.render(rows[0]), renderer.render(rows[2])), dropped=2)
