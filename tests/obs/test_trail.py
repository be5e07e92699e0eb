"""What ``ledger.jsonl`` says happened to every prompt."""

from __future__ import annotations

from typing import Any

from grpo.obs.trail import read_stories, summary


def line(group: int, attempt: int, before: str, after: str, version: int = 0, **more: Any) -> dict[str, Any]:
    return dict(
        group_id=group, attempt=attempt, prompt_id=f"p{group}", before=before, after=after, version=version, **more
    )


def attempt(group: int, number: int, *states: str, version: int = 0, **more: Any) -> list[dict[str, Any]]:
    """The lines of one attempt; ``more`` belongs to the last."""
    befores = ("pending", *states)
    rows = [line(group, number, *pair, version) for pair in zip(befores, states, strict=False)]
    rows[0]["source"] = "even" if group % 2 == 0 else "odd"
    rows[-1].update(more)
    return rows


LINES = [
    *attempt(0, 0, "in_flight", "failed", reason="engine-1: it died", retried=True),
    *attempt(1, 0, "in_flight", "graded", "buffered", "trained"),
    *attempt(2, 0, "in_flight", "graded", "zero_std"),
    *attempt(3, 0, "in_flight", "graded", "buffered", "trained"),
    *attempt(4, 0, "in_flight", "graded", "ungraded", version=1, retried=True),
    *attempt(0, 1, "in_flight", "graded", "buffered", "trained", version=1),
    *attempt(4, 1, "in_flight", "graded", "ungraded", version=1),
    *attempt(5, 0, "in_flight", "graded", "buffered", "stale", version=1, retried=True),
    *attempt(6, 0, "in_flight", version=1),
]


def test_the_summary_counts_groups_attempts_retries_and_names_what_was_given_up() -> None:
    assert summary(read_stories(LINES, groups_per_collection=2), longest=2) == {
        "groups": 7,
        "prompts": 7,
        "states": {"trained": 3, "in_flight": 1, "pending": 1, "ungraded": 1, "zero_std": 1},
        "attempts": {"trained": 3, "ungraded": 2, "failed": 1, "in_flight": 1, "stale": 1, "zero_std": 1},
        "retries": {"failed": 1, "stale": 1, "ungraded": 1},
        "by_source": {
            "even": {"trained": 1, "in_flight": 1, "ungraded": 1, "zero_std": 1},
            "odd": {"trained": 2, "pending": 1},
        },
        "given_up": [{"prompt_id": "p4", "group_id": 4, "state": "ungraded", "attempts": 2, "collections": 0}],
        "longest_waits": [
            {"prompt_id": "p0", "group_id": 0, "state": "trained", "attempts": 2, "collections": 1},
            {"prompt_id": "p4", "group_id": 4, "state": "ungraded", "attempts": 2, "collections": 0},
        ],
    }


def test_the_story_of_a_prompt_has_every_attempt_and_why_it_ended() -> None:
    assert read_stories(LINES, groups_per_collection=2)[0].as_json() == {
        "group_id": 0,
        "prompt_id": "p0",
        "source": "even",
        "state": "trained",
        "collections": 1,
        "attempts": [
            {
                "attempt": 0,
                "version": 0,
                "passed": ["in_flight", "failed"],
                "reason": "engine-1: it died",
                "retried": True,
            },
            {"attempt": 1, "version": 1, "passed": ["in_flight", "graded", "buffered", "trained"]},
        ],
    }
