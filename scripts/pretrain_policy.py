"""Build the tiny policy that ships with the package, from nothing, on two CPU cores.

The policy is a 0.9M-parameter Llama decoder with a character-level tokenizer. It learns to answer ``a+b=`` and
``a*b=`` with a *mixture* of behaviours: for the same prompt, some training texts give the right answer and the rest a
neighbouring function of the operands (``a+b+1``, ``a+b+10``). So it has learnt the arithmetic, but prefers a wrong
answer most of the time. That is the state in which reinforcement learning has something to do in half a minute: the
right behaviour is already there, and a verifiable reward only has to make it the preferred one. (A policy that merely
lacks training gains nothing on unseen prompts in that time, because it has no right behaviour to prefer.)

    python scripts/pretrain_policy.py                       # rebuilds src/grpo/assets/tiny-arithmetic: 5 to 10 minutes
    python scripts/pretrain_policy.py --steps 20 --out /tmp/x

The same seed, thread count, machine and library versions give the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DEFAULT_OUT = Path(__file__).resolve().parents[1] / "src" / "grpo" / "assets" / "tiny-arithmetic"

# -- the tokenizer ---------------------------------------------------------------------------------------------------

PAD, BOS, END, UNK = "<|pad|>", "<|bos|>", "<|end|>", "<|unk|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (PAD, BOS, END, UNK, *(f"<|{role}|>" for role in ROLES))
# Newline and printable ASCII. With the eight special tokens the vocabulary has 104 entries, which every tensor-parallel
# degree up to 8 divides.
CHARACTERS = ("\n", *(chr(code) for code in range(32, 127)))
PAD_ID, BOS_ID, END_ID = (SPECIAL_TOKENS.index(token) for token in (PAD, BOS, END))

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('unknown role: ' + message['role']) -}}
{%- endif -%}
{{- '<|' + message['role'] + '|>' + message['content'] + eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the character-level tokenizer: one token a character, and no token added to a text that it encodes.

    The chat template writes the beginning-of-text token itself, so encoding a rendered chat does not double it.
    """
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
        padding_side="left",
    )


# -- the model -------------------------------------------------------------------------------------------------------

MAX_POSITIONS = 512


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a randomly initialised Llama decoder; head_dim is 32, the smallest that vLLM's CPU attention serves."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=BOS_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        attention_dropout=0.0,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    return model


# -- the data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """One arithmetic question. ``task`` is ``addition`` or ``multiplication``."""

    task: str
    a: int
    b: int

    @property
    def symbol(self) -> str:
        """The operator as it is written in the question."""
        return "+" if self.task == "addition" else "*"

    @property
    def question(self) -> str:
        """What the user says."""
        return f"{self.a}{self.symbol}{self.b}="

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.a + self.b if self.task == "addition" else self.a * self.b

    @property
    def held_out(self) -> bool:
        """Whether the pair belongs to the evaluation split, by a hash that no seed changes."""
        name = f"{self.task}:{self.a}{self.symbol}{self.b}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") % 5 == 0

    def mixture(self) -> list[tuple[int, float]]:
        """Return the answers that the training texts give, each with its share.

        The right one is preferred only where the second operand ends in 0 or 1. That, not noise, is what fixes greedy
        accuracy: with equal shares everywhere it would be a toss-up for each prompt and seed.
        """
        right = RIGHT_SHARE_EASY if self.b % 10 <= 1 else RIGHT_SHARE_HARD
        return [
            (self.answer, right),
            (self.answer + 1, (1 - right) * PLUS_ONE_SHARE),
            (self.answer + 10, (1 - right) * (1 - PLUS_ONE_SHARE)),
        ]


RIGHT_SHARE_EASY = 0.5
RIGHT_SHARE_HARD = 0.2
PLUS_ONE_SHARE = 0.6  # of the wrong answers; the others add ten

ADDITION = [Problem("addition", a, b) for a in range(100) for b in range(100)]
MULTIPLICATION = [Problem("multiplication", a, b) for a in range(13) for b in range(13)]
MULTIPLICATION_FRACTION = 0.1


@dataclass(frozen=True)
class Texts:
    """Right-padded training texts, ``N`` rows of ``T`` tokens.

    Attributes:
        tokens: (N, T) int64.
        labels: (N, T) int64, already shifted: the token that follows each position, or -100 outside the response.
    """

    tokens: torch.Tensor
    labels: torch.Tensor


