"""Rates are read from what an earlier run wrote, or from a small file; times follow from them by plain arithmetic."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import UserError
from grpo.obs.rows import StepRow, StepTiming, collection_stats
from grpo.plan.estimate import estimate
from grpo.plan.estimate_base import GPUS, Hardware, hardware
from grpo.plan.estimate_time import time_and_cost
from grpo.plan.job import JobSpec, Placement, TopologySpec
from grpo.plan.rates import Rates, read_rates
from grpo.plan.shapes import ModelShape, model_shape
from grpo.types import StepMetrics
from support.jobs import make_job

LARGE: dict[str, Any] = dict(
    model_type="llama",
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=128256,
)


def large() -> ModelShape:
    shape = model_shape(LARGE)
    assert shape is not None
    return shape


def row(step: int, **time: float) -> StepRow:
    """Return a step of 32 responses of 10 tokens on average, with prompts of 20, in 16 s."""
    names = [each.name for each in fields(StepMetrics)]
    counts = dict(version=step, samples=32, loss_tokens=320, tokens=960, micro_batches=2, seconds=4.0)
    learner = StepMetrics(**(dict.fromkeys(names, 0.0) | counts))  # type: ignore[arg-type]
    clock: dict[str, float] = dict(elapsed_s=16.0 * step, interval_s=16.0, step_s=4.0, wait_s=10.0, publish_s=2.0)
    clock |= dict(generated_tokens_per_s=60.0, trained_tokens_per_s=240.0) | time
    stats = replace(collection_stats([], []), response_length_mean=10.0, response_tokens=960)
    outcomes = {"trained": 8, "zero_std": 12, "stale": 4}
    return StepRow(step, step, learner, stats, outcomes, 8 * step, 0, 0, StepTiming(**clock))


def write(path: Path, rows: list[StepRow], job: JobSpec | None = None) -> Path:
    path.write_text("".join(json.dumps(each.as_json()) + "\n" for each in rows) + '{"kind": "eval", "step": 3}\n')
    if job is not None:
        path.with_name("job.json").write_text(job.to_json())
    return path


# The first step is slow, as first steps are.
ROWS = [row(1, wait_s=1000.0, trained_tokens_per_s=1.0), *(row(step) for step in (2, 3, 4))]


def test_a_synchronous_run_generates_while_its_trainer_waits(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", ROWS, make_job(tmp_path, engine=dict(count=2), learner=dict(ranks=4)))
    assert read_rates(path, make_job(tmp_path)) == Rates(
        source=f"{path} (3 steps, 2 engines, 4 ranks)",
        generate_tokens_per_s=60 * 16 / 10 / 2,
        train_tokens_per_s=240 / 4,
        publish_s=2.0,
        response_tokens=10.0,
        prompt_tokens=20.0,
        generated_per_trained=3.0,
    )


def test_an_asynchronous_run_generates_all_the_time(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", ROWS, make_job(tmp_path, sync=dict(asynchronous=True)))
    assert read_rates(path, make_job(tmp_path)).generate_tokens_per_s == 60


def test_without_a_job_beside_it_the_metrics_are_of_the_job_that_is_planned(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", ROWS)
    assert read_rates(path, make_job(tmp_path, engine=dict(count=3))).generate_tokens_per_s == 60 * 16 / 10 / 3
    (tmp_path / "job.json").write_text("{}")
    assert read_rates(path, make_job(tmp_path, engine=dict(count=3))).generate_tokens_per_s == 60 * 16 / 10 / 3


def test_steps_of_one_collection_share_its_times(tmp_path: Path) -> None:
    job = make_job(tmp_path, batch=dict(steps_per_collection=2))
    rates = read_rates(write(tmp_path / "metrics.jsonl", ROWS, job), job)
    assert (rates.publish_s, rates.source) == (4.0, f"{tmp_path}/metrics.jsonl (2 steps, 1 engines, 1 ranks)")


def test_a_run_of_one_step_has_rates_too(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", [row(1)], make_job(tmp_path))
    assert read_rates(path, make_job(tmp_path)).train_tokens_per_s == 240


@pytest.mark.parametrize(
    ("name", "text"),
    [("rates.toml", "generate_tokens_per_s = 900\npublish_s = 0\n"), ("r.json", '{"generate_tokens_per_s": 900.0}')],
)
def test_a_small_file_gives_only_what_it_names(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    rates = read_rates(tmp_path / name, make_job(tmp_path))
    zero = 0.0 if "publish" in text else None
    assert rates == Rates(source=str(tmp_path / name), generate_tokens_per_s=900.0, publish_s=zero)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        (
            "a.toml",
            "generate_tokens_per = 1",
            "unknown rate 'generate_tokens_per'. Did you mean 'generate_tokens_per_s'?",
        ),
        ("a.toml", "publish_s = -1", "publish_s must be a positive number, not -1"),
        ("a.toml", "train_tokens_per_s = 0", "train_tokens_per_s must be a positive number, not 0"),
        ("a.toml", "train_tokens_per_s = nan", "train_tokens_per_s must be a positive number, not nan"),
        ("a.toml", "train_tokens_per_s = true", "train_tokens_per_s must be a positive number, not True"),
        ("a.toml", "x", "is not toml ("),
        ("a.json", "[1]", "is not a table of rates"),
        ("a.json", "{", "is not json ("),
        ("a.jsonl", '{"kind": "step"}', "a step row lacks 'time'"),
        ("a.jsonl", '{"kind": "eval"}', "has no step rows"),
        ("a.jsonl", "{}\n{", "a.jsonl:2: is not JSON"),
    ],
)
def test_a_file_that_holds_no_rates_is_an_error_of_one_line(tmp_path: Path, name: str, text: str, wanted: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        read_rates(tmp_path / name, make_job(tmp_path))
    assert f"{tmp_path}/{name}" in str(error.value) and wanted in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_rates(tmp_path / "no.toml", make_job(tmp_path))
    assert str(error.value) == f"--rates {tmp_path}/no.toml: cannot be read (No such file or directory)"


MEASURED = Rates(
    source="r.toml",
    generate_tokens_per_s=100.0,
    train_tokens_per_s=50.0,
    publish_s=1.0,
    response_tokens=8.0,
    prompt_tokens=12.0,
    generated_per_trained=1.5,
)


def times(job: JobSpec, rates: Rates | None, machine: Hardware | None = None) -> dict[str, Any]:
    part = time_and_cost(job, large(), machine or Hardware(), rates)
    return {quantity.name.partition(".")[2]: quantity for quantity in part.quantities}


def test_times_follow_from_measured_rates(tmp_path: Path) -> None:
    # 8 prompts x 4 samples; 3 engines, 2 ranks, 4 collections.
    parts: dict[str, Any] = dict(engine=dict(count=3), learner=dict(ranks=2))
    said = times(make_job(tmp_path, **parts), MEASURED)
    generation, training = 32 * 8 * 1.5 / (3 * 100), 32 * 20 / (2 * 50)
    assert said["generation"].value == pytest.approx(generation)
    assert said["training"].value == pytest.approx(training)
    assert said["collection"].value == pytest.approx(generation + training + 1)
    assert said["hours"].value == pytest.approx(4 * (generation + training + 1) / 3600)
    assert (said["hours"].unit, "balance" in said) == ("hours", False)

    overlapped = times(make_job(tmp_path, sync=dict(asynchronous=True), **parts), MEASURED)
    assert overlapped["collection"].value == pytest.approx(training + 1)
    assert overlapped["balance"].value == pytest.approx(generation / (training + 1))
    assert overlapped["balance"].note == "trainer-bound: 1 of 3 engines would do"
    slow = times(
        make_job(tmp_path, sync=dict(asynchronous=True), **parts), replace(MEASURED, generate_tokens_per_s=10.0)
    )
    assert slow["collection"].value == pytest.approx(10 * generation)
    assert slow["balance"].note == "generation-bound: 6 engines of this speed would keep the learner busy"


def test_measured_lengths_are_cut_at_the_limits_of_the_plan(tmp_path: Path) -> None:
    said = times(make_job(tmp_path), replace(MEASURED, response_tokens=500.0, prompt_tokens=900.0))
    assert (said["response_tokens"].value, said["prompt_tokens"].value) == (16, 32)


def test_every_number_says_whether_it_was_measured_or_assumed(tmp_path: Path) -> None:
    inputs = ("response_tokens", "prompt_tokens", "generated_per_trained", "generate_rate", "train_rate", "publish")
    measured = times(on_gpus(tmp_path), MEASURED)
    assert {measured[name].note for name in inputs} == {"measured: r.toml"}
    assumed = times(on_gpus(tmp_path), None)
    assert all(assumed[name].note.startswith("assumed: ") for name in inputs)


def on_gpus(tmp_path: Path, **parts: Any) -> JobSpec:
    """Return a job of four ranks and two engines on six of the eight GPUs of a node."""
    learner, engines = (Placement(gpus=(gpu,)) for gpu in range(4)), (Placement(gpus=(gpu,)) for gpu in (4, 5))
    topology = TopologySpec(gpus_per_node=8, learner=tuple(learner), engines=tuple(engines))
    parts = {"engine": {}, "learner": {}} | parts
    parts["engine"] |= dict(backend="vllm", count=2, dtype="bfloat16", running_requests=16)
    parts["learner"] = dict(ranks=4, dtype="bfloat16") | parts["learner"]
    return make_job(tmp_path, topology=topology, **parts)


def test_assumed_rates_are_shares_of_the_gpus_peaks(tmp_path: Path) -> None:
    machine = Hardware(GPUS["h100"], flops_share=0.4, bandwidth_share=0.6)
    said = times(on_gpus(tmp_path), None, machine)
    multiplied = 8_030_261_248 - 128256 * 4096 - 4096 * (2 * 32 + 1)
    assert said["train_rate"].value == pytest.approx(0.4 * 989e12 / (6 * multiplied))
    token, context = 2 * 32 * 8 * 128 * 2, 32 + 16 / 2
    weights = 2 * 8_030_261_248
    assert said["generate_rate"].value == pytest.approx(16 * 0.6 * 3.35e12 / (weights + 16 * context * token))
    again = times(on_gpus(tmp_path, learner=dict(activation_recompute=True)), None, machine)
    assert again["train_rate"].value == pytest.approx(0.4 * 989e12 / (8 * multiplied))
    single = times(on_gpus(tmp_path, learner=dict(dtype="float32")), None, machine)
    assert single["train_rate"].value == pytest.approx(said["train_rate"].value / 2)
    assert said["hours"].unit == "GPU-hours"
    assert said["hours"].value == pytest.approx(4 * said["collection"].value * 6 / 3600)


def test_a_cpu_has_no_assumed_speed(tmp_path: Path) -> None:
    said = times(make_job(tmp_path), None)
    for name in ("generate_rate", "train_rate", "generation", "training", "collection", "hours"):
        assert said[name].value is None
        assert said[name].note == "give --rates: a CPU has no assumed speed"
    partly = times(make_job(tmp_path), Rates("x", train_tokens_per_s=5.0))
    assert (partly["training"].value, partly["collection"].value) == (32 * 48 / 5.0, None)


def test_the_gpu_is_named_by_the_user_and_shown(tmp_path: Path) -> None:
    assert hardware("H200") == Hardware(GPUS["h200"])
    shown = estimate(make_job(tmp_path), hardware("h200")).as_json()["assumptions"]
    assert (shown["gpu"], shown["gpu_memory_bytes"]) == ("h200", 141 * 10**9)
    with pytest.raises(UserError) as error:
        hardware("h20")
    assert str(error.value) == "--gpu: no GPU 'h20' is known. Did you mean 'h200'? GPUs: a100, b200, h100, h200."
