"""``grpo validate``: everything that is wrong with a run file, at once."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo.cli.options import Debug, Json, Overrides, RunFile

if TYPE_CHECKING:
    from grpo.config.findings import Findings
    from grpo.plan.resolve import Checked

EXIT_WRONG = 2


def validate(
    run_file: RunFile,
    overrides: Overrides = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Also show the first training prompt as the model will see it.")
    ] = False,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Check a run file, the model folder, the data and the output folder, without side effects.

    Errors and warnings are told apart, and so is what only this build or this machine cannot run. Exit code 2 if there
    are errors.
    """
    from grpo.plan.resolve import check

    checked = check(run_file, overrides or ())
    if json_output:
        import json

        typer.echo(json.dumps(_as_json(checked, show_prompt=show_prompt)))
    _show(checked.findings, quiet=json_output)
    found = checked.findings
    if not json_output:
        if show_prompt:
            typer.echo(checked.prompt or "no prompt can be shown: see above")
        if len(found.errors) + len(found.warnings) != 1 or not found.errors:  # one line needs no count
            typer.echo(f"{run_file}: {_summary(checked)}", err=bool(found.errors))
    if found.errors:
        raise typer.Exit(EXIT_WRONG)


def _show(findings: "Findings", *, quiet: bool) -> None:
    """Print what was found to stderr; with ``quiet`` only the errors, which tools may want to show as they are."""
    for problem in findings.errors:
        typer.echo(f"error: {problem}", err=True)
    if quiet:
        return
    for problem in findings.warnings:
        typer.echo(f"warning: {problem}", err=True)
    for problem in findings.cannot_run:
        typer.echo(f"cannot run yet: {problem}", err=True)


def _summary(checked: "Checked") -> str:
    findings = checked.findings
    warnings = _many(len(findings.warnings), "warning")
    if findings.errors:
        return f"{_many(len(findings.errors), 'error')}{f', {warnings}' if findings.warnings else ''}"
    text = f"no errors, {warnings}" if findings.warnings else "no problems found"
    if not findings.cannot_run:
        return text
    reasons = _many(len(findings.cannot_run), "reason")
    return f"{text}; but grpo run would refuse it here, for {reasons} above"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _as_json(checked: "Checked", *, show_prompt: bool) -> dict[str, Any]:
    findings = checked.findings
    shown: dict[str, Any] = {"status": "error" if findings.errors else "ok"}
    if checked.plan is not None:
        shown |= {"name": checked.plan.job.name, "job_sha256": checked.plan.job.sha256()}
    else:
        shown["exit_code"] = EXIT_WRONG
    shown["runnable"] = not findings.errors and not findings.cannot_run
    for name in ("errors", "warnings", "cannot_run"):
        found = getattr(findings, name)
        shown[name] = [{"where": each.where, "what": each.what, "fix": each.fix} for each in found]
    if show_prompt:
        shown["prompt"] = checked.prompt
    return shown
