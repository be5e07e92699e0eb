"""grpo: one TOML file becomes a GRPO training run."""

__version__ = "0.1.0"
