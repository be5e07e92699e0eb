"""Numbers, times and curves as short text of a steady width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from rich.cells import cell_len

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"


def duration(seconds: float) -> str:
    """Return ``0:07``, ``12:34`` or ``1:02:03``."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def seconds(value: float) -> str:
    """Return ``0.41 s``, ``12.3 s`` or ``4:05``."""
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else duration(value)


def percent(fraction: float | None) -> str:
    """Return ``41.5%``; ``-`` for None."""
    return "-" if fraction is None else f"{100 * fraction:.1f}%"


def points(before: float, after: float) -> str:
    """Return the difference of two fractions in percentage points: ``+68.2``."""
    return f"{100 * (after - before):+.1f}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a plain decimal, or an exponent where a decimal would show only zeros or too many digits."""
    if value is None:
        return "-"
    if value != 0 and (abs(value) < 0.5 * 10**-digits or abs(value) >= 1e6):
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def count(value: float) -> str:
    """Return a whole number with thousands separated: ``12,345``."""
    return f"{value:,.0f}"


def pad(text: str, width: int) -> str:
    """Return ``text`` filled with spaces to ``width`` terminal cells; a wide character takes two."""
    return text + " " * (width - cell_len(text))


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """Return a curve of at most ``width`` characters, from the lowest value to the highest.

    Longer series are averaged into ``width`` bins; None is left out, and a bin of nothing but None is a space.
    """
    bins = min(width, len(values))
    edges = [index * len(values) // bins for index in range(bins + 1)] if bins else []
    means: list[float | None] = []
    for start, end in pairwise(edges):
        known = [value for value in values[start:end] if value is not None]
        means.append(fmean(known) if known else None)
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    top = len(blocks) - 1
    return "".join(
        " " if mean is None else blocks[round((mean - low) / span * top) if span > 0 else 0] for mean in means
    )
