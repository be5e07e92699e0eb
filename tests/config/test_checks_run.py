"""Rules about where a run is executed and with what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grpo.config import derive
from grpo.config.checks_run import RESERVED, SECRET_NAME, SECRET_VALUE
from grpo.config.settings import Settings

Problems = Callable[..., list[str]]
NOT_BUILT = "submission to SLURM and Beaker is not built yet; set launch.backend to local to train on this machine"

RULES = {
    "a drain of engines that share GPUs": (
        '[async]\nfully_async = true\n[core]\npublication_mode = "engine_drain"\n[miles]\ncolocate = true',
        ['run.toml:2 async.fully_async: an asynchronous run cannot be colocated. Set inference.placement_mode = '
         '"disaggregated".'],
    ),
    "a drain whose groups are spread": (
        '[async]\nfully_async = true\nrollout_submission_granularity = "sample"\n[core]\n'
        'publication_mode = "engine_drain"',
        ["run.toml:3 async.rollout_submission_granularity: engine_drain keeps a group on one engine and version. Set "
         'it to "group".'],
    ),
    "several local engines by GPUs": (
        "[inference]\ngpus = 2",
        ["run.toml:2 inference.gpus: the local engine runs on the CPU. Set inference.local_engines for several of "
         "them."],
    ),
    "two schedulers and no choice": (
        '[launch]\nworkspace = "a/b"\ncluster = "c"\n[launch.slurm]\ntime = "1:00:00"',
        ["run.toml:2 launch.workspace: Beaker and SLURM (at run.toml:4 launch.slurm) are both described. Set "
         'launch.backend = "beaker" or "slurm".'],
    ),
    "Beaker without a cluster": (
        '[launch]\nworkspace = "a/b"',
        ["run.toml:1 launch.cluster: is missing, and Beaker needs it"],
    ),
    "a number that is no time": (
        '[launch]\nbackend = "slurm"\n[launch.slurm]\ntime = "1 day"',
        ['run.toml:4 launch.slurm.time: text "1 day" is not allowed. Write a SLURM time such as 24:00:00 or '
         "2-00:00:00.",
         f'run.toml:2 launch.backend: "slurm": {NOT_BUILT}'],
    ),
    "reserved variables": (
        '[launch.env]\nRANK = "0"\nNCCL_DEBUG = "WARN"\n"A B" = "1"\n[launch.secrets]\nCUDA_VISIBLE_DEVICES = "x"',
        ["run.toml:2 launch.env.RANK: is reserved: launchers, Ray and CUDA set it for each process. Remove it.",
         'run.toml:4 launch.env."A B": is no name of an environment variable',
         "run.toml:6 launch.secrets.CUDA_VISIBLE_DEVICES: is reserved: launchers, Ray and CUDA set it for each "
         "process. Remove it."],
    ),
    "a variable in both tables": (
        '[launch.env]\nA = "1"\n[launch.secrets]\nA = "x"',
        ["run.toml:4 launch.secrets.A: is given in launch.env too. Keep one of them."],
    ),
    "a secret by its name": (
        '[launch.env]\nHF_TOKEN = "abc"',
        ['run.toml:2 launch.env.HF_TOKEN: looks like a secret in clear text. Store it with the scheduler and write '
         'HF_TOKEN = "SECRET_NAME" under [launch.secrets].'],
    ),
    "a secret by its value, never shown": (
        '[tracking]\nwandb_team = "hf_abcdefghijklmnopqrstuvwx"',
        ["run.toml:2 tracking.wandb_team: holds what looks like a secret in clear text. Remove it from the file, and "
         "from its history; name a secret under [launch.secrets] instead."],
    ),
    "experts over part of an engine": (
        "[inference]\nbackend = 'local'\nrollout_expert_parallel_size = 4\nrollout_tensor_parallel_size = 6\ngpus = 6",
        ["run.toml:4 inference.rollout_tensor_parallel_size: 6: tensor parallelism is not built yet; an engine has one "
         "GPU",
         "run.toml:3 inference.rollout_expert_parallel_size: 4: expert parallelism is not built yet",
         "run.toml:3 inference.rollout_expert_parallel_size: 4 does not divide the 6 GPUs of an engine. Set it to 3.",
         "run.toml:5 inference.gpus: the local engine runs on the CPU. Set inference.local_engines for several of "
         "them."],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "lines"), RULES.values(), ids=RULES.keys())
def test_a_broken_rule_is_one_exact_line(problems: Problems, text: str, lines: list[str]) -> None:
    assert sorted(problems(text)) == sorted(lines)


def test_a_file_may_describe_both_schedulers_and_choose(problems: Problems) -> None:
    text = '[launch]\nbackend = "%s"\nworkspace = "a/b"\ncluster = "c"\n[launch.slurm]\ntime = "1:00:00"'
    for backend in ("slurm", "beaker"):
        assert problems(text % backend) == [f'run.toml:2 launch.backend: "{backend}": {NOT_BUILT}']
    assert problems(text % "local") == []


def test_the_backend_of_the_launch_is_the_one_that_is_described(settings: Callable[..., Settings]) -> None:
    for text, backend in (
        ("", "local"),
        ('[launch]\nworkspace = "a/b"', "beaker"),
        ("[launch.slurm]\nexclusive = true", "slurm"),
        ('[launch]\nbackend = "local"\nworkspace = "a/b"', "local"),
    ):
        assert derive.launch_backend(settings(text)).value == backend


@pytest.mark.parametrize(
    "name", ["WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "RAY_ADDRESS", "SLURM_PROCID", "PMIX_RANK"]
)
def test_variables_of_each_process_are_reserved(name: str) -> None:
    assert RESERVED.fullmatch(name)
    assert not RESERVED.fullmatch(f"MY_{name}")


def test_names_and_values_of_secrets_are_told_from_others() -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "token"):
        assert SECRET_NAME.search(name), name
    for name in ("TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "NCCL_DEBUG", "MAX_TOKENS", "KEYBOARD"):
        assert not SECRET_NAME.search(name), name
    for value in (
        *("hf_" + "a" * 34, "sk-proj-" + "A1" * 20, "ghp_" + "a" * 36, "AKIA" + "A" * 16),
        *("-----BEGIN RSA PRIVATE KEY-----", "https://me:hunter2@example.org/x"),
    ):
        assert SECRET_VALUE.search(value), value
    for value in (
        "hf_dir",
        "runs/sk-learn",
        "https://example.org/x",
        "builtin:tiny-arithmetic",
        "hf_checkpoint_of_mine",
    ):
        assert not SECRET_VALUE.search(value), value
