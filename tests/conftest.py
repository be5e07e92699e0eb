"""Settings of all tests."""

import os

from hypothesis import settings

# Before torch is imported, and for subprocesses: the test models are tiny, and threads only make them wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts wall-clock time: on busy cores a deadline would be a coin toss.
settings.register_profile("grpo", deadline=None)
settings.load_profile("grpo")