def encode(tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[Problem, int]]) -> Texts:
    """Render each (problem, answer) as a chat and tokenize it."""
    # The template treats every question alike, so it is rendered once; 30,000 renderings would take half a minute.
    chat = [{"role": "user", "content": "QUESTION"}]
    rendered = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    prompts = tokenizer(
        [rendered.replace("QUESTION", problem.question) for problem, _ in pairs], add_special_tokens=False
    )["input_ids"]
    responses = tokenizer([f"{answer}{END}" for _, answer in pairs], add_special_tokens=False)["input_ids"]
    # Nothing is predicted from the last token, so it is a label only.
    rows = [p + r[:-1] for p, r in zip(prompts, responses, strict=True)]
    labels = [[-100] * (len(p) - 1) + r for p, r in zip(prompts, responses, strict=True)]
    width = max(map(len, rows))
    return Texts(
        torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows]),
        torch.tensor([row + [-100] * (width - len(row)) for row in labels]),
    )


class Corpus:
    """Every (problem, answer) text, tokenized once, from which batches are drawn."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        problems = [*ADDITION, *MULTIPLICATION]
        mixtures = [problem.mixture() for problem in problems]
        self.texts = encode(
            tokenizer, [(p, answer) for p, mixture in zip(problems, mixtures, strict=True) for answer, _ in mixture]
        )
        self.shares = torch.tensor([[share for _, share in mixture] for mixture in mixtures])
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, size: int, right_only: bool) -> Texts:
        """Draw ``size`` texts; with ``right_only`` they all give the right answer."""
        products = round(size * MULTIPLICATION_FRACTION)
        sums = torch.randint(len(ADDITION), (size - products,), generator=self.generator)
        rest = torch.randint(len(MULTIPLICATION), (products,), generator=self.generator) + len(ADDITION)
        problems = torch.cat([sums, rest])
        choices = torch.multinomial(self.shares[problems], 1, generator=self.generator)[:, 0]
        if right_only:
            choices = torch.zeros_like(choices)
        rows = problems * self.shares.shape[1] + choices
        return Texts(self.texts.tokens[rows], self.texts.labels[rows])


# -- training and measuring ------------------------------------------------------------------------------------------


def token_logits(model: LlamaForCausalLM, texts: Texts) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (M, V) logits that predict the M response tokens, and those (M,) tokens.

    Padding is on the right and attention is causal, so no response token sees any of it and no mask is needed.
    """
    hidden = model.model(input_ids=texts.tokens, use_cache=False).last_hidden_state
    where = texts.labels >= 0
    return model.lm_head(hidden[where]), texts.labels[where]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 5% of the steps, then linear decay to zero."""
    warmup = max(1, steps // 20)
    return peak * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def train(model: LlamaForCausalLM, corpus: Corpus, args: argparse.Namespace) -> int:
    """Train on right answers first, then on the mixture; return the steps done.

    The arithmetic is learnt several times faster from texts that agree with one another, and the mixture then only has
    to spread the probability. Stops early at ``--minutes``, which makes the result depend on the machine's speed.
    """
    decay = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    right_steps = round(args.steps * args.right_fraction)
    started = time.perf_counter()
    model.train()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        logits, targets = token_logits(model, corpus.batch(args.batch_size, right_only=step < right_steps))
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - started
        if (step + 1) % args.log_every == 0 or step + 1 == args.steps:
            phase = "right answers" if step < right_steps else "mixture"
            print(f"step {step + 1:5d}/{args.steps}  {phase:13s}  loss {loss.item():.4f}  {seconds:6.1f} s", flush=True)
        if seconds > args.minutes * 60:
            print(f"stopped after {step + 1} steps at {args.minutes} minutes: the weights are not the seed's own")
            return step + 1
    return args.steps


@dataclass(frozen=True)
class Accuracy:
    """How often the policy is right: by the likeliest tokens, and expected of a sample at temperature 1."""

    count: int
    greedy: float
    sampled: float


@torch.no_grad()
def right_answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for each of N problems, whether greedy decoding is right (N,) and the chance that a sample is (N,).

    Both are exact and take one forward pass over the right answers: greedy decoding gives the right answer exactly when
    each of its tokens is the likeliest after those before it, and the chance of sampling it is the product of its
    tokens' probabilities.
    """
    model.eval()
    greedy, chances = [], []
    for start in range(0, len(problems), 512):
        chunk = problems[start : start + 512]
        texts = encode(tokenizer, [(problem, problem.answer) for problem in chunk])
        logits, targets = token_logits(model, texts)
        row = (texts.labels >= 0).nonzero()[:, 0]
        wrong = torch.zeros(len(chunk)).index_add_(0, row, (logits.argmax(-1) != targets).float())
        logprob = -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        greedy.append(wrong == 0)
        chances.append(torch.zeros(len(chunk)).index_add_(0, row, logprob).exp())
    return torch.cat(greedy), torch.cat(chances)


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]) -> Accuracy:
    """Return the accuracies over ``problems``."""
    greedy, chances = right_answers(model, tokenizer, problems)
    return Accuracy(len(problems), greedy.float().mean().item(), chances.mean().item())


