"""Tokens per second of the local engine against one-by-one ``model.generate``, on the same requests in one run.

    python benchmarks/local_engine.py
    python benchmarks/local_engine.py --model path/to/hf-folder --requests 64

Response lengths are long-tailed (log-normal) and forced: there is no stop token. Each prompt is asked for several
times, as GRPO does. Both sides sample from the same weights in float32 with the same number of threads; each is
run several times in turn, and the best run of each counts, because other load can only slow a run down.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from grpo.engine.local import LocalEngine
from grpo.types import SampleRequest, SamplingParams

TARGET = 3.0


def build_model(folder: Path) -> Path:
    """Write a random Llama (hidden 128, 4 layers, head_dim 32, vocabulary 128); return the folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def workload(count: int, samples_per_prompt: int, longest: int, vocabulary: int, seed: int) -> list[SampleRequest]:
    """Return requests with prompts of 4 to 64 tokens, and log-normal response lengths with median 24."""
    rng = random.Random(seed)
    requests: list[SampleRequest] = []
    prompt: tuple[int, ...] = ()
    for index in range(count):
        if index % samples_per_prompt == 0:
            prompt = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(4, 64)))
        length = min(max(1, round(rng.lognormvariate(3.2, 1.0))), longest)
        requests.append(SampleRequest(f"r{index}", prompt, SamplingParams(max_tokens=length, seed=index)))
    return requests


async def time_engine(folder: Path, requests: list[SampleRequest], running_requests: int) -> float:
    """Return the seconds from submitting all requests to the last response."""
    context = max(len(request.prompt_tokens) + request.params.max_tokens for request in requests)
    engine = LocalEngine("engine-0", folder, running_requests=running_requests, max_context_length=context)
    await engine.start(0)
    begin = time.perf_counter()
    responses = await asyncio.gather(*(engine.generate(request) for request in requests))
    seconds = time.perf_counter() - begin
    assert [len(response.tokens) for response in responses] == [request.params.max_tokens for request in requests]
    await engine.close()
    return seconds


def time_generate(model: Any, requests: list[SampleRequest]) -> float:
    """Return the seconds of ``model.generate`` on one request after the other."""
    begin = time.perf_counter()
    for request in requests:
        output = model.generate(
            torch.tensor([request.prompt_tokens]),
            attention_mask=torch.ones(1, len(request.prompt_tokens), dtype=torch.int64),
            max_new_tokens=request.params.max_tokens,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
        assert output.shape[1] == len(request.prompt_tokens) + request.params.max_tokens
    return time.perf_counter() - begin


def main() -> None:
    """Run both, print the table, and exit with 1 if the ratio is under the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face folder; default: a random tiny Llama")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--samples-per-prompt", type=int, default=8)
    parser.add_argument("--running-requests", type=int, default=64)
    parser.add_argument("--longest", type=int, default=256, help="response tokens")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads of both sides")
    args = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)

    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model or build_model(Path(scratch))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.eval().generation_config.eos_token_id = None
        requests = workload(args.requests, args.samples_per_prompt, args.longest, model.config.vocab_size, seed=0)
        asyncio.run(time_engine(folder, requests[:8], args.running_requests))
        time_generate(model, requests[:2])
        engine_runs, generate_runs = [], []
        for _ in range(args.repeats):
            engine_runs.append(asyncio.run(time_engine(folder, requests, args.running_requests)))
            generate_runs.append(time_generate(model, requests))

    lengths = sorted(request.params.max_tokens for request in requests)
    tokens = sum(lengths)
    ratio = min(generate_runs) / min(engine_runs)
    table = Table(
        title=f"{len(requests)} requests, {tokens} response tokens (median {lengths[len(lengths) // 2]}, "
        f"longest {lengths[-1]}), {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, "
        f"{torch.get_num_threads()} threads"
    )
    for column in ("", "seconds (best)", "all runs", "tokens/s", "ratio"):
        table.add_column(column, justify="right")
    for name, runs, relative in (("model.generate", generate_runs, 1.0), ("local engine", engine_runs, ratio)):
        every = " ".join(f"{seconds:.2f}" for seconds in runs)
        table.add_row(name, f"{min(runs):.2f}", every, f"{tokens / min(runs):,.0f}", f"{relative:.2f}x")
    Console(width=110).print(table)
    if ratio < TARGET:
        raise SystemExit(f"the ratio is under {TARGET}")


if __name__ == "__main__":
    main()
