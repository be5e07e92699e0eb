"""From ``job.json`` to a trained model: builds the parts of a run and hands them to the controller."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from grpo.crash import crash_point
from grpo.data.load import load_prompts, load_tokenizer
from grpo.data.source import PromptSource
from grpo.engine.protocol import Engine
from grpo.errors import GrpoError, UserError
from grpo.learner.protocol import Learner
from grpo.obs.console import make_console
from grpo.obs.jsonl import MetricsFile
from grpo.obs.log import LogFile, open_log
from grpo.obs.observer import Observer, Observers
from grpo.obs.rollouts import RolloutFile
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths, model_dir, write_whole
from grpo.rewards.grader import Grader
from grpo.runtime.audit import LedgerFile
from grpo.runtime.checkpoints import Checkpoint, newest_checkpoint
from grpo.runtime.controller import Controller, as_run_error
from grpo.runtime.folder import cut_back, only_process
from grpo.runtime.fork import fork
from grpo.runtime.ledger import Transition
from grpo.runtime.signals import StopSignals
from grpo.types import RunResult


def train(job: JobSpec, *, json_output: bool = False, fork_from: Path | None = None) -> RunResult:
    """Train ``job`` in this process and return what it came to; a run that stopped early goes on from its checkpoint.

    Args:
        json_output: keep stdout free for the final JSON object.
        fork_from: a checkpoint folder of another run, to begin from if this run has no checkpoint yet.

    Raises :class:`~grpo.errors.UserError` for input that is wrong, :class:`~grpo.errors.RunFailed` for a run that
    fails, :class:`~grpo.errors.Interrupted` for one that stopped on a signal; the traceback of an unforeseen error is
    in ``logs/controller.log`` and chained to the error.
    """
    paths = RunPaths(Path(job.output.root))
    with only_process(paths):
        crash_point("run.begin")
        transformers_logging.disable_progress_bar()  # it would draw over the live display
        tokenizer = load_tokenizer(model_dir(job.model.source))
        warnings: list[str] = []
        if fork_from is not None and not any(paths.checkpoints.glob("step-*")):
            fork(fork_from, paths)
        checkpoint = newest_checkpoint(paths.checkpoints, warnings.append)
        if checkpoint is not None:
            _require_work_left(job, checkpoint)
        cut_back(paths, checkpoint)
        logger = open_log(paths.logs / "controller.log")
        ledger_file = LedgerFile(paths.ledger)
        rollouts = RolloutFile(
            paths.rollouts,
            rate=job.output.rollout_sample_rate,
            decode=lambda tokens: str(tokenizer.decode(list(tokens))),
        )
        metrics = MetricsFile(paths.metrics)
        observer = Observers([metrics, ledger_file, rollouts, LogFile(logger), make_console(json_output=json_output)])
        crash_point("run.opened")
        try:
            for warning in warnings:
                observer.warning(warning)
            result = asyncio.run(
                run(
                    job,
                    tokenizer,
                    observer=observer,
                    on_transition=ledger_file.write,
                    checkpoint=checkpoint,
                    stop_on_signals=True,
                )
            )
            crash_point("run.done")
            # Last of all: its presence says that the run is complete.
            write_whole(paths.result, (json.dumps(result.as_json()) + "\n").encode())
            return result
        except BaseException as error:
            logger.error("the run ended early\n%s", "".join(traceback.format_exception(error)))
            raise as_run_error(error) from (None if isinstance(error, GrpoError) else error)
        finally:
            observer.close()


def _require_work_left(job: JobSpec, checkpoint: Checkpoint) -> None:
    """A run that is told to end before where it is must not become complete by it."""
    trained = checkpoint.controller["collections"]
    if trained > job.batch.num_rollouts:
        raise UserError(
            f"{trained} collections are trained already, and training.num_rollouts is {job.batch.num_rollouts}",
            where=str(checkpoint.path),
            fix=f"Set it to {trained} to end the run here, or to more to go on.",
        )


async def run(
    job: JobSpec,
    tokenizer: PreTrainedTokenizerBase,
    *,
    observer: Observer,
    learner: Learner | None = None,
    on_transition: Callable[[Transition], None] = lambda transition: None,
    checkpoint: Checkpoint | None = None,
    stop_on_signals: bool = False,
) -> RunResult:
    """Build the parts of ``job`` and run it to its end; waits for the controller.

    Args:
        learner: instead of the one that the job names.
        on_transition: hears every transition of the ledger.
        checkpoint: to go on from.
        stop_on_signals: SIGTERM, SIGINT and SIGUSR1 end the run with a checkpoint.
    """
    data = load_prompts(job, tokenizer)
    controller = Controller(
        job,
        make_engine=lambda name: make_engine(job, name),
        learner=learner or make_learner(job),
        source=PromptSource(data.train, seed=job.data.seed, shuffle=job.data.shuffle),
        evals=data.evals,
        grader=Grader(),
        observer=observer,
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True)),
        stop_token_ids=stop_token_ids(job, tokenizer),
        on_transition=on_transition,
    )
    with StopSignals(controller.stop, grace_s=job.checkpoint.grace_s) if stop_on_signals else nullcontext():
        return await controller.run(checkpoint)


def make_engine(job: JobSpec, name: str) -> Engine:
    """Return one of the job's engines, not started."""
    if job.engine.backend != "local":
        raise UserError(f"inference.backend = {job.engine.backend!r} does not run in this process")
    from grpo.engine.local import LocalEngine

    return LocalEngine(
        name,
        model_dir(job.model.source),
        running_requests=job.engine.running_requests,
        max_context_length=job.batch.max_context_length,
        dtype=job.engine.dtype,
        overlap=job.sync.asynchronous,
    )


def make_learner(job: JobSpec) -> Learner:
    """Return the job's learner, not started."""
    import torch

    if any(place.gpus for place in job.topology.learner) and not torch.cuda.is_available():
        fix = "Leave the key out, or set it to 0, to train on the CPU."
        raise UserError("a GPU is asked for, and PyTorch finds none on this machine", where="trainer.gpus", fix=fix)
    if job.learner.backend != "fsdp" or job.learner.ranks != 1:
        raise UserError(f"trainer.backend = {job.learner.backend!r} with {job.learner.ranks} ranks does not run here")
    from grpo.learner.local import LocalLearner

    return LocalLearner(job)


def stop_token_ids(job: JobSpec, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens that end a response: those of the model's generation config and of its tokenizer."""
    from transformers import GenerationConfig

    folder = model_dir(job.model.source)
    ids: set[int] = set()
    if (folder / "generation_config.json").exists():
        configured = GenerationConfig.from_pretrained(folder).eos_token_id
        ids.update(_as_list(configured))
    ids.update(_as_list(tokenizer.eos_token_id))  # type: ignore[arg-type]
    if not ids:
        raise UserError(
            "no token ends a response", where=str(folder), fix="Set eos_token_id in generation_config.json."
        )
    return tuple(sorted(ids))


def _as_list(ids: int | Sequence[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)
