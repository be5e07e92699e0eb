"""The synchronous core of the local engine: the running requests, their cache rows, and one decode step over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from grpo.engine.local.kv_cache import DecodeCache, KVCache, PrefillCache
from grpo.engine.local.model import copy_weights, load_model
from grpo.engine.local.sampling import SamplingRows, UniformStream, sample
from grpo.errors import RunFailed
from grpo.types import FinishReason, Response, SampleRequest, spans_of
from grpo.weights.protocol import WeightSource

# Padded tokens of one prefill forward: bounds its memory, and is enough to fill a CPU.
_PREFILL_TOKENS = 4096


@dataclass(eq=False, slots=True)
class Sequence:
    """One request on its way to a response.

    Attributes:
        tokens: (T,) prompt and generated tokens.
        logprobs, versions: (R,) of each generated token: behavior log-probability, and policy version.
        cached: tokens whose keys and values are in the cache; between steps all but the last, or none.
        epoch: which loaded weights computed the cached prompt.
        finish: None while running.
    """

    request: SampleRequest
    tokens: list[int]
    stop: frozenset[int]
    uniforms: UniformStream
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached: int = 0
    epoch: int = -1
    finish: FinishReason | None = None

    @classmethod
    def of(cls, request: SampleRequest) -> Sequence:
        """Return the sequence of a request that has not begun."""
        params = request.params
        return cls(request, list(request.prompt_tokens), frozenset(params.stop_token_ids), UniformStream(params.seed))

    def append(self, token: int, logprob: float, version: int) -> None:
        """Add a generated token; sets ``finish`` if it is the last one."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.cached += 1
        if token in self.stop:
            self.finish = FinishReason.STOP
        elif len(self.logprobs) == self.request.params.max_tokens:
            self.finish = FinishReason.LENGTH

    def response(self) -> Response:
        """Return the tokens so far; a sequence that has not finished was aborted."""
        return Response(
            request_id=self.request.request_id,
            tokens=tuple(self.tokens[len(self.request.prompt_tokens) :]),
            logprobs=tuple(self.logprobs),
            spans=spans_of(self.versions),
            finish=self.finish or FinishReason.ABORT,
        )


