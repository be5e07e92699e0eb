"""Which known name a misspelt one means."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 80  # letters of a name that is still compared; the longest known one has 36


def edit_distance(a: str, b: str) -> int:
    """Return the optimal string alignment distance: insertions, deletions, replacements and neighbour swaps."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            cost = min(row[j - 1] + 1, last[j] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def nearest(name: str, known: Iterable[str]) -> tuple[list[str], int]:
    """Return the known names with the fewest edits from ``name``, and that number; several when they are as near.

    None are returned when even the nearest differs in more than a third of its letters: a guess would only mislead.
    """
    if len(name) > LONGEST:
        return [], len(name)
    distances = {
        candidate: edit_distance(name.lower(), candidate.lower())
        for candidate in known
        if abs(len(candidate) - len(name)) <= max(1, len(candidate) // 3)
    }
    if not distances:
        return [], len(name)
    least = min(distances.values())
    near = sorted(
        candidate
        for candidate, distance in distances.items()
        if distance == least and distance <= max(1, len(candidate) // 3)
    )
    return near, least
