"""The ``local`` rollout engine: continuous batching with a KV cache, in plain PyTorch."""

from grpo.engine.local.engine import LocalEngine

__all__ = ["LocalEngine"]
