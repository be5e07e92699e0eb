"""What ``ledger.jsonl`` says happened to every prompt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GIVEN_UP = frozenset({"stale", "failed", "ungraded"})
"""Ends that a retry would have followed, had there been one left."""


@dataclass
class Story:
    """One group: a prompt that was drawn, with all of its attempts.

    Attributes:
        state: where it is at the end of the file: its last end, ``pending`` before an attempt, or a live state.
        drawn_at, ended_at: collections that were complete by then, from 0.
        attempts: one object for each: admission version, how it ended, and why.
    """

    group_id: int
    prompt_id: str
    source: str = ""
    state: str = "pending"
    drawn_at: int = 0
    ended_at: int = 0
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def collections(self) -> int:
        """How many collections were completed between its first admission and its end."""
        return self.ended_at - self.drawn_at

    @property
    def given_up(self) -> bool:
        """Whether it ended without being trained or filtered, for good."""
        return self.state in GIVEN_UP

    @property
    def retries(self) -> int:
        """Attempts after the first."""
        return len(self.attempts) - 1

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "group_id": self.group_id,
            "prompt_id": self.prompt_id,
            "source": self.source,
            "state": self.state,
            "collections": self.collections,
            "attempts": self.attempts,
        }


def read_stories(rows: Iterable[Mapping[str, Any]], groups_per_collection: int) -> list[Story]:
    """Return the story of every group, in the order in which they were drawn.

    Args:
        rows: the lines of ``ledger.jsonl``, in order.
        groups_per_collection: ``rollout_batch_size``, which makes collections out of trained groups.
    """
    stories: dict[int, Story] = {}
    trained = 0
    for row in rows:
        now = trained // groups_per_collection
        story = stories.get(row["group_id"])
        if story is None:
            story = stories[row["group_id"]] = Story(
                row["group_id"], row["prompt_id"], row.get("source", ""), drawn_at=now
            )
        if row["before"] == "pending":
            story.attempts.append({"attempt": row["attempt"], "version": row["version"], "passed": []})
        attempt = story.attempts[-1]
        attempt["passed"].append(row["after"])
        if "reason" in row:
            attempt["reason"] = row["reason"]
        retried = row.get("retried", False)
        if retried:
            attempt["retried"] = True
        story.state = "pending" if retried else row["after"]
        story.ended_at = now
        trained += row["after"] == "trained"
    return [stories[group_id] for group_id in sorted(stories)]


def summary(stories: Iterable[Story], *, longest: int = 10) -> dict[str, Any]:
    """Return counts over all groups, the prompts that were given up, and those that took longest, as JSON values."""
    stories = list(stories)
    by_source: dict[str, Counter[str]] = defaultdict(Counter)
    retries: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    for story in stories:
        by_source[story.source][story.state] += 1
        for attempt in story.attempts:
            attempts[attempt["passed"][-1]] += 1
            if attempt.get("retried"):
                retries[attempt["passed"][-1]] += 1
    waits = sorted(stories, key=lambda story: (-story.collections, -story.retries, story.group_id))[:longest]
    return {
        "groups": len(stories),
        "prompts": len({story.prompt_id for story in stories}),
        "states": _counts(story.state for story in stories),
        "attempts": _counts(attempts),
        "retries": _counts(retries),
        "by_source": {source: _counts(counts) for source, counts in sorted(by_source.items())},
        "given_up": [_brief(story) for story in stories if story.given_up],
        "longest_waits": [_brief(story) for story in waits if story.collections or story.retries],
    }


def _counts(states: Iterable[str] | Counter[str]) -> dict[str, int]:
    return dict(sorted(Counter(states).items(), key=lambda item: (-item[1], item[0])))


def _brief(story: Story) -> dict[str, Any]:
    brief = {
        "prompt_id": story.prompt_id,
        "group_id": story.group_id,
        "state": story.state,
        "attempts": len(story.attempts),
        "collections": story.collections,
    }
    reason = story.attempts[-1].get("reason")
    return {**brief, "reason": reason} if reason else brief
