"""The synchronous compute of one learner rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from grpo.errors import RunFailed
from grpo.learner.checkpoint import CapturedState, export_hf, load_state
from grpo.learner.model import MasterParameters, load_policy, recompute_activations, response_logprobs
from grpo.learner.objective import Objective, StepCounts, TokenInputs, objective, token_weight
from grpo.learner.packing import MicroBatch, micro_batches
from grpo.learner.schedule import learning_rate
from grpo.learner.tally import Tally
from grpo.plan.job import JobSpec
from grpo.plan.paths import model_dir
from grpo.types import StepMetrics, TrainBatch, TrainSample

_NAMED_SAMPLES = 8


class LearnerRank:
    """Model, optimizer and their state on one device; loads the starting policy when made, as version 0.

    ``logp_old``, the policy that the PPO ratio starts from, is ``TrainSample.old_logprobs`` where it is given.
    Otherwise a sample is used for exactly one optimizer step after the weights last moved, so ``logp_old`` equals the
    log-probability of the very forward pass that is differentiated, and no second one is spent: the ratio is 1 in
    value and only its gradient acts. A collection of several steps should fix ``logp_old`` at its start:
    :meth:`score` gives it.

    On a CPU two ranks that start from the same state and see the same batches have bit-identical weights.
    """

    def __init__(self, job: JobSpec, *, device: torch.device | None = None) -> None:
        self._job = job
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = getattr(torch, job.learner.dtype)
        self._version = 0
        torch.manual_seed(job.learner.seed)
        self._source = model_dir(job.model.source)
        self._model = load_policy(self._source, self._dtype, self._device)
        if job.learner.activation_recompute:
            recompute_activations(self._model)
        self._reference = self._load_reference()
        self._masters = MasterParameters(self._model)
        self._optimizer = self._make_optimizer()

    @property
    def version(self) -> int:
        """Optimizer steps applied."""
        return self._version

    @property
    def model(self) -> PreTrainedModel:
        """The live model."""
        return self._model

    def _load_reference(self) -> PreTrainedModel | None:
        """The frozen starting policy, only where its KL is in the loss: it costs a copy of the weights."""
        if self._job.objective.kl_coef <= 0.0:
            return None
        return load_policy(self._source, self._dtype, self._device).requires_grad_(False)

    def _make_optimizer(self) -> torch.optim.AdamW:
        """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101); matrices decay, norms and biases do not."""
        spec = self._job.optimizer
        parameters = list(self._masters.named.values())
        optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": spec.weight_decay},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=spec.learning_rate,
            betas=(spec.beta1, spec.beta2),
            eps=spec.eps,
            fused=True,
        )
        # torch makes this state at the first step; made now, a checkpoint has the same tensors at every version.
        for parameter in parameters:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return optimizer

    def step(self, batch: TrainBatch) -> StepMetrics:
        """Apply one optimizer step. On any error the weights, the optimizer and the version are as before.

        Raises:
            RunFailed: the batch is empty, out of turn or malformed, or the loss or the gradient is not finite; that
                names the step and the samples that make it so.
        """
        began = time.perf_counter()
        where = f"step {batch.step}"
        if not batch.samples:
            raise RunFailed("the batch has no samples", where=where)
        if batch.step != self._version + 1:
            raise RunFailed(f"the batch is out of turn, the learner is at version {self._version}", where=where)
        counts = StepCounts.of(batch.samples)
        tally = self.backward(batch.samples, counts)
        grad_norm = self._masters.gradient_norm()
        if not (math.isfinite(tally.loss) and math.isfinite(grad_norm)):
            self._refuse(batch, tally.loss, grad_norm, counts)
        rate = self._update(grad_norm)
        return tally.metrics(
            version=self._version,
            grad_norm=grad_norm,
            learning_rate=rate,
            samples=counts.responses,
            loss_tokens=counts.tokens,
            seconds=time.perf_counter() - began,
        )

    def backward(self, samples: Sequence[TrainSample], counts: StepCounts) -> Tally:
        """Leave the gradient of ``samples``' part of the loss in the master parameters, and return the sums.

        Args:
            counts: of the whole step over all ranks, which the denominators need.
        """
        self._masters.clear_gradients()
        tally = Tally()
        for micro_batch in self._micro_batches(samples, counts):
            part, entropy = self._objective(micro_batch)
            part.loss.backward()
            self._masters.collect()
            tally.add(micro_batch, part, entropy)
        return tally

    def _micro_batches(self, samples: Sequence[TrainSample], counts: StepCounts) -> Iterator[MicroBatch]:
        spec, limit = self._job.objective, self._job.batch.max_response_length
        for batch in micro_batches(samples, self._job.learner, lambda s: token_weight(s, counts, spec, limit)):
            yield batch.to(self._device)

    def _objective(self, batch: MicroBatch) -> tuple[Objective, torch.Tensor]:
        spec, temperature = self._job.objective, self._job.sampling.temperature
        logprobs, entropy = response_logprobs(self._model, batch, temperature, entropy_grad=spec.entropy_coef != 0.0)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference, _ = response_logprobs(self._reference, batch, temperature)
        inputs = TokenInputs(
            logprobs=logprobs,
            entropy=entropy,
            old_logprobs=batch.old_logprobs,
            behavior_logprobs=batch.behavior_logprobs,
            reference_logprobs=reference,
            advantages=batch.advantages,
            weights=batch.weights,
            lengths=batch.lengths,
        )
        return objective(spec, inputs), entropy

    def _update(self, grad_norm: float) -> float:
        """Clip (``clip_grad`` 0 is off), step, count; return the learning rate used."""
        spec = self._job.optimizer
        if spec.clip_grad > 0:
            masters = list(self._masters.named.values())
            torch.nn.utils.clip_grads_with_norm_(masters, spec.clip_grad, torch.tensor(grad_norm, device=self._device))
        rate = learning_rate(spec, self._version, self._job.batch.total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._masters.clear_gradients()
        self._masters.write_back()
        self._version += 1
        return rate

    def _refuse(self, batch: TrainBatch, loss: float, grad_norm: float, counts: StepCounts) -> None:
        """Find the samples to blame, one backward pass each (the run ends here, time no longer matters), and raise."""
        bad = []
        for sample in batch.samples:
            alone = self.backward([sample], counts)
            if not (math.isfinite(alone.loss) and math.isfinite(self._masters.gradient_norm())):
                bad.append(sample.sample_id)
        self._masters.clear_gradients()
        named = bad or [sample.sample_id for sample in batch.samples]
        names = ", ".join(named[:_NAMED_SAMPLES])
        more = f" and {len(named) - _NAMED_SAMPLES} more" if len(named) > _NAMED_SAMPLES else ""
        cause = "by" if bad else "by no sample alone, among"
        raise RunFailed(
            f"the loss is {loss} and the gradient norm {grad_norm}, made so {cause} {names}{more}",
            where=f"step {batch.step}",
            fix=f"Weights are still those of version {self._version}. Lower optimizer.learning_rate, or look at these "
            "samples.",
        )

    @torch.no_grad()
    def score(self, samples: Sequence[TrainSample]) -> tuple[tuple[float, ...], ...]:
        """Return each response's (R,) current log-probabilities in nats, in the order given."""
        scores: list[tuple[float, ...]] = [()] * len(samples)
        for batch in self._micro_batches(samples, StepCounts.of(samples)):
            logprobs, _ = response_logprobs(self._model, batch, self._job.sampling.temperature)
            for index, part in zip(batch.indices, logprobs.split(batch.lengths.tolist()), strict=True):
                scores[index] = tuple(part.tolist())
        return tuple(scores)

    def _state(self) -> dict[str, torch.Tensor]:
        """Everything that a continuation needs, by name; the schedule is a function of the version."""
        state = {"version": torch.tensor(self._version), "rng.cpu": torch.get_rng_state()}
        for name, master in self._masters.named.items():
            state[f"model.{name}"] = master.detach()
            for key, value in self._optimizer.state[master].items():
                state[f"optimizer.{key}.{name}"] = value
        return state

    def capture(self) -> CapturedState:
        """Return a copy of model, optimizer, version and random state, to be written while training goes on."""
        return CapturedState.of(self._version, self._state())

    def load(self, path: Path) -> None:
        """Restore what a captured state wrote; what follows is bit for bit what would have followed then."""
        state = self._state()
        load_state(path, state)
        self._version = int(state["version"])
        torch.set_rng_state(state["rng.cpu"])
        self._masters.write_back()

    def export_hf(self, path: Path) -> None:
        """Write a Hugging Face folder that plain transformers loads."""
        export_hf(path, self._model, self._source)
