"""Learning-rate schedules, whole runs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from grpo.learner.schedule import learning_rate
from support.jobs import make_job


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [8, 8, 8, 8, 8, 8]),
        ("constant", 2, [4, 8, 8, 8, 8, 8]),
        ("linear", 0, [8, 8 * 5 / 6, 8 * 4 / 6, 4, 8 * 2 / 6, 8 / 6]),
        ("linear", 2, [4, 8, 8, 6, 4, 2]),
        ("cosine", 2, [4, 8, 8, 4 + 2 * 2**0.5, 4, 4 - 2 * 2**0.5]),
        ("linear", 9, [8 / 9, 16 / 9, 24 / 9, 32 / 9, 40 / 9, 48 / 9]),
    ],
)
def test_a_run_of_six_steps(
    tmp_path: Path, schedule: Literal["constant", "linear", "cosine"], warmup: int, expected: list[float]
) -> None:
    spec = make_job(tmp_path, optimizer=dict(learning_rate=8.0, schedule=schedule, warmup_steps=warmup)).optimizer
    assert [learning_rate(spec, step, 6) for step in range(6)] == pytest.approx(expected, rel=1e-12)


def test_a_decay_stays_at_zero_after_the_last_step(tmp_path: Path) -> None:
    for schedule in ("linear", "cosine"):
        spec = make_job(tmp_path, optimizer=dict(learning_rate=8.0, schedule=schedule)).optimizer
        assert [learning_rate(spec, step, 6) for step in (6, 7, 100)] == [0.0, 0.0, 0.0]
