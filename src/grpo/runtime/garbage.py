"""How often CPython looks for cyclic garbage while a run is going on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 20)


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Look for cyclic garbage less often while the block runs, and never among what exists when it begins.

    A controller holds an object graph for every request in flight, and hardly any cycles. With CPython's usual
    thresholds, which suit small scripts, it would walk that graph over and over: the cost of a group would grow with
    the number of groups in flight. ``benchmarks/control_plane.py`` shows it.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
