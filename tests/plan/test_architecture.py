"""Whether engine and learner compute the model, whether the run may write, and planning without the model folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config.findings import Advice, NotRunnable
from grpo.config.load import load
from grpo.plan.resolve import find_problems, plan

Write = Callable[..., Path]
VLLM = ("inference.backend='vllm'", "inference.placement_mode='disaggregated'", "trainer.gpus=1", "inference.gpus=1")


def found(path: Path, *overrides: str) -> list[tuple[str, str]]:
    """Return kind and text of what is found, the engines that are not built aside."""
    kinds = {Advice: "warning", NotRunnable: "cannot run"}
    return [
        (kinds.get(type(problem), "error"), str(problem))
        for problem in find_problems(load(path, overrides))[1]
        if "engines are not built" not in str(problem)
    ]


def change(folder: Path, **more: Any) -> None:
    path = folder / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


@pytest.mark.parametrize(
    ("more", "kind", "what"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "error", "BertForMaskedLM does not generate text. Name a causal"),
        (
            {"final_logit_softcapping": 30.0},
            "error",
            "the model scales or caps its logits (final_logit_softcapping = 30.0)",
        ),
        ({"logits_scaling": 8}, "error", "the model scales or caps its logits (logits_scaling = 8)"),
        ({"num_experts": 8}, "cannot run", "training of mixture-of-experts models is not built yet"),
        ({"sliding_window": 32}, "error", "the local engine does not compute a sliding window of 32 tokens"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "error",
            "the local engine does not compute sliding_attention",
        ),
        ({"rope_scaling": {"type": "dynamic"}}, "error", "the local engine does not compute dynamic rotary embeddings"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_named(
    write: Write, folder: Path, more: dict[str, Any], kind: str, what: str
) -> None:
    change(folder, rope_parameters=None, **more)
    ((got, line),) = found(write())
    assert got == kind and line.startswith(f"run.toml:4 model.source: {what}")


@pytest.mark.parametrize(
    "more",
    [
        {"logits_scaling": 1},
        {"sliding_window": 64},
        {"sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": False},
        {"model_type": "qwen2", "sliding_window": 32},
        {"num_experts": 0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_a_model_that_is_computed_rightly_has_no_problem(write: Write, folder: Path, more: dict[str, Any]) -> None:
    change(folder, **more)
    assert found(write()) == []


def test_an_architecture_that_the_engine_does_not_list_is_a_warning(write: Write, folder: Path) -> None:
    assert found(write(), *VLLM) == []
    change(folder, architectures=["LlamaForCausalLMM"])
    change(folder, architectures=["LlamaaForCausalLM"])
    ((kind, line),) = found(write(), *VLLM)
    assert kind == "warning"
    assert line.startswith(
        "run.toml:4 model.source: LlamaaForCausalLM is not among the 219 architectures of vllm 0.26.0"
    )
    assert "See whether vllm can serve it. Near: " in line and "LlamaForCausalLM" in line.partition("Near: ")[2]
    # A window or dynamic positions are the business of the engines.
    change(folder, architectures=["LlamaForCausalLM"], sliding_window=32)
    assert found(write(), *VLLM) == []


def test_a_missing_model_is_an_error_here_and_a_warning_for_a_cluster(write: Write, folder: Path) -> None:
    path = write(
        text='name = "x"\n[model]\nsource = "nowhere"\n[output]\nroot = "out"\n[inference]\nmax_context_length = 64\n'
    )
    assert found(path) == [
        (
            "error",
            f"run.toml:3 model.source: {folder}/nowhere: no such folder. Name a Hugging Face model folder; hub names "
            "are not downloaded.",
        )
    ]
    (not_here, missing) = found(path, "launch.backend='slurm'")
    assert not_here[0] == "cannot run"
    assert missing == (
        "warning",
        f"run.toml:3 model.source: {folder}/nowhere: no such folder on this machine, so it was not checked. The nodes "
        "that SLURM gives must see it.",
    )


def test_a_shape_stands_in_for_a_model_that_cannot_be_seen(write: Write, folder: Path) -> None:
    from grpo.plan.describe import facts

    path = write()
    shape = ("model.source='nowhere'", "model.plan_config='builtin:qwen2.5-1.5b'")
    assert found(path, *shape) == [
        (
            "cannot run",
            f"--set model.source: {folder}/nowhere: no such folder; planned with model.plan_config instead. Name a "
            "Hugging Face model folder; hub names are not downloaded.",
        )
    ]
    words = dict(facts(plan(path, shape).job))
    assert words["model"] == f"{folder}/nowhere (qwen2, 1,543,714,304 parameters)"
    # The folder itself wins where it can be seen, and the rules hold for the shape too.
    assert dict(facts(plan(path, shape[1:]).job))["model"] == f"{folder}/model (llama, 66,880 parameters)"
    (error,) = [text for kind, text in found(path, *shape, "inference.max_context_length=200000") if kind == "error"]
    assert error.startswith(
        "--set inference.max_context_length: 200000 tokens exceed the 131072 positions of the model"
    )
    assert found(path, "model.plan_config='builtin:nope'") == [
        (
            "error",
            "--set model.plan_config: no built-in shape 'nope'. The built-in shapes are: qwen2.5-1.5b, qwen2.5-7b.",
        )
    ]
    assert found(path, "model.plan_config='run.toml'")[0][1].startswith(
        f"--set model.plan_config: {folder}/run.toml cannot be read (not JSON)"
    )


def test_documented_tasks_that_are_not_built_can_be_planned(write: Write) -> None:
    from grpo.data.tasks import TASKS
    from grpo.plan.inspect import PLANNED_TASKS

    for task in PLANNED_TASKS - set(TASKS):
        assert found(write(f'[[data.tasks]]\ntask = "{task}"\ntrain_count = 5\n')) == [
            (
                "cannot run",
                f"run.toml:10 data.tasks[0].task: task {task!r} is not built yet. "
                "Give its prompts as data.prompt_data.",
            )
        ]


def test_a_used_output_folder_is_a_warning_and_one_that_cannot_be_written_an_error(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "used").mkdir()
    (folder / "used" / "x").touch()
    (folder / "done").mkdir()
    (folder / "done" / "result.json").touch()
    (folder / "half").mkdir()
    (folder / "half" / "job.json").touch()
    fresh, resumed = "Name a fresh folder for a new run.", "grpo run goes on with it if the job is the same."
    for name, what, fix in (
        ("used", "is not empty", fresh),
        ("done", "holds a complete run", fresh),
        ("half", "holds an unfinished run", resumed),
    ):
        ((kind, line),) = found(write(), f"output.root='{name}'")
        assert (kind, line) == (
            "warning",
            f"--set output.root: {folder}/{name} {what}. {fix}",
        )
    for root in ("run.toml", "run.toml/a/b"):
        assert found(write(), f"output.root='{root}'") == [
            ("error", f"--set output.root: {folder}/run.toml is a file, not a folder. Name a fresh folder.")
        ]
    with monkeypatch.context() as closed:
        closed.setattr("os.access", lambda path, mode: False)  # a superuser may write anywhere
        assert found(write(), "output.root='new/deep'") == [
            ("error", f"--set output.root: {folder} cannot be written. Name a fresh folder.")
        ]
    assert found(write(), "output.export_hf=true", "output.hf_dir='used'") == [
        ("error", f"--set output.hf_dir: {folder}/used is not empty. Name a fresh folder.")
    ]
    # An unfinished run may have been killed just after it filled its export folder itself.
    half = found(write(), "output.export_hf=true", "output.hf_dir='used'", "output.root='half'")
    assert [kind for kind, _ in half] == ["warning"]
    # Elsewhere is not here.
    assert [kind for kind, _ in found(write(), "output.root='used'", "launch.backend='slurm'")] == ["cannot run"]
