"""``grpo inspect``: what happened in a run. Reads its files only, also while it is going on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo.cli.options import Debug, Json

if TYPE_CHECKING:
    from grpo.obs.trail import Story


def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The output folder of a run.", show_default=False)],
    ledger: Annotated[
        bool, typer.Option("--ledger", help="What happened to every prompt; the only view so far.")
    ] = True,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="ID", help="The story of one prompt.")] = None,
    json_output: Json = False,
    debug: Debug = False,
) -> None:
    """Show what happened in a run."""
    from grpo.errors import UserError

    stories = _read(run)
    if prompt is not None:
        chosen = [story for story in stories if story.prompt_id == prompt]
        if not chosen:
            raise UserError(f"prompt {prompt!r} was never drawn", where=str(run), fix="Ids are in the ledger.jsonl.")
        _print({"stories": [story.as_json() for story in chosen]}, _story_lines(chosen), json_output)
        return
    from grpo.obs.trail import summary

    result = summary(stories)
    _print(result, _summary_lines(result), json_output)


def _read(run: Path) -> "list[Story]":
    import json

    from grpo.errors import UserError
    from grpo.obs.jsonl import read_rows
    from grpo.obs.trail import read_stories
    from grpo.plan.job import JobSpec
    from grpo.plan.paths import RunPaths

    paths = RunPaths(run)
    try:
        job = JobSpec.read(paths.job)
        return read_stories(read_rows(paths.ledger), job.batch.rollout_batch_size)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", where=str(error.filename), fix="Name the output.root of a run."
        ) from None
    except (json.JSONDecodeError, KeyError, IndexError) as error:
        raise UserError(f"is damaged ({type(error).__name__}: {error})", where=str(paths.ledger)) from None
    except ValueError as error:
        raise UserError(f"is not a job of this version ({error})".splitlines()[0], where=str(paths.job)) from None


def _print(result: dict[str, Any], lines: list[str], json_output: bool) -> None:
    import json

    typer.echo(json.dumps(result) if json_output else "\n".join(lines))


def _summary_lines(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{result['groups']} groups of {result['prompts']} prompts: {_words(result['states'])}",
        f"attempts: {_words(result['attempts'])}",
        f"retries: {_words(result['retries']) or 'none'}",
    ]
    if len(result["by_source"]) > 1:
        lines += ["by source:"]
        lines += [f"  {source or '(none)'}: {_words(counts)}" for source, counts in result["by_source"].items()]
    for title, key in (("given up", "given_up"), ("longest waits", "longest_waits")):
        lines.append(f"{title}:" if result[key] else f"{title}: none")
        for one in result[key]:
            reason = f" ({one['reason']})" if "reason" in one else ""
            took = f"{_many(one['attempts'], 'attempt')} and {_many(one['collections'], 'collection')}"
            lines.append(f"  {one['prompt_id']}, group {one['group_id']}: {one['state']} after {took}{reason}")
    return lines


def _story_lines(stories: "list[Story]") -> list[str]:
    lines = []
    for story in stories:
        lines.append(f"group {story.group_id} of {story.prompt_id}: {story.state}")
        for attempt in story.attempts:
            reason = f" ({attempt['reason']})" if "reason" in attempt else ""
            again = ", to be generated again" if attempt.get("retried") else ""
            lines.append(
                f"  attempt {attempt['attempt']} at policy version {attempt['version']}: "
                f"{' -> '.join(attempt['passed'])}{reason}{again}"
            )
    return lines


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
