from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from support.data_tokenizers import make_tokenizer


@pytest.fixture(scope="session")
def chat_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose template writes <s>, and which would add another <s> by default."""
    return make_tokenizer(post="<s> $A")
