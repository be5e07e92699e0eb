"""Settings of all tests."""

from hypothesis import settings

# No test asserts wall-clock time: on busy cores a deadline would be a coin toss.
settings.register_profile("grpo", deadline=None)
settings.load_profile("grpo")
