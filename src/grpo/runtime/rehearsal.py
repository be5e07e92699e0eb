"""Rehearsals of a job on a simulated fleet: a whole run with its files, or the three publication modes side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from grpo.errors import GrpoError
from grpo.obs.console import make_console
from grpo.obs.jsonl import MetricsFile
from grpo.obs.observer import Observers
from grpo.plan.job import JobSpec
from grpo.plan.paths import RunPaths, write_whole
from grpo.runtime.audit import LedgerFile
from grpo.runtime.folder import only_process
from grpo.runtime.simulation import SimulationReport, simulate
from grpo.types import RunResult

MODES = ("barrier", "refresh", "engine_drain")
COLLECTIONS = 20
"""Of a comparison: enough that start and end, when engines fill up and run dry, weigh little."""

LABEL = "SIMULATED: engines, learner, prompts and rewards are made up, times are virtual; nothing here is a measurement"


def rehearse(job: JobSpec, *, json_output: bool = False) -> RunResult:
    """Run ``job`` on a simulated fleet under a virtual clock, and write what a run writes, except models.

    ``metrics.jsonl``, ``ledger.jsonl`` and ``result.json`` are those of a run; there is no evaluation, checkpoint or
    export. The result says ``simulated`` where a run says ``complete``.

    Args:
        json_output: keep stdout free for the final JSON object.

    Raises what a run would raise.
    """
    paths = RunPaths(Path(job.output.root))
    with only_process(paths):
        ledger_file = LedgerFile(paths.ledger)
        observer = Observers([MetricsFile(paths.metrics), ledger_file, make_console(json_output=json_output)])
        try:
            observer.warning(LABEL)
            report = simulate(simulated(job), observers=[observer], on_transition=ledger_file.write)
            observer.warning(LABEL)
        finally:
            observer.close()
        result = replace(report.result, status="simulated")
        write_whole(paths.result, (json.dumps({**result.as_json(), **report.as_json()}) + "\n").encode())
        return result


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare_modes` ran, and what came of it in each mode: a report, or the error that ended it."""

    job: JobSpec
    reports: Mapping[str, SimulationReport | GrpoError]


def compare_modes(job: JobSpec, *, collections: int = COLLECTIONS) -> Comparison:
    """Rehearse the first ``collections`` of ``job`` in every publication mode."""
    reports: dict[str, SimulationReport | GrpoError] = {}
    for mode in MODES:
        try:
            reports[mode] = simulate(simulated(job, mode=mode, collections=collections))
        except GrpoError as error:
            reports[mode] = error
    return Comparison(simulated(job, collections=collections), reports)


def simulated(job: JobSpec, *, mode: str | None = None, collections: int | None = None) -> JobSpec:
    """Return ``job`` on a simulated fleet of the same size: without evaluation, checkpoints and export.

    Where the assumed median of the response length, or the prompt length, does not fit the limits of the job, a quarter
    of the response limit, or the prompt limit, is assumed instead: if most responses were cut off, nothing would be
    solved.
    """
    sync, batch, spec = job.sync, job.batch, job.engine.simulation
    spec = spec.model_copy(
        update={
            "length_median": min(spec.length_median, batch.max_response_length / 4),
            "prompt_tokens": min(spec.prompt_tokens, batch.max_prompt_length),
        }
    )
    if mode is not None:
        sync = sync.model_copy(update={"publication_mode": mode})
        if mode == "engine_drain":
            sync = sync.model_copy(update={"submission": "group"})
    if collections is not None:
        batch = batch.model_copy(update={"num_rollouts": min(collections, batch.num_rollouts)})
    return job.model_copy(
        update={
            "sync": sync,
            "batch": batch,
            "engine": job.engine.model_copy(update={"backend": "simulated", "simulation": spec}),
            "output": job.output.model_copy(update={"export_hf": False}),
            "checkpoint": job.checkpoint.model_copy(update={"save": False}),
            "evaluation": job.evaluation.model_copy(update={"initial": False, "interval": 0, "final": False}),
        }
    )
