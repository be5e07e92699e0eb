"""plan, validate, examples and errors, as a user meets them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo as grpo_package
from grpo import __version__
from grpo.cli.examples import examples_dir, purpose, with_root, with_schema
from grpo.cli.main import guarded
from grpo.errors import ConfigErrors, Interrupted, RunFailed, SchedulerRefused, UserError
from grpo.plan.resolve import plan

Cli = Callable[..., tuple[int, str, str]]

SPAWN = [sys.executable, "-m", "grpo"]
WRONG = {
    "missing file": (
        ["validate", "nope.toml"],
        "error: nope.toml: no such file. Check the path, or start from a maintained example: grpo examples list",
    ),
    "broken TOML": (
        ["plan", "broken.toml"],
        "error: broken.toml:3: not valid TOML: Invalid value at column 5",
    ),
    "unknown key": (
        ["plan", "run.toml", "--set", "inference.sample_per_prompt=4"],
        "error: --set inference.sample_per_prompt: unknown key. Did you mean samples_per_prompt?",
    ),
    "wrong type": (
        ["run", "run.toml", "--set", "inference.samples_per_prompt='4'"],
        'error: --set inference.samples_per_prompt: must be an integer, not text "4"',
    ),
    "one response with the filter on": (
        ["validate", "run.toml", "--set", "inference.samples_per_prompt=1", "--set",
         "training.filter_zero_std_groups=true"],
        "error: --set inference.samples_per_prompt: a group of 1 response has no variation, so "
        "training.filter_zero_std_groups drops every group. Set it to 2 or more, or the filter to false.",
    ),
    "a response limit over the context": (
        ["validate", "run.toml", "--set", "inference.max_response_length=65"],
        "error: --set inference.max_response_length: 65 tokens leave no room for a prompt in the context of 64. Set it "
        "below 64, or raise max_context_length.",
    ),
    "a model folder without a tokenizer": (
        ["run", "run.toml", "--set", 'model.source="bare"'],
        "error: --set model.source: {folder}/bare has no tokenizer (tokenizer.json or tokenizer_config.json). Copy the "
        "tokenizer files of the model into it.",
    ),
    "an empty data set": (
        ["validate", "run.toml", "--set", "data.tasks.0.train_count=0"],
        "error: run.toml:16 data.tasks: the data set is empty: no task has a train_count above 0. Set train_count of a "
        "task.",
    ),
    "an example that does not exist": (
        ["examples", "copy", "nope", "x.toml"],
        "error: there is no example 'nope'. The examples are: cpu, dev, node, three-node.",
    ),
    "a job that does not exist": (["train", "job.json"], "error: job.json: cannot be read (No such file or directory)"),
    "a job that is no job": (
        ["train", "run.toml"],
        "error: run.toml: not a job of this version (Invalid JSON: expected value at line 1 column 1). grpo run writes "
        "job.json into output.root.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_exact_line_and_exit_2(grpo: Cli, folder: Path, arguments: list[str], line: str) -> None:
    (folder / "broken.toml").write_text('name = "x"\n[model]\na = \n')
    (folder / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / "bare" / name).write_bytes((folder / "model" / name).read_bytes())
    assert grpo(*arguments) == (2, "", line.replace("{folder}", str(folder)) + "\n")


def test_several_problems_are_a_line_each_and_in_json_an_object_each(grpo: Cli, folder: Path) -> None:
    code, out, err = grpo("validate", "run.toml", "--json", "--set", "a=1", "--set", "training.num_rollouts=0")
    assert (code, err) == (
        2,
        "error: --set a: unknown key\nerror: --set training.num_rollouts: must be at least 1, not 0\n",
    )
    assert json.loads(out) == {
        "status": "error",
        "exit_code": 2,
        "runnable": False,
        "warnings": [],
        "cannot_run": [],
        "errors": [
            {"where": "--set a", "what": "unknown key", "fix": ""},
            {"where": "--set training.num_rollouts", "what": "must be at least 1, not 0", "fix": ""},
        ],
    }


def test_validate_of_a_good_file_says_so(grpo: Cli, folder: Path) -> None:
    assert grpo("validate", "run.toml") == (0, "run.toml: no problems found\n", "")
    code, out, _ = grpo("validate", "run.toml", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "status": "ok",
            "name": "plain",
            "job_sha256": plan(Path("run.toml")).job.sha256(),
            "runnable": True,
            "errors": [],
            "warnings": [],
            "cannot_run": [],
        },
    )


def test_validate_tells_errors_warnings_and_what_cannot_run_apart(grpo: Cli, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "x").touch()
    warning = f"run.toml:7 output.root: {folder}/out is not empty. Name a fresh folder for a new run."
    refused = '--set inference.backend: "vllm": the vllm and sglang engines are not built yet; local is'
    colocated = "--set inference.placement_mode='disaggregated'"
    vllm = ["--set", "inference.backend='vllm'", *colocated.split()]
    code, out, err = grpo("validate", "run.toml", *vllm)
    assert (code, out) == (0, "run.toml: no errors, 1 warning; but grpo run would refuse it here, for 1 reason above\n")
    assert err == f"warning: {warning}\ncannot run yet: {refused}\n"
    code, out, err = grpo("validate", "run.toml", *vllm, "--json")
    shown = json.loads(out)
    assert (code, shown["status"], shown["runnable"], err) == (0, "ok", False, "")
    assert [shown[name][0]["what"] for name in ("warnings", "cannot_run")] == [
        f"{folder}/out is not empty",
        '"vllm": the vllm and sglang engines are not built yet; local is',
    ]
    code, out, err = grpo("validate", "run.toml", "--set", "training.num_rollouts=0")
    assert (code, out) == (2, "")
    assert err == (
        f"error: --set training.num_rollouts: must be at least 1, not 0\nwarning: {warning}\n"
        "run.toml: 1 error, 1 warning\n"
    )


def test_run_refuses_what_plan_only_notes_and_writes_nothing(grpo: Cli, folder: Path) -> None:
    before = tree(folder)
    arguments = ("run.toml", "--set", "tracking.wandb_mode='online'")
    line = '--set tracking.wandb_mode: "online": the W&B sink is not built yet; metrics are in metrics.jsonl\n'
    assert grpo("run", *arguments) == (2, "", f"error: {line}")
    code, _, err = grpo("plan", *arguments)
    assert (code, err) == (0, f"cannot run yet: {line}")
    assert tree(folder) == before


def test_a_prompt_is_shown_as_the_model_sees_it(grpo: Cli, folder: Path) -> None:
    code, out, _ = grpo("validate", "run.toml", "--show-prompt", "--set", "model.source='builtin:tiny-arithmetic'")
    title, prompt, summary = out.splitlines()
    assert code == 0
    assert title.startswith("prompt 'addition/") and "tokens, verifier integer, ground truth" in title
    assert prompt.startswith("<|bos|><|user|>") and prompt.endswith("=<|end|><|assistant|>")
    assert summary == "run.toml: no problems found"


def test_plan_explains_one_value(grpo: Cli, folder: Path) -> None:
    code, out, err = grpo("plan", "run.toml", "--explain", "training.num_rollouts", "--set", "training.num_rollouts=3")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "batch.num_rollouts = 3 collections",
        "  from       --set training.num_rollouts",
        "  instead of training.num_rollouts = 1 (run.toml:14)",
        "  instead of training.num_rollouts = 100 (default)",
        "  also named miles.num_rollout",
        "  Length of the run.",
    ]
    code, out, _ = grpo("plan", "run.toml", "--explain", "max_policy_lag", "--json", "--set", "async.fully_async=true")
    (shown,) = json.loads(out)
    assert (shown["path"], shown["value"], shown["kind"]) == ("sync.max_policy_lag", 6, "derived")
    assert shown["arithmetic"] == "default of an asynchronous run = 6 steps"
    assert shown["derived_from"] == [{"key": "async.fully_async", "value": True, "origin": "--set async.fully_async"}]
    assert grpo("plan", "run.toml", "--explain", "num_rolouts")[::2] == (
        2,
        "error: there is no key 'num_rolouts'. Did you mean training.num_rollouts?\n",
    )


def test_plan_compares_two_files(grpo: Cli, folder: Path) -> None:
    text = (folder / "run.toml").read_text().replace("max_response_length = 4", "max_response_length = 6")
    (folder / "other.toml").write_text(text)
    assert grpo("plan", "run.toml", "--diff", "run.toml") == (0, "run.toml and run.toml are the same job\n", "")
    code, out, err = grpo("plan", "run.toml", "--diff", "other.toml")
    assert (code, err) == (0, "")
    assert out.splitlines()[:6] == [
        "batch.max_prompt_length",
        "  - run.toml: 60  (derived: 64 context - 4 response = 60 tokens)",
        "  + other.toml: 58  (derived: 64 context - 6 response = 58 tokens)",
        "batch.max_response_length",
        "  - run.toml: 4  (run.toml:11 inference.max_response_length)",
        "  + other.toml: 6  (other.toml:11 inference.max_response_length)",
    ]
    rows = json.loads(grpo("plan", "run.toml", "--diff", "other.toml", "--json")[1])
    assert {row["path"]: (row["ours"]["value"], row["theirs"]["value"]) for row in rows} == {
        "batch.max_prompt_length": (60, 58),
        "batch.max_response_length": (4, 6),
        "batch.eval_max_response_length": (4, 6),
    }


def test_plan_shows_what_will_happen_and_where_it_came_from(grpo: Cli, folder: Path) -> None:
    code, out, err = grpo("plan", "run.toml", "--set", "data.seed=3")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "plain: synchronous GRPO on this machine, 1 collection = 1 optimizer step"
    assert f"  output      {folder}/out (fresh)" in lines
    given = [line.split() for line in lines[lines.index("Values given (all: --all):") + 1 :]]
    assert ["data.seed", "3", "--set"] in given
    assert ["inference.rollout_batch_size", "2", "run.toml:9"] in given
    assert not any(row[-1] == "default" for row in given)
    _, every, _ = grpo("plan", "run.toml", "--all")
    assert ["tracking.wandb_mode", '"disabled"', "default"] in [line.split() for line in every.splitlines()]


def test_plan_json_is_the_job_with_its_provenance(grpo: Cli, folder: Path) -> None:
    code, out, err = grpo("plan", "run.toml", "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert shown.pop("estimate")
    assert shown == {**plan(Path("run.toml")).as_json(), "warnings": [], "cannot_run": []}


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_plan_and_validate_write_nothing(folder: Path, command: str) -> None:
    before = tree(folder)
    done = subprocess.run([*SPAWN, command, "run.toml"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(folder) == before


@pytest.mark.parametrize("name", ["cpu", "dev", "node", "three-node"])
def test_plan_and_validate_of_an_example_touch_nothing(grpo: Cli, tmp_path: Path, name: str) -> None:
    """Even where they could write: a superuser may write into a read-only tree, so the tree is compared."""
    root = tmp_path / "checkout"
    (root / "configs" / "examples").mkdir(parents=True)
    for path in [*examples_dir().glob("*.toml"), examples_dir().parent / "schema.json"]:
        (root / "configs" / path.relative_to(examples_dir().parent)).write_bytes(path.read_bytes())
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    package = Path(grpo_package.__file__).parent
    before = tree(tmp_path), names(package)
    path = f"{root}/configs/examples/{name}.toml"
    other = f"{root}/configs/examples/dev.toml"
    for arguments in (
        ("plan", path),
        ("plan", path, "--json"),
        ("plan", path, "--explain", "max_policy_lag"),
        ("plan", path, "--diff", other),
        ("validate", path),
        ("validate", path, "--json", "--show-prompt"),
    ):
        assert grpo(*arguments)[0] == 0, arguments
        assert (tree(tmp_path), names(package)) == before, arguments


def names(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "__pycache__" not in path.parts and path.suffix != ".py"}


def test_examples_are_listed_and_a_copy_writes_beside_itself(grpo: Cli, folder: Path) -> None:
    code, out, _ = grpo("examples", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["cpu", "dev", "node", "three-node"]
    assert grpo("examples", "copy", "cpu", "mine.toml") == (
        0,
        "mine.toml: copied from cpu. Next: grpo plan mine.toml\n",
        "",
    )
    template = (examples_dir() / "cpu.toml").read_text()
    schema = os.path.relpath(examples_dir().parent / "schema.json", folder)
    assert (folder / "mine.toml").read_text() == template.replace(
        'root = "../../runs/cpu"', 'root = "runs/mine"'
    ).replace("#:schema ../schema.json", f"#:schema {schema}")
    assert (folder / schema).is_file()
    assert plan(Path("mine.toml")).job.output.root == f"{folder}/runs/mine"
    before = tree(folder)
    assert grpo("examples", "copy", "cpu", "mine.toml") == (
        2,
        "",
        "error: mine.toml: exists already, and nothing is overwritten. Name a new file.\n",
    )
    assert tree(folder) == before
    (folder / "sub").mkdir()
    assert grpo("examples", "copy", "dev", "sub")[0] == 0
    assert (folder / "sub" / "dev.toml").exists()


def test_another_root_changes_one_line_only() -> None:
    text = '# c\n[output] # d\nroot = "../x" # e\nexport_hf = true\n'
    assert with_root(text, "runs/a") == '# c\n[output] # d\nroot = "runs/a"\nexport_hf = true\n'


def test_every_example_starts_with_its_purpose() -> None:
    for path in examples_dir().glob("*.toml"):
        text = path.read_text()
        assert text.startswith("#:schema ../schema.json\n# ") and purpose(text).endswith("."), path


def test_a_copy_without_a_schema_beside_it_has_no_such_line(tmp_path: Path) -> None:
    text = "#:schema ../schema.json\n# c\n"
    assert with_schema(text, tmp_path / "x.toml", tmp_path / "schema.json") == "# c\n"
    assert with_schema("# c\n", tmp_path / "x.toml", tmp_path / "schema.json") == "# c\n"


def test_schema_is_the_committed_one(grpo: Cli) -> None:
    code, out, err = grpo("schema")
    assert (code, err) == (0, "")
    assert out == (examples_dir().parent / "schema.json").read_text()


def test_usage_errors_exit_2_and_the_version_is_shown(grpo: Cli) -> None:
    assert grpo("plan")[0] == 2
    assert grpo("plan", "x.toml", "--nope")[0] == 2
    assert grpo("nope")[0] == 2
    assert grpo("--version") == (0, f"grpo {__version__}\n", "")
    assert grpo("--help")[0] == 0


def test_debug_adds_the_traceback(grpo: Cli, folder: Path) -> None:
    code, _, err = grpo("plan", "nope.toml", "--debug")
    assert code == 2
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("or start from a maintained example: grpo examples list\n")
    assert "Traceback" not in grpo("plan", "nope.toml")[2]
    assert "Traceback" in grpo("--debug", "plan", "nope.toml")[2]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("a", where="b", fix="C."), 2, "error: b: a. C."),
        (ConfigErrors([UserError("a"), UserError("b")]), 2, "error: a\nerror: b"),
        (RunFailed("a"), 3, "error: a"),
        (SchedulerRefused("a"), 4, "error: a"),
        (Interrupted("a"), 75, "error: a"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("x\ny"), 3, "internal error: ZeroDivisionError: x y. Rerun with --debug for details"),
        (SystemExit(5), 5, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    def command() -> None:
        raise error

    assert guarded(command) == code
    assert capsys.readouterr().err == (line + "\n" if line else "")


def test_a_closed_pipe_is_no_traceback(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*SPAWN, "plan", "run.toml", "--json"], cwd=folder, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_shell_completes_commands(folder: Path) -> None:
    variables = {"_GRPO_COMPLETE": "complete_bash", "COMP_WORDS": "grpo ", "COMP_CWORD": "1"}
    done = subprocess.run([*SPAWN], env={**os.environ, **variables}, capture_output=True, text=True)
    assert {"plan", "validate", "run", "examples", "train"} <= set(done.stdout.split())
