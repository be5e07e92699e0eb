"""Policy versions for engine tests: version 0 is a model folder, later ones add seeded noise to every weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from grpo.types import Response, SampleRequest


@dataclass(frozen=True)
class TensorSource:
    """A WeightSource over named tensors, by default a new bucket for each ``max_bytes``."""

    version: int
    tensors: list[tuple[str, torch.Tensor]]

    def buckets(self, max_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name, tensor in self.tensors:
            if bucket and size + tensor.nbytes > max_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append((name, tensor))
            size += tensor.nbytes
        yield bucket


class Policies:
    """Plain transformers models of each version, for computing again what an engine said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._models: dict[int, Any] = {}

    @cached_property
    def config(self) -> Any:
        return self.model(0).config

    def model(self, version: int) -> Any:
        """Return version ``version``, with transformers' own eager attention."""
        if version not in self._models:
            model: Any = AutoModelForCausalLM.from_pretrained(self.folder, attn_implementation="eager")
            if version:
                generator = torch.Generator().manual_seed(version)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
            self._models[version] = model.eval().requires_grad_(False)
        return self._models[version]

    def source(self, version: int) -> TensorSource:
        """Return the weights of a version, each parameter once."""
        return TensorSource(version, list(self.model(version).named_parameters()))

    def logprobs(
        self, version: int, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float
    ) -> list[float]:
        """Return (R,) log-probabilities of ``tokens`` after ``prompt``, from one forward pass without a cache."""
        with torch.no_grad():
            logits = self.model(version)(torch.tensor([prompt + tokens]), use_cache=False).logits[
                0, len(prompt) - 1 : -1
            ]
        rows = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
        return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()

    def expected_logprobs(self, request: SampleRequest, response: Response) -> list[float]:
        """Return (R,) log-probabilities of a response, each under the version that its span names."""
        versions = response.token_versions()
        by_version: Mapping[int, list[float]] = {
            version: self.logprobs(version, request.prompt_tokens, response.tokens, request.params.temperature)
            for version in set(versions)
        }
        return [by_version[version][index] for index, version in enumerate(versions)]

    def greedy(self, version: int, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        """Return the tokens that ``model.generate`` gives, with no stop token."""
        output = self.model(version).generate(
            torch.tensor([prompt]), max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        return tuple(output[0, len(prompt) :].tolist())
