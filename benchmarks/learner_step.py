"""Tokens per second of one learner step: packed, padded, and one sample at a time, in one run on the same samples.

Two workloads: the shape of the CPU demo (512 samples of about 14 tokens), and lengths mixed over a factor of 32. The
model is a random Llama of about 0.9 million parameters. Modes take turns, and the median of ``--repeats`` is shown, so
that noise of a shared machine falls on all of them. CPU seconds are the process's own; with ``--threads 1`` they are
what the step would take on an idle core.

    python benchmarks/learner_step.py [--repeats 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo.learner.rank import LearnerRank
from grpo.plan.job import JobSpec
from grpo.types import TrainBatch, TrainSample

VOCABULARY = 64
MODES = {
    "packed": dict(sequence_packing=True, micro_batch_size=64),
    "packed, 8 rows": dict(sequence_packing=True, micro_batch_size=8),
    "padded": dict(sequence_packing=False, micro_batch_size=64),
    "padded, 8 rows": dict(sequence_packing=False, micro_batch_size=8),
    "padded, all": dict(sequence_packing=False, micro_batch_size=1 << 30),
    "micro-batch 1": dict(sequence_packing=False, micro_batch_size=1),
}


def make_model(folder: Path) -> int:
    """Write the model; return its number of parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model.num_parameters()


def make_samples(count: int, shortest: int, longest: int) -> tuple[TrainSample, ...]:
    """Lengths are log-uniform, so that most are short and a few are long."""
    draw = random.Random(0)

    def sample(index: int) -> TrainSample:
        length = round(shortest * (longest / shortest) ** draw.random())
        response = length // 2
        return TrainSample(
            sample_id=str(index),
            tokens=tuple(draw.randrange(VOCABULARY) for _ in range(length)),
            prompt_length=length - response,
            behavior_logprobs=tuple(-draw.uniform(3.5, 4.5) for _ in range(response)),
            advantage=draw.uniform(-1, 1),
        )

    return tuple(sample(index) for index in range(count))


def job_of(folder: Path, packing_max_tokens: int, mode: Mapping[str, object]) -> JobSpec:
    """Return the tests' minimal job with this model and layout."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from support.jobs import make_job

    return make_job(folder, model=folder, learner=dict(mode, packing_max_tokens=packing_max_tokens))


def measure(title: str, folder: Path, samples: tuple[TrainSample, ...], packing: int, repeats: int) -> None:
    """Print a table of the modes on ``samples``."""
    ranks = {
        name: LearnerRank(job_of(folder, packing, mode), device=torch.device("cpu")) for name, mode in MODES.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in MODES}
    cpu: dict[str, list[float]] = {name: [] for name in MODES}
    tokens = sum(len(sample.tokens) for sample in samples)
    cuts = {}
    for _ in range(repeats + 1):  # The first turn warms up.
        for name, rank in ranks.items():
            began = time.process_time()
            metrics = rank.step(TrainBatch(rank.version + 1, samples))
            cpu[name].append(time.process_time() - began)
            seconds[name].append(metrics.seconds)
            cuts[name] = metrics.micro_batches
    print(f"\n{title}: {len(samples)} samples, {tokens} tokens, packs of {packing}")
    print(f"{'mode':<15}{'micro-batches':>14}{'median s':>10}{'CPU s':>9}{'tokens/s':>10}{'tokens/CPU s':>14}")
    for name, times in seconds.items():
        middle, used = statistics.median(times[1:]), statistics.median(cpu[name][1:])
        print(f"{name:<15}{cuts[name]:>14}{middle:>10.3f}{used:>9.3f}{tokens / middle:>10.0f}{tokens / used:>14.0f}")


def main() -> None:
    """Measure both workloads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = make_model(folder)
        print(f"{parameters / 1e6:.2f}M parameters, float32, {arguments.threads} threads")
        measure("demo shape", folder, make_samples(512, 11, 17), 64, arguments.repeats)
        measure("mixed lengths", folder, make_samples(64, 16, 512), 512, arguments.repeats)


if __name__ == "__main__":
    main()