class Decoder:
    """A model, its KV cache, and the running sequences: ``rows[i]`` has row ``i`` of the cache.

    Args:
        running_requests: rows of the cache.
        max_context_length: positions of a row, in tokens.
    """

    def __init__(self, model_dir: Path, *, version: int, running_requests: int, max_context_length: int, dtype: str):
        torch_dtype: torch.dtype = getattr(torch, dtype)
        self.model = load_model(model_dir, dtype=torch_dtype, max_context_length=max_context_length)
        self.version = version
        self.rows: list[Sequence] = []
        self.tokens_generated = 0
        self.vocab_size: int = self.model.config.vocab_size
        self._dtype = torch_dtype
        self._capacity = running_requests
        self._epoch = 0
        self._cache = KVCache(self.model.config, rows=running_requests, positions=max_context_length, dtype=torch_dtype)
        self._sampling: SamplingRows | None = None

    @property
    def free_rows(self) -> int:
        """Sequences that :meth:`admit` may still add."""
        return self._capacity - len(self.rows)

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache."""
        return sum(sequence.cached for sequence in self.rows)

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence a row; the next step prefills it."""
        if not self.free_rows:
            raise RuntimeError(f"all {self._capacity} rows are in use")
        self.rows.append(sequence)
        self._sampling = None

    def release(self, leaving: list[Sequence]) -> None:
        """Take sequences out, and move the last rows into the holes that they leave."""
        gone = {id(sequence) for sequence in leaving}
        kept = [id(sequence) not in gone for sequence in self.rows]
        count = sum(kept)
        holes = [row for row in range(count) if not kept[row]]
        movers = [row for row in range(count, len(self.rows)) if kept[row]]
        self._cache.copy_rows(movers, holes, max((self.rows[row].cached for row in movers), default=0))
        for hole, mover in zip(holes, movers, strict=True):
            self.rows[hole] = self.rows[mover]
        del self.rows[count:]
        self._sampling = None

    def load(self, weights: WeightSource, *, bucket_bytes: int) -> None:
        """Replace the weights; only then the version. Raises RunFailed, and then the model must not be used."""
        self._epoch += 1
        copy_weights(self.model, weights, bucket_bytes=bucket_bytes)
        self.version = weights.version

    def rebuild(self) -> None:
        """Forget all cached keys and values; the next step computes them again."""
        for sequence in self.rows:
            sequence.cached = 0

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Sample one token for every row, prefilling first what is not cached; return the sequences that finished.

        Raises:
            RunFailed: if the weights give no finite log-probabilities.
        """
        self._prefill()
        rows = self.rows
        positions = torch.tensor([sequence.cached for sequence in rows])
        cache = DecodeCache(self._cache, positions, window=max(sequence.cached for sequence in rows) + 1)
        logits = self.model(
            input_ids=torch.tensor([[sequence.tokens[-1]] for sequence in rows]),
            attention_mask=cache.mask(self._dtype),
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        if self._sampling is None:
            self._sampling = SamplingRows.of([sequence.request.params for sequence in rows], logits.shape[-1])
        uniforms = torch.tensor([sequence.uniforms.draw() for sequence in rows], dtype=torch.float64)
        tokens, logprobs = sample(logits, self._sampling, uniforms)
        if not bool(logprobs.isfinite().all()):
            raise RunFailed(f"the weights of version {self.version} give log-probabilities that are not finite")
        for sequence, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            sequence.append(token, logprob, self.version)
        self.tokens_generated += len(rows)
        return [sequence for sequence in rows if sequence.finish is not None]

    def _prefill(self) -> None:
        """Cache all but the last token of every row that has nothing cached.

        Rows with the same tokens (the siblings of one prompt) are computed once and copied, also from a sibling that
        has been decoding for a while, if the weights were the same when its prompt was computed.
        """
        fresh = [row for row, sequence in enumerate(self.rows) if sequence.cached < len(sequence.tokens) - 1]
        if not fresh:
            return
        owners: dict[tuple[int, ...], int] = {}
        for row, sequence in enumerate(self.rows):
            if sequence.cached and sequence.epoch == self._epoch:
                owners.setdefault(sequence.request.prompt_tokens[:-1], row)
        missing: list[int] = []
        copies: list[tuple[int, int]] = []
        for row in fresh:
            prefix = tuple(self.rows[row].tokens[:-1])
            owner = owners.setdefault(prefix, row)
            if owner == row:
                missing.append(row)
            else:
                copies.append((owner, row))
        for batch in self._prefill_batches(missing):
            self._prefill_batch(batch)
        longest = max((len(self.rows[row].tokens) - 1 for _, row in copies), default=0)
        self._cache.copy_rows([owner for owner, _ in copies], [row for _, row in copies], longest)
        for row in fresh:
            sequence = self.rows[row]
            sequence.cached = len(sequence.tokens) - 1
            sequence.epoch = self._epoch

    def _prefill_batches(self, rows: list[int]) -> list[list[int]]:
        """Split rows into batches of similar length with at most ``_PREFILL_TOKENS`` padded tokens (or one row)."""
        batches: list[list[int]] = []
        for row in sorted(rows, key=lambda row: len(self.rows[row].tokens), reverse=True):
            if batches and (len(batches[-1]) + 1) * (len(self.rows[batches[-1][0]].tokens) - 1) <= _PREFILL_TOKENS:
                batches[-1].append(row)
            else:
                batches.append([row])
        return batches

    def _prefill_batch(self, rows: list[int]) -> None:
        """Compute keys and values of some rows, padded at the right: under a causal mask no token sees the padding."""
        prefixes = [self.rows[row].tokens[:-1] for row in rows]
        length = max(map(len, prefixes))
        input_ids = torch.tensor([prefix + [0] * (length - len(prefix)) for prefix in prefixes])
        self.model.base_model(
            input_ids=input_ids,
            position_ids=torch.arange(length)[None],
            past_key_values=PrefillCache(self._cache, rows),
            use_cache=True,
        )
