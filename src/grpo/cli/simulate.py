"""``grpo plan --simulate``: what a run would do in each publication mode, on a simulated fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from grpo.plan.job import JobSpec
    from grpo.runtime.simulation import SimulationReport

COLUMNS = ("mode", "tokens/s", "of best", "trainer waits", "engines busy", "wasted", "lag (groups)")


def show_simulation(job: JobSpec, *, json_output: bool) -> None:
    """Print the comparison of the modes; loads the runtime, but no model and no torch."""
    from grpo.errors import GrpoError
    from grpo.launch import local

    comparison = local.simulate_modes(job)
    job, reports = comparison.job, comparison.reports
    if json_output:
        import json

        shown = {
            mode: {"error": str(report)} if isinstance(report, GrpoError) else report.as_json()
            for mode, report in reports.items()
        }
        assumptions = job.engine.simulation.model_dump(mode="json")
        typer.echo(json.dumps({"simulated": True, "assumptions": assumptions, "modes": shown}, indent=2))
        return
    simulation, batch = job.engine.simulation, job.batch
    typer.echo(
        f"SIMULATED, not measured: {job.engine.count} engines x {job.engine.running_requests} slots, "
        f"{batch.rollout_batch_size} groups x {batch.samples_per_prompt} responses a collection, lag up to "
        f"{job.sync.max_policy_lag}, straggler = {job.sync.straggler}."
    )
    typer.echo(
        f"Assumed: responses of {simulation.length_median:g} tokens (log-normal, sigma {simulation.length_sigma:g}), "
        f"{1 / (simulation.decode_base_s + simulation.decode_per_request_s):.0f} tokens/s for one request alone, "
        f"{simulation.load_s:g} s to load weights; see [simulation]."
    )
    ran = [report.accepted_tokens_per_s for report in reports.values() if not isinstance(report, GrpoError)]
    best = max(ran, default=0.0)
    _table(
        {
            mode: [f"fails: {report}"] if isinstance(report, GrpoError) else _cells(report, best)
            for mode, report in reports.items()
        }
    )


def _cells(report: SimulationReport, best: float) -> list[str]:
    groups = sum(report.lags.values())
    return [
        f"{report.accepted_tokens_per_s:,.0f}",
        f"{report.accepted_tokens_per_s / best:.0%}",
        f"{report.trainer_wait:.0%}",
        f"{report.engine_busy:.0%}",
        " ".join(
            f"{tokens / report.generated_tokens:.0%} {why}" for why, tokens in sorted(report.wasted_tokens.items())
        )
        or "none",
        " ".join(f"{lag}:{count / groups:.0%}" for lag, count in report.lags.items()),
    ]


def _table(rows: dict[str, list[str]]) -> None:
    lines = [list(COLUMNS), *([mode, *cells] for mode, cells in rows.items())]
    whole = [line for line in lines if len(line) == len(COLUMNS)]
    widths = [max(len(line[column]) for line in whole) for column in range(len(COLUMNS))]
    widths[0] = max(len(line[0]) for line in lines)
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())