def measure_all(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, limit: int) -> dict[str, Accuracy]:
    """Measure each task on the pairs that reinforcement learning may train on and on those that it may not.

    Of each split at most ``limit`` pairs are measured, evenly spaced; 0 measures all.
    """
    accuracies = {}
    for name, problems in (("addition", ADDITION), ("multiplication", MULTIPLICATION)):
        for split, held_out in (("train", False), ("held out", True)):
            chosen = [p for p in problems if p.held_out == held_out]
            stride = -(-len(chosen) // limit) if limit else 1
            accuracies[f"{name}, {split}"] = measure(model, tokenizer, chosen[::stride])
    return accuracies


def accuracy_table(accuracies: dict[str, Accuracy]) -> str:
    """Render the accuracies as a Markdown table."""
    lines = ["| prompts | pairs | greedy | sampled, temperature 1 |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {a.count} | {a.greedy:.3f} | {a.sampled:.3f} |" for name, a in accuracies.items()]
    return "\n".join(lines)


# -- what is written -------------------------------------------------------------------------------------------------

CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# tiny-arithmetic

A {parameters:,}-parameter Llama decoder that answers `a+b=` (0 to 99) and `a*b=` (0 to 12), for trying out
reinforcement learning on a CPU. It is wrong most of the time **on purpose**, and of no other use.

## How it was made

From nothing, by `scripts/pretrain_policy.py` of this repository: {steps} steps of {batch_size} texts, seed {seed},
{threads} thread(s), {seconds:.0f} s. All texts are generated by the script; there is no other data and no parent model.

```
<|bos|><|user|>12+34=<|end|><|assistant|>46<|end|>
```

The first {right_percent:.0f}% of the steps see right answers only. After that a prompt is answered by a mixture: the
right answer with probability {easy} where the second operand ends in 0 or 1 and {hard} elsewhere, else the right
answer plus one ({plus_one:.0%} of the wrong texts) or plus ten. So greedy decoding is wrong on most
prompts, and every right answer keeps a probability that sampling finds.

Pre-training sees all pairs. A pair is held out from reinforcement learning if the 8-byte BLAKE2b hash of
`addition:a+b` (`multiplication:a*b`), read as a big-endian number, is divisible by 5.

## Accuracy, as shipped

Both columns are exact: one forward pass gives the likeliest tokens and the probability of the right answer.

{table}

## Format

Character-level tokenizer, {vocabulary} tokens: 8 special ones, newline, printable ASCII. `<|pad|>` 0, `<|bos|>` 1,
`<|end|>` 2 (ends every turn, and is the end-of-text token), `<|unk|>` 3, then the roles. `head_dim` 32,
{positions} positions, float32. Built with torch {torch}, transformers {transformers}, tokenizers {tokenizers} on
{machine}. The same seed, thread count, machine and versions give the same bytes; another machine may round
differently. SHA-256 of `model.safetensors`:

    {digest}

Licence: Apache-2.0.
"""


def model_card(out: Path, model: LlamaForCausalLM, table: str, args: argparse.Namespace, seconds: float) -> str:
    """Return the README of the written policy."""
    return CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        steps=args.steps,
        batch_size=args.batch_size,
        seed=args.seed,
        threads=args.threads,
        seconds=seconds,
        right_percent=100 * args.right_fraction,
        easy=RIGHT_SHARE_EASY,
        hard=RIGHT_SHARE_HARD,
        plus_one=PLUS_ONE_SHARE,
        table=table,
        vocabulary=model.config.vocab_size,
        positions=MAX_POSITIONS,
        torch=torch.__version__,
        transformers=transformers.__version__,
        tokenizers=tokenizers.__version__,
        machine=platform.machine(),
        digest=hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    )


def write(out: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the policy as a Hugging Face model folder."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # transformers 5 writes its own name for this class, which transformers 4 and tools pinned to it do not know.
    path = out / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    config.pop("backend", None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line, or ``arguments`` in its place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop training after this long, whatever the step")
    parser.add_argument("--batch-size", type=int, default=128, help="texts a step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate of AdamW")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--right-fraction", type=float, default=0.5, help="share of the steps with right answers only")
    parser.add_argument("--threads", type=int, default=1, help="the matrices are too small for more to help much")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--measure-pairs", type=int, default=0, help="at most this many of each split; 0 is all")
    return parser.parse_args(arguments)


def build(args: argparse.Namespace) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the trained policy and its tokenizer. Everything random comes from ``args.seed``."""
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    train(model, Corpus(tokenizer, args.seed), args)
    return model, tokenizer


def main() -> None:
    """Build, measure and write the policy."""
    args = parse_arguments()
    started = time.perf_counter()
    model, tokenizer = build(args)
    seconds = time.perf_counter() - started
    table = accuracy_table(measure_all(model, tokenizer, args.measure_pairs))
    write(args.out, model, tokenizer)
    (args.out / "README.md").write_text(model_card(args.out, model, table, args, seconds))
    print(table)
    print(f"{args.out}: {seconds:.0f} s")


if __name__ == "__main__":
    main()
