"""The schema: every wrong key and value is found, in one line that says where and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grpo.config.aliases import ALIASES
from grpo.config.names import edit_distance, nearest
from grpo.config.schema import INNER, SECTIONS, Top
from grpo.config.schema_base import Section, Unsupported, keys_of, unsupported
from grpo.config.settings import BadKey, Settings

Problems = Callable[..., list[str]]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    text = """\
name = "a b"
lerning_rate = 3
[infrence]
[inference]
sampels_per_prompt = 8
max_response_length = "8"
publication_mode = "refresh"
global_batch_size = 99999999999999999999
[core]
publication_mode = "refesh"
max_policy_lag = true
filter_zero_std_groups = false
[training]
filter_zero_std_groups = true
num_rollouts = 0
[[data.tasks]]
task = "addition"
trian_count = 4
[optimizer]
learning_rate = nan
adam_beta1 = "0.9"
weight_decay = 1
"""
    assert problems(text, "core.snapshot_capacity=0", "foo=1") == [
        'run.toml:1 name: text "a b" is not allowed. '
        "Use letters, digits, '.', '_', '-'; start with a letter or digit.",
        "run.toml:2 lerning_rate: unknown key. Did you mean optimizer.learning_rate?",
        "run.toml:3 infrence: unknown section. Did you mean [inference]?",
        "run.toml:5 inference.sampels_per_prompt: unknown key. Did you mean samples_per_prompt?",
        'run.toml:6 inference.max_response_length: must be an integer, not text "8"',
        "run.toml:7 inference.publication_mode: unknown key. It belongs in [core].",
        "run.toml:8 inference.global_batch_size: must be at most 9223372036854775807, not 99999999999999999999",
        'run.toml:10 core.publication_mode: must be "barrier", "refresh" or "engine_drain", not text "refesh". '
        'Did you mean "refresh"?',
        "run.toml:11 core.max_policy_lag: must be an integer, not true",
        "run.toml:14 training.filter_zero_std_groups: true contradicts core.filter_zero_std_groups = false at "
        "run.toml:12. They are two names of one setting: keep one.",
        "run.toml:15 training.num_rollouts: must be at least 1, not 0",
        "run.toml:18 data.tasks[0].trian_count: unknown key. Did you mean train_count?",
        "run.toml:20 optimizer.learning_rate: must be a finite number, not nan",
        'run.toml:21 optimizer.adam_beta1: must be a number, not text "0.9"',
        "--set foo: unknown key",
        "--set core.snapshot_capacity: must be at least 1, not 0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inference = 3", "run.toml:1 inference: must be a table, not 3. Write [inference]."),
        ("[[inference]]", "run.toml:1 inference: must be a table, not an array. Write [inference]."),
        ("[data]\ntasks = 3", "run.toml:2 data.tasks: must be an array, not 3"),
        ("[data]\ntasks = [3]", "run.toml:2 data.tasks[0]: must be a table, not 3"),
        ("[[data.tasks]]\ntask = 'x'", "run.toml:1 data.tasks[0].train_count: is missing"),
        ("[model]\nsource = ''", "run.toml:2 model.source: must not be empty"),
        ("[model]\nsource = 2020-01-01", "run.toml:2 model.source: must be text in quotes, not a date or time"),
        ("[async]\nfully_async = 1", "run.toml:2 async.fully_async: must be true or false, not 1"),
        ("[trainer]\ngpus = 1.0", "run.toml:2 trainer.gpus: must be an integer, not 1.0"),
        ("[optimizer]\neps_clip = 1", "run.toml:2 optimizer.eps_clip: must be less than 1, not 1"),
        ("[optimizer]\nadam_eps = 0", "run.toml:2 optimizer.adam_eps: must be greater than 0, not 0"),
        ("[output]\nrollout_sample_rate = 1.5", "run.toml:2 output.rollout_sample_rate: must be at most 1, not 1.5"),
        ("schema_version = 2", "run.toml:1 schema_version: must be at most 1, not 2"),
        ('[data]\neval_prompt_data = ["a", 1]', "run.toml:2 data.eval_prompt_data[1]: must be text in quotes, not 1"),
        ("[core]\nlr = 1e-6", "run.toml:2 core.lr: unknown key. It belongs in [miles]."),
        ("num_rollouts = 3", "run.toml:1 num_rollouts: unknown key. It belongs in [training]."),
        ("[model]\nname = 'x'", "run.toml:2 model.name: unknown key. It belongs above the first table."),
        ('[model]\nsource = "a\\nb"', 'run.toml:2 model.source: text "a\\nb" holds a control character'),
        ("[model]\nsource = '" + "x" * 5000 + "'", "run.toml:2 model.source: must have at most 4096 letters, not 5000"),
        ("[model]\nxyzzy = 1", "run.toml:2 model.xyzzy: unknown key"),
        ('[model]\n"a\\nb" = 1', 'run.toml:2 model."a\\nb": unknown key'),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_one_exact_line(problems: Problems, text: str, message: str) -> None:
    assert problems(text) == [message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[trainer]\nbackend = "olmo_core"',
            'run.toml:2 trainer.backend: text "olmo_core" is refused: the olmo_core learner is not built yet; use fsdp',
        ),
        (
            "[core]\nexpert_balance_layer_stride = 2",
            "run.toml:2 core.expert_balance_layer_stride: 2 is refused: training of mixture-of-experts models is not "
            "built yet",
        ),
        (
            "[judges.helper]\nmodel = 'm'",
            "run.toml:1 judges: is refused: rewards from a judge model are not built yet; use a rule-based verifier",
        ),
        (
            "[[data.tasks]]\ntask = 'addition'\ntrain_count = 1\nprompt_wrapper = 'auto'",
            'run.toml:4 data.tasks[0].prompt_wrapper: text "auto" is refused: prompt wrappers are not built yet; only '
            "none is",
        ),
        ("[core]\nexpert_parallel_size = 1", ""),
        ("[miles]\nuse_rollout_logprobs = false", ""),
        ("[miles]\nbalance_data = 0", "run.toml:2 miles.balance_data: must be true or false, not 0"),
    ],
)  # fmt: skip
def test_a_feature_that_is_not_built_is_refused_unless_it_is_not_asked_for(
    problems: Problems, text: str, message: str
) -> None:
    assert problems(text) == ([message] if message else [])


def all_keys() -> Iterator[tuple[str, type[Section], str, Any]]:
    models = {"": Top} | {name: info.model for name, info in SECTIONS.items()}
    models |= {".".join(path): model for path, model in INNER.items()}
    for section, model in models.items():
        for name, field in keys_of(model).items():
            yield section, model, name, field


def test_every_key_has_a_description_and_no_default_is_refused() -> None:
    for section, model, name, field in all_keys():
        assert field.description and field.description.endswith("."), f"{section}.{name}"
        for marker in unsupported(model, name):
            if marker.values or marker.plans:
                assert field.default is None or not marker.refuses(field.default), f"{section}.{name}"


def test_every_name_of_an_alias_is_a_key_of_the_same_default_or_of_its_own_route() -> None:
    keys = {f"{section}.{name}": field for section, _, name, field in all_keys()}
    different = {
        (alias.structured, alias.low_level)
        for alias in ALIASES
        if alias.convert(keys[alias.low_level].default) != keys[alias.structured].default
        and keys[alias.low_level].default is not None
    }
    assert different == {("inference.max_context_length", "core.max_sequence_length")}


def test_misspelling_any_key_by_one_letter_names_it(problems: Problems) -> None:
    several = 0
    for section, info in SECTIONS.items():
        if info.named or info.refused:
            continue
        known = keys_of(info.model)
        for name in known:
            if len(name) < 3:
                continue
            for wrong in (
                name[:-1],
                name[1:],
                name + "s",
                name[:1] + name[2:],
                name[1] + name[0] + name[2:],
                f"x{name}",
            ):
                if wrong in known or any(wrong.startswith(prefix) for prefix in info.model.prefixes):
                    continue
                (line,) = problems(f"[{section}]\n{wrong} = 1")
                problem, _, guess = line.partition(". Did you mean ")
                assert problem.startswith(f"run.toml:2 {section}.{wrong}: ")
                assert problem.endswith(("unknown key", f"sglang 0.5.17 has no argument {wrong[7:]!r}"))
                assert name in guess.rstrip("?").split(" or ")
                several += guess.count(" or ")
    assert several < 20  # names so alike that one edit is as near to both, such as top_k and top_p


def test_the_command_line_replaces_the_other_name_in_the_file(settings: Callable[..., Settings]) -> None:
    found = settings("[async]\nmax_weight_staleness = 4\n", "core.max_policy_lag=2").get("async.max_weight_staleness")
    assert (found.key, found.value, str(found.place)) == ("core.max_policy_lag", 2, "--set")


def test_a_low_level_name_answers_for_its_structured_one(settings: Callable[..., Settings]) -> None:
    found = settings("[miles]\nlr = 1e-3\ncolocate = true\n")
    assert found.low_level
    assert found.value("optimizer.learning_rate") == 1e-3
    assert found.value("inference.placement_mode") == "colocated"
    assert found.value("inference.max_context_length") == 8192
    assert found.where("optimizer.learning_rate") == "run.toml:2 miles.lr"


def test_the_route_is_that_of_the_file_whatever_the_command_line_adds(settings: Callable[..., Settings]) -> None:
    assert not settings("", "core.publication_mode='barrier'").low_level
    assert settings("[core]\n", "training.num_rollouts=3").low_level
    assert not settings("[core]\n[training]\n").low_level


def test_a_rule_that_reads_a_wrong_value_is_told(write: Callable) -> None:
    from grpo.config.load import load
    from grpo.config.settings import read_settings

    found, _ = read_settings(load(write("[miles]\nlr = 'x'\n")))
    with pytest.raises(BadKey):
        found.value("optimizer.learning_rate")
    assert found.value("optimizer.eps_clip") == 0.2


def test_unless_compares_types_too() -> None:
    assert Unsupported("x", unless=(False,)).refuses(0)
    assert not Unsupported("x", unless=(0, 0.0)).refuses(0.0)
    assert Unsupported("x", values=("a",)).refuses("a")
    assert not Unsupported("x", values=("a",)).refuses("b")


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "abc", 3), ("abc", "acb", 1), ("ca", "abc", 3), ("kitten", "sitting", 3), ("x", "x", 0)],
)
def test_edit_distance_counts_a_swap_of_neighbours_as_one(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == distance


def test_a_far_name_is_no_guess() -> None:
    assert nearest("zzz", ["abc", "abd"]) == ([], 3)
    assert nearest("Gpu", ["gpus", "cpus"]) == (["gpus"], 1)
    assert nearest("top_", ["top_p", "top_k", "tip_k"]) == (["top_k", "top_p"], 1)
