"""Tiny random models with a tokenizer, written as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 40


def make_model(folder: Path, family: Literal["llama", "qwen2"] = "llama", *, tied: bool = False, seed: int = 0) -> Path:
    """Write a two-layer model (hidden 64, head_dim 32) whose distributions are far from uniform; return ``folder``."""
    shape: dict[str, Any] = dict(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if family == "llama":
            model = LlamaForCausalLM(LlamaConfig(**shape, head_dim=32))
        else:
            model = Qwen2ForCausalLM(Qwen2Config(**shape))
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a character tokenizer of ``VOCABULARY`` tokens with a chat template."""
    characters = ["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+*=abcdefghijklmnopqrstuvw"]
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template="{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )
