"""The policy that ships with the package: its files, what it answers, and the script that makes it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import grpo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ASSET = Path(grpo.__file__).parent / "assets" / "tiny-arithmetic"
SCRIPT = Path(__file__).parents[1] / "scripts" / "pretrain_policy.py"
PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(ASSET)


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(ASSET).eval()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pretrain_policy", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def held_out_additions() -> list[tuple[int, int]]:
    """The split rule, written a second time: the script and the data room must both agree with it."""

    def digest(a: int, b: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"addition:{a}+{b}".encode(), digest_size=8).digest(), "big")

    return [(a, b) for a in range(100) for b in range(100) if digest(a, b) % 5 == 0]


def answers(model: Any, tokenizer: Any, pairs: list[tuple[int, int]], **how: Any) -> list[str]:
    """Answer ``a+b=`` for each pair by ``generate``; an answer without an end token is returned as ``"unfinished"``."""
    chats = [[{"role": "user", "content": f"{a}+{b}="}] for a, b in pairs]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
    )
    tokens = model.generate(**inputs, max_new_tokens=6, **how)[:, inputs["input_ids"].shape[1] :]
    return [
        tokenizer.decode(row, skip_special_tokens=True) if tokenizer.eos_token_id in row.tolist() else "unfinished"
        for row in tokens
    ]


def accuracy(model: Any, tokenizer: Any, pairs: list[tuple[int, int]], **how: Any) -> float:
    given = answers(model, tokenizer, pairs, **how)
    return sum(text == str(a + b) for text, (a, b) in zip(given, pairs, strict=True)) / len(pairs)


def test_the_folder_has_everything_a_model_folder_needs_and_the_weights_fit_in_four_megabytes() -> None:
    assert {path.name for path in ASSET.iterdir()} == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert (ASSET / "model.safetensors").stat().st_size <= 4_000_000


def test_the_model_card_names_the_weights_that_ship() -> None:
    card = (ASSET / "README.md").read_text()
    assert hashlib.sha256((ASSET / "model.safetensors").read_bytes()).hexdigest() in card
    assert "license: apache-2.0" in card


def test_it_is_a_plain_llama_with_heads_that_vllm_serves_on_a_cpu(model: Any, tokenizer: Any) -> None:
    config = model.config
    assert (config.model_type, config.head_dim, config.num_attention_heads) == ("llama", 32, 4)
    assert config.max_position_embeddings >= 256
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert config.vocab_size == len(tokenizer) == 104


def test_the_special_tokens_are_the_same_in_every_file(model: Any, tokenizer: Any) -> None:
    expected = (0, 1, 2)
    for holder in (tokenizer, model.config, model.generation_config):
        assert (holder.pad_token_id, holder.bos_token_id, holder.eos_token_id) == expected
    assert tokenizer.convert_ids_to_tokens(list(range(8))) == [
        "<|pad|>",
        "<|bos|>",
        "<|end|>",
        "<|unk|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|tool|>",
    ]


def test_generation_defaults_sample_from_the_policy_itself(model: Any) -> None:
    defaults = model.generation_config
    assert (defaults.do_sample, defaults.temperature, defaults.top_k, defaults.top_p) == (True, 1.0, 0, 1.0)


def test_the_tokenizer_config_names_a_class_that_older_transformers_know_too() -> None:
    config = json.loads((ASSET / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_chat_template_renders_a_whole_conversation(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "12+34="},
        {"role": "assistant", "content": "46"},
        {"role": "user", "content": "1+1="},
    ]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == (
        "<|bos|><|system|>Add.<|end|><|user|>12+34=<|end|><|assistant|>46<|end|><|user|>1+1=<|end|>"
    )


def test_the_generation_prompt_is_the_start_of_an_assistant_turn(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "12+34="}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert text == "<|bos|><|user|>12+34=<|end|><|assistant|>"
    assert tokens == tokenizer.encode(text) == [1, 5, 26, 27, 20, 28, 29, 38, 2, 6]


def test_the_chat_template_refuses_an_unknown_role(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="unknown role: critic"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "no"}], tokenize=False)


@pytest.mark.parametrize("text", ["46", "12+34=", "a  b\n\nc ", " leading", PRINTABLE])
def test_text_comes_back_from_the_tokenizer_unchanged_one_token_a_character(tokenizer: Any, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert tokenizer.decode(tokens) == text


def test_a_character_outside_the_vocabulary_becomes_unknown_and_is_skipped_when_asked(tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer.encode("1é2")) == "1<|unk|>2"
    assert tokenizer.decode(tokenizer.encode("<|user|>1é2<|end|>"), skip_special_tokens=True) == "12"


def test_the_script_holds_out_the_agreed_pairs(script: ModuleType) -> None:
    assert [(p.a, p.b) for p in script.ADDITION if p.held_out] == held_out_additions()


def test_training_texts_are_what_the_chat_template_renders(script: ModuleType, tokenizer: Any) -> None:
    texts = script.encode(tokenizer, [(script.Problem("addition", 12, 34), 56)])
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "12+34="}], add_generation_prompt=True)
    response = tokenizer.encode("56<|end|>")
    assert texts.tokens.tolist() == [prompt["input_ids"] + response[:-1]]
    assert texts.labels.tolist() == [[-100] * (len(prompt["input_ids"]) - 1) + response]


def test_it_is_mostly_wrong_on_held_out_additions_but_the_right_answer_is_within_reach(
    model: Any, tokenizer: Any
) -> None:
    """The starting point of reinforcement learning: groups of eight samples have something to choose from."""
    pairs = held_out_additions()[::4]  # 504 of them: the sampled accuracy is known to 0.02
    assert len(pairs) >= 256
    greedy = accuracy(model, tokenizer, pairs, do_sample=False)
    torch.manual_seed(0)
    sampled = accuracy(model, tokenizer, pairs, do_sample=True)
    assert 0.05 <= greedy <= 0.5
    assert 0.2 <= sampled <= 0.38


def test_the_accuracies_that_the_script_reports_are_those_of_real_decoding(
    script: ModuleType, model: Any, tokenizer: Any
) -> None:
    pairs = held_out_additions()[::32]
    reported = script.measure(model, tokenizer, [script.Problem("addition", a, b) for a, b in pairs])
    assert reported.greedy == pytest.approx(accuracy(model, tokenizer, pairs, do_sample=False))
    torch.manual_seed(0)
    drawn = accuracy(model, tokenizer, pairs * 8, do_sample=True)
    assert reported.sampled == pytest.approx(drawn, abs=0.06)


def test_every_right_answer_has_a_chance_of_being_sampled(script: ModuleType, model: Any, tokenizer: Any) -> None:
    """What makes 0.9 reachable: the arithmetic is known, so nearly no prompt has its right answer out of reach."""
    problems = [script.Problem("addition", a, b) for a, b in held_out_additions()[::4]]
    _, chances = script.right_answers(model, tokenizer, problems)
    assert (chances > 0.05).float().mean().item() > 0.95


def test_the_same_seed_gives_the_same_weights_and_another_seed_does_not(script: ModuleType) -> None:
    def weights(seed: str) -> list[Any]:
        model, _ = script.build(script.parse_arguments(["--steps", "2", "--batch-size", "8", "--seed", seed]))
        return list(model.state_dict().values())

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        first, again, other = weights("5"), weights("5"), weights("6")
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_script_writes_a_policy_that_loads(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--steps", "2", "--batch-size", "8"]
    done = subprocess.run([*command, "--measure-pairs", "16"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| addition, held out | 16 |" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in ASSET.iterdir()}
    for name in ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (ASSET / name).read_text()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(answers(loaded, tokenizer, [(1, 2)], do_sample=False)) == 1
