"""The whole run file: which sections there are."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.config.schema_base import Section, Unsupported, key
from grpo.config.schema_compute import Inference, Trainer
from grpo.config.schema_core import Core
from grpo.config.schema_judge import Binding, Judge, Judging, Rubric
from grpo.config.schema_launch import CompilerCache, Coordination, Launch, Runtime, Slurm, Tracking, WekaMount
from grpo.config.schema_learn import Async, Optimizer
from grpo.config.schema_miles import Miles
from grpo.config.schema_run import Conversion, Data, Evaluation, Model, Output, Task, Training
from grpo.config.schema_simulation import Simulation

_JUDGES = Unsupported("rewards from a judge model are not built yet; use a rule-based verifier")


class Top(Section):
    """Keys above the first table."""

    schema_version: int = key(1, "Version of this format.", ge=1, le=1)
    name: str | None = key(
        None,
        "Name of the run: letters, digits, '.', '_' and '-', starting with a letter or digit.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=128,
    )


@dataclass(frozen=True)
class SectionInfo:
    """A section: its model, whether it is a table of named tables, and whether it is refused as a whole."""

    model: type[Section]
    named: bool = False
    refused: Unsupported | None = None


SECTIONS: dict[str, SectionInfo] = {
    "model": SectionInfo(Model),
    "conversion": SectionInfo(Conversion),
    "output": SectionInfo(Output),
    "launch": SectionInfo(Launch),
    "data": SectionInfo(Data),
    "training": SectionInfo(Training),
    "evaluation": SectionInfo(Evaluation),
    "trainer": SectionInfo(Trainer),
    "inference": SectionInfo(Inference),
    "optimizer": SectionInfo(Optimizer),
    "async": SectionInfo(Async),
    "simulation": SectionInfo(Simulation),
    "tracking": SectionInfo(Tracking),
    "runtime": SectionInfo(Runtime),
    "compiler_cache": SectionInfo(CompilerCache),
    "judges": SectionInfo(Judge, named=True, refused=_JUDGES),
    "rubrics": SectionInfo(Rubric, named=True, refused=_JUDGES),
    "judging": SectionInfo(Judging, refused=_JUDGES),
    "core": SectionInfo(Core),
    "miles": SectionInfo(Miles),
}
"""The tables of a run file, in the order in which examples and documents show them."""

# Tables inside tables, by the section and key that holds them; unknown keys in them are looked up here.
INNER: dict[tuple[str, str], type[Section]] = {
    ("data", "tasks"): Task,
    ("launch", "weka_mounts"): WekaMount,
    ("launch", "coordination"): Coordination,
    ("launch", "slurm"): Slurm,
    ("judging", "bindings"): Binding,
}

# A file that has one of these is a structured one; with none of them but [core] or [miles] it is low-level.
WORKFLOW_SECTIONS = frozenset({"training", "evaluation", "trainer", "inference", "optimizer", "async"})
