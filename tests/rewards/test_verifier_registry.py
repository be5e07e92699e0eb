import subprocess
import sys

import pytest

from grpo.errors import UserError
from grpo.rewards.registry import VERIFIERS, check_row, parse_options, verifier_info
from grpo.rewards.text import StringMatchOptions
from grpo.rewards.verifier import Example
from grpo.types import Graded

EXAMPLES = [(name, example) for name, info in VERIFIERS.items() for example in info.examples]


def test_the_registry_holds_these_verifiers_under_their_own_names() -> None:
    assert {name: info.name for name, info in VERIFIERS.items()} == {
        name: name for name in ("integer", "gsm8k", "string_match", "regex")
    }


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_every_documented_example_is_true(name: str, example: Example) -> None:
    info = VERIFIERS[name]
    options = parse_options(info, example.options)
    assert info.problem(example.ground_truth, options) is None
    assert info.verify(example.response, example.ground_truth, options) == Graded(example.score)


def test_every_verifier_documents_a_right_and_a_wrong_response() -> None:
    assert {name: {example.score for example in info.examples} for name, info in VERIFIERS.items()} == {
        name: {0.0, 1.0} for name in VERIFIERS
    }


def test_an_unknown_verifier_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        verifier_info("gms8k")
    assert str(caught.value) == (
        "unknown verifier 'gms8k'. Did you mean 'gsm8k'? Verifiers: gsm8k, integer, regex, string_match."
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "string_match",
            {"ignorecase": True},
            "verifier 'string_match' has no option 'ignorecase'. Did you mean 'ignore_case'? "
            "Its options: ignore_case, mode, strip.",
        ),
        ("integer", {"mode": "x"}, "verifier 'integer' has no option 'mode'. It has no options."),
        (
            "regex",
            {"mode": "find"},
            "option 'mode' of verifier 'regex': Input should be 'search' or 'fullmatch'",
        ),
    ],
)
def test_a_wrong_option_is_an_error(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_row(name, ("1",), options)
    assert str(caught.value) == message


def test_options_are_typed_and_have_defaults() -> None:
    info = verifier_info("string_match")
    assert parse_options(info, {"mode": "contains"}) == StringMatchOptions(
        mode="contains", ignore_case=False, strip=True
    )


@pytest.mark.parametrize(
    ("name", "truth", "message"),
    [
        ("integer", "x", "ground truth 'x' is not an integer (verifier 'integer')"),
        ("gsm8k", "x" * 50, f"ground truth '{'x' * 37}...' holds no number (verifier 'gsm8k')"),
        ("regex", "[", "ground truth is not a regular expression: unterminated character set at position 0 "),
    ],
)
def test_a_ground_truth_that_the_verifier_cannot_read_is_an_error(name: str, truth: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_row(name, (truth,), {})
    assert str(caught.value).startswith(message)


def test_the_launcher_can_check_data_without_the_runtime() -> None:
    code = (
        "import sys, grpo.data.tasks, grpo.data.jsonl, grpo.rewards.registry\n"
        "print(sorted({'torch', 'ray', 'transformers', 'jinja2', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
