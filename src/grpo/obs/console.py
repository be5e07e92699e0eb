"""The console of a run: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from grpo.obs.live import LiveConsole
from grpo.obs.observer import Observer
from grpo.obs.plain import PlainConsole


def make_console(*, json_output: bool) -> Observer:
    """Return the console observer for this process.

    With ``json_output`` all text for people goes to stderr, and stdout stays free for the JSON. A terminal gets the
    live picture, unless ``TERM`` is ``dumb``; colours honour ``NO_COLOR``.
    """
    stream = sys.stderr if json_output else sys.stdout
    if not stream.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainConsole(stream)
    return LiveConsole(Console(file=stream, highlight=False), owns_stdout=not json_output)
