"""Measured rates of an earlier run, from its ``metrics.jsonl`` or from a small TOML or JSON file."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from grpo.errors import UserError, did_you_mean
from grpo.plan.job import JobSpec


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast the parts of a run are. ``None`` is not known.

    Attributes:
        source: where the numbers are from, for people.
        generate_tokens_per_s: response tokens of one engine.
        train_tokens_per_s: tokens, prompts included, of one learner rank, recompute and all.
        publish_s: from the end of a step to the new weights being live.
        response_tokens, prompt_tokens: means.
        generated_per_trained: groups generated for each one that is trained; 1 without filter and staleness.
    """

    source: str
    generate_tokens_per_s: float | None = None
    train_tokens_per_s: float | None = None
    publish_s: float | None = None
    response_tokens: float | None = None
    prompt_tokens: float | None = None
    generated_per_trained: float | None = None


def read_rates(path: Path, job: JobSpec) -> Rates:
    """Read rates.

    Args:
        path: ``metrics.jsonl`` of a run (its ``job.json``, beside it, says what it ran on), or a ``.toml`` or ``.json``
            file with fields of :class:`Rates`.
        job: what the metrics ran on where there is no ``job.json``.

    Raises:
        UserError: the file cannot be read, or holds no rates.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UserError(f"cannot be read ({reason})", where=f"--rates {path}") from None
    if path.suffix == ".jsonl":
        return _measured(path, text, job)
    return _given(path, text)


def _given(path: Path, text: str) -> Rates:
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"is not {path.suffix.removeprefix('.') or 'toml'} ({error})", where=str(path)) from None
    if not isinstance(values, dict):
        raise UserError("is not a table of rates", where=str(path))
    known = [each.name for each in fields(Rates) if each.name != "source"]
    for name, value in values.items():
        if name not in known:
            raise UserError(f"unknown rate {name!r}", where=str(path), fix=did_you_mean(name, known, label="Rates"))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (value == 0 and name != "publish_s"):
            raise UserError(f"{name} must be a positive number, not {value!r}", where=str(path))
    return Rates(source=str(path), **{name: float(value) for name, value in values.items()})


def _measured(path: Path, text: str, job: JobSpec) -> Rates:
    rows = list(_steps(path, text))
    ran = _job_beside(path) or job
    # The first collection carries the warm-up of caches and allocators.
    rows = rows[ran.batch.steps_per_collection :] or rows
    try:
        return _rates(path, rows, ran)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"a step row lacks {error}", where=str(path), fix="Give metrics.jsonl of a run.") from None


def _steps(path: Path, text: str) -> list[Mapping[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError("is not JSON", where=f"{path}:{number}") from None
        if isinstance(row, dict) and row.get("kind") == "step":
            rows.append(row)
    if not rows:
        raise UserError("has no step rows", where=str(path), fix="Give metrics.jsonl of a run that trained.")
    return rows


def _job_beside(path: Path) -> JobSpec | None:
    try:
        return JobSpec.read(path.with_name("job.json"))
    except (OSError, ValueError):
        return None


def _rates(path: Path, rows: Sequence[Mapping[str, Any]], ran: JobSpec) -> Rates:
    """Take rates from step rows; medians, so that an evaluation or a checkpoint in between does not count."""
    engines, ranks, steps = max(1, ran.engine.count), max(1, ran.learner.ranks), max(1, ran.batch.steps_per_collection)
    generated = []
    for row in rows:
        time = row["time"]
        # A synchronous run generates only while the trainer waits; an asynchronous one all the time.
        spent = time["interval_s"] if ran.sync.asynchronous else time["wait_s"]
        if spent > 0:
            generated.append(time["generated_tokens_per_s"] * time["interval_s"] / spent)
    trained = sum(row["outcomes"].get("trained", 0) for row in rows)
    ended = sum(sum(row["outcomes"].values()) for row in rows)
    lengths = [row["rollouts"]["response_length_mean"] for row in rows]
    known = [float(length) for length in lengths if length is not None]
    samples, tokens = sum(row["learner"]["samples"] for row in rows), sum(row["learner"]["tokens"] for row in rows)
    response = _mean(known) if known else None
    return Rates(
        source=f"{path} ({len(rows)} steps, {engines} engines, {ranks} ranks)",
        generate_tokens_per_s=_positive(_median(generated) / engines if generated else None),
        train_tokens_per_s=_positive(_median([row["time"]["trained_tokens_per_s"] for row in rows]) / ranks),
        publish_s=_median([row["time"]["publish_s"] for row in rows]) * steps,
        response_tokens=_positive(response),
        prompt_tokens=_positive(tokens / samples - response if samples and response else None),
        generated_per_trained=_positive(ended / trained if trained else None),
    )


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


# Not the module statistics: it loads fractions, decimals and random numbers, and plan starts in a moment.
def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
