"""The rules between fields, each by the line that a user sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Problems = Callable[..., list[str]]

RULES = {
    "one response with the filter on": (
        "[inference]\nsamples_per_prompt = 1",
        "run.toml:2 inference.samples_per_prompt: a group of 1 response has no variation, so "
        "training.filter_zero_std_groups drops every group. Set it to 2 or more, or the filter to false.",
    ),
    "a low-level name is shown as it was given": (
        "[miles]\nn_samples_per_prompt = 1",
        "run.toml:2 miles.n_samples_per_prompt: a group of 1 response has no variation, so "
        "training.filter_zero_std_groups drops every group. Set it to 2 or more, or the filter to false.",
    ),
    "a response as long as the context": (
        "[inference]\nmax_context_length = 64\nmax_response_length = 64",
        "run.toml:3 inference.max_response_length: 64 tokens leave no room for a prompt in the context of 64. Set it "
        "below 64, or raise max_context_length.",
    ),
    "an evaluation response over the context": (
        "[inference]\nmax_context_length = 64\neval_max_response_length = 99",
        "run.toml:3 inference.eval_max_response_length: 99 tokens leave no room for a prompt in the context of 64. Set "
        "it below 64, or raise max_context_length.",
    ),
    "prompt and response over the context": (
        "[inference]\nmax_context_length = 64\nmax_response_length = 40\n[miles]\nrollout_max_prompt_len = 30",
        "run.toml:5 miles.rollout_max_prompt_len: 30 prompt + 40 response tokens exceed the context of 64. Set it to "
        "at most 24.",
    ),
    "a prompt limit over the context": (
        "[inference]\nmax_context_length = 64\n[miles]\nrollout_max_prompt_len = 64",
        "run.toml:4 miles.rollout_max_prompt_len: 64 tokens leave no room for a response in the context of 64. Set it "
        "below 64, or raise max_context_length.",
    ),
    "a step of part of a group": (
        "[inference]\nsamples_per_prompt = 8\nglobal_batch_size = 20",
        "run.toml:3 inference.global_batch_size: 20 responses are not a whole number of groups of 8. The nearest below "
        "that is: 16.",
    ),
    "a step smaller than a group": (
        "[inference]\nsamples_per_prompt = 8\nglobal_batch_size = 4",
        "run.toml:3 inference.global_batch_size: 4 responses are not a whole number of groups of 8. The smallest is 8.",
    ),
    "steps that do not fill the collection": (
        "[inference]\nrollout_batch_size = 12\nsamples_per_prompt = 2\nglobal_batch_size = 10",
        "run.toml:4 inference.global_batch_size: 10 responses do not divide the collection of 12 x 2 = 24. 8 does.",
    ),
    "a step larger than the collection": (
        "[inference]\nglobal_batch_size = 128",
        "run.toml:2 inference.global_batch_size: 128 responses do not divide the collection of 8 x 8 = 64. 64 does.",
    ),
    "packs shorter than a sequence": (
        "[trainer]\npacking_max_tokens = 100",
        "run.toml:2 trainer.packing_max_tokens: 100 tokens cannot hold a sequence of max_context_length 6144. Set it "
        "to at least 6144.",
    ),
    "a lag in a synchronous run": (
        "[async]\nmax_weight_staleness = 2",
        "run.toml:2 async.max_weight_staleness: a lag of 2 in a synchronous run, whose lag is 0. Set async.fully_async "
        "= true, or remove it.",
    ),
    "an asynchronous run on shared GPUs": (
        '[async]\nfully_async = true\n[inference]\nplacement_mode = "colocated"\n[core]\npublication_mode = "barrier"',
        "run.toml:2 async.fully_async: an asynchronous run cannot be colocated. Set inference.placement_mode = "
        '"disaggregated".',
    ),
    "refresh on shared GPUs": (
        '[core]\npublication_mode = "refresh"\n[miles]\ncolocate = true',
        "run.toml:2 core.publication_mode: refresh cannot be colocated. Set inference.placement_mode = "
        '"disaggregated".',
    ),
    "refresh without correction": (
        '[core]\npublication_mode = "refresh"\n[miles]\nuse_tis = false',
        'run.toml:4 miles.use_tis: refresh needs importance correction. Remove it, or use barrier.',
    ),
    "refresh at another temperature": (
        '[core]\npublication_mode = "refresh"\n[miles]\nrollout_temperature = 0.7',
        "run.toml:4 miles.rollout_temperature: refresh needs temperature 1, not 0.7",
    ),
    "refresh with several steps": (
        '[core]\npublication_mode = "refresh"\n[inference]\nglobal_batch_size = 32',
        "run.toml:4 inference.global_batch_size: refresh needs one optimizer step per collection, not 2. Set it to 64, "
        "or use barrier.",
    ),
    "top-p under correction": (
        "[inference]\ntop_p = 0.9",
        "run.toml:2 inference.top_p: 0.9 cuts the distribution; importance correction needs the full distribution. Set "
        "it to 1.",
    ),
    "top-k under correction": (
        "[inference]\ntop_k = 20",
        "run.toml:2 inference.top_k: 20 cuts the distribution; importance correction needs the full distribution. Set "
        "it to 0.",
    ),
    "two opinions about correction": (
        '[async]\noff_policy_correction = "none"\n[miles]\nuse_tis = true',
        'run.toml:2 async.off_policy_correction: "none" contradicts miles.use_tis = true at run.toml:4. Keep one of '
        "them.",
    ),
    "an empty icepop range": (
        "[async]\nicepop_high = 0.25",
        "run.toml:2 async.icepop_high: icepop keeps ratios in [0.5, 0.25], which is empty. Set low below high.",
    ),
    "an interval of checkpoints that are not written": (
        "[training]\nsave_checkpoints = false\nsave_interval = 5",
        "run.toml:3 training.save_interval: contradicts save_checkpoints = false. Remove it, or set save_checkpoints = "
        "true.",
    ),
    "two opinions about the first evaluation": (
        "[training]\nskip_eval_before_train = true\n[evaluation]\ninitial = true",
        "run.toml:4 evaluation.initial: contradicts training.skip_eval_before_train at run.toml:2. Keep one of them.",
    ),
    "a warmup longer than the run": (
        "[training]\nnum_rollouts = 5\n[optimizer]\nlr_warmup_iters = 6",
        "run.toml:4 optimizer.lr_warmup_iters: a warmup of 6 optimizer steps in a run of 5. Set it to at most 5.",
    ),
    "an export folder without export": (
        '[output]\nhf_dir = "x"',
        "run.toml:2 output.hf_dir: is given, but nothing is exported. Set output.export_hf = true.",
    ),
    "two sources of data": (
        '[data]\nprompt_data = "a.jsonl"\n[[data.tasks]]\ntask = "addition"\ntrain_count = 1',
        "run.toml:3 data.tasks: training data is given twice, also at run.toml:2 data.prompt_data. Keep one of them.",
    ),
    "held-out files without names": (
        '[data]\nprompt_data = "a.jsonl"\neval_prompt_data = ["a.jsonl"]',
        'run.toml:3 data.eval_prompt_data: has 1 entries. Alternate name and path: ["dev", "dev.jsonl"].',
    ),
    "a name of two held-out files": (
        '[data]\nprompt_data = "a.jsonl"\neval_prompt_data = ["a", "b", "a", "c"]',
        "run.toml:3 data.eval_prompt_data: has a name twice. Give each file a name of its own.",
    ),
    "held-out files of tasks": (
        '[data]\neval_prompt_data = ["a", "b"]\n[[data.tasks]]\ntask = "addition"\ntrain_count = 1',
        "run.toml:2 data.eval_prompt_data: needs data.prompt_data. Held-out prompts of tasks are set by their "
        "eval_count.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), RULES.values(), ids=RULES.keys())
def test_a_broken_rule_is_one_exact_line(problems: Problems, text: str, message: str) -> None:
    assert problems(text) == [message]


FINE = {
    "one response, filter off": "[inference]\nsamples_per_prompt = 1\n[training]\nfilter_zero_std_groups = false",
    "a response one short of the context": "[inference]\nmax_context_length = 64\nmax_response_length = 63",
    "two steps a collection": "[inference]\nglobal_batch_size = 32",
    "an asynchronous run": "[async]\nfully_async = true\nmax_weight_staleness = 0",
    "refresh": '[core]\npublication_mode = "refresh"',
    "top-p without correction": '[inference]\ntop_p = 0.9\n[async]\noff_policy_correction = "none"',
    "a low-level lag": "[core]\nmax_policy_lag = 2",
}


@pytest.mark.parametrize("text", FINE.values(), ids=FINE.keys())
def test_what_keeps_the_rules_has_no_problem(problems: Problems, text: str) -> None:
    assert problems(text) == []


def test_a_rule_over_a_wrong_value_is_not_reported_on_top(problems: Problems) -> None:
    assert problems("[inference]\nsamples_per_prompt = '1'\nglobal_batch_size = 3") == [
        'run.toml:2 inference.samples_per_prompt: must be an integer, not text "1"'
    ]


def test_what_every_file_needs_is_named(write: Callable) -> None:
    from grpo.config import checks
    from grpo.config.load import load
    from grpo.config.settings import read_settings

    found, _ = read_settings(load(write("[output]\n")))
    assert [str(problem) for problem in checks.check(found)] == [
        'run.toml name: is missing. Add name = "my-run" as the first line.',
        "run.toml model.source: is missing. Name a Hugging Face model folder, or builtin:tiny-arithmetic.",
        "run.toml:1 output.root: is missing. Name a fresh folder for everything the run writes.",
        "run.toml data: no training data. Add [[data.tasks]] entries, or data.prompt_data.",
    ]
