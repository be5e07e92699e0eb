"""Captured rollouts hold whole groups, the same ones in every run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from obs_examples import make_group, make_response, make_row, make_status, two_groups

from grpo.obs.jsonl import read_rows
from grpo.obs.rollouts import RolloutFile, sampled
from grpo.types import Graded


def _decode(tokens: Sequence[int]) -> str:
    return " ".join(f"<{token}>" for token in tokens)


def _ids(folder: Path) -> list[int]:
    return [row["group_id"] for row in read_rows(folder / "groups.jsonl")]


def test_a_captured_group_holds_everything_of_its_responses(tmp_path: Path) -> None:
    capture = RolloutFile(tmp_path, rate=1.0, decode=_decode)
    capture.step(make_row(5))
    capture.group_ended(two_groups()[0], "trained", 2)
    expected = {
        "group_id": 7,
        "attempt": 0,
        "step": 5,
        "outcome": "trained",
        "lag": 2,
        "prompt": {
            "id": "addition/train/7",
            "source": "addition",
            "text": "7+1=",
            "ground_truth": "8",
            "tokens": [1, 2],
        },
        "responses": [
            {
                "request_id": "7.0.0",
                "text": "<5> <6>",
                "tokens": [5, 6],
                "logprobs": [-0.25, -0.5],
                "spans": [{"start": 0, "version": 2}],
                "finish": "stop",
                "reward": 1.0,
                "ungraded": None,
            },
            {
                "request_id": "7.0.1",
                "text": "<5> <6> <7> <8>",
                "tokens": [5, 6, 7, 8],
                "logprobs": [-0.25, -0.5, -0.75, -1.0],
                "spans": [{"start": 0, "version": 2}, {"start": 2, "version": 3}],
                "finish": "length",
                "reward": 0.0,
                "ungraded": None,
            },
            {
                "request_id": "7.0.2",
                "text": "<5>",
                "tokens": [5],
                "logprobs": [-0.25],
                "spans": [{"start": 0, "version": 3}],
                "finish": "stop",
                "reward": None,
                "ungraded": "timeout",
            },
        ],
    }
    assert read_rows(tmp_path / "groups.jsonl") == [expected]
    capture.close()


def test_a_group_that_ends_before_the_first_step_of_a_resumed_run_has_the_step_resumed_from(tmp_path: Path) -> None:
    capture = RolloutFile(tmp_path, rate=1.0, decode=_decode)
    capture.pipeline(make_status(40))
    capture.group_ended(two_groups()[0], "zero_std", None)
    (row,) = read_rows(tmp_path / "groups.jsonl")
    assert (row["step"], row["outcome"], row["lag"]) == (40, "zero_std", None)


def test_a_rate_keeps_that_share_of_the_groups_and_the_same_ones_each_time(tmp_path: Path) -> None:
    groups = [make_group(number, [make_response("r", [0])], [Graded(1.0)]) for number in range(400)]
    for name, order in (("first", groups), ("second", groups[::-1])):
        capture = RolloutFile(tmp_path / name, rate=0.25, decode=_decode)
        for group in order:
            capture.group_ended(group, "trained", 0)
    kept = _ids(tmp_path / "first")
    assert kept == sorted(_ids(tmp_path / "second"))
    assert 70 <= len(kept) <= 130
    # A higher rate adds groups and loses none.
    assert (
        {each for each in range(400) if sampled(each, 0.1)}
        <= set(kept)
        <= {each for each in range(400) if sampled(each, 0.5)}
    )


def test_rate_one_keeps_every_group_and_rate_zero_makes_no_file(tmp_path: Path) -> None:
    for rate in (0.0, 1.0):
        capture = RolloutFile(tmp_path / str(rate), rate=rate, decode=_decode)
        for number in range(300):
            capture.group_ended(make_group(number, [make_response("r", [0])], [Graded(1.0)]), "trained", 0)
        capture.close()
    assert _ids(tmp_path / "1.0") == list(range(300))
    assert not (tmp_path / "0.0").exists()
