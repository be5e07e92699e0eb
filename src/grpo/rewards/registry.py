"""The verifiers by name. Imports no torch: ``grpo validate`` checks names, options and ground truths with it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from grpo.errors import UserError, did_you_mean
from grpo.rewards.numbers import GSM8K, INTEGER
from grpo.rewards.text import REGEX, STRING_MATCH
from grpo.rewards.verifier import VerifierInfo, VerifierOptions

VERIFIERS: Mapping[str, VerifierInfo[Any]] = MappingProxyType(
    {info.name: info for info in (INTEGER, GSM8K, STRING_MATCH, REGEX)}
)


def verifier_info(name: str) -> VerifierInfo[Any]:
    """Return the registry entry of ``name``; an unknown name is a :class:`~grpo.errors.UserError`."""
    if name not in VERIFIERS:
        raise UserError(f"unknown verifier {name!r}", fix=did_you_mean(name, VERIFIERS, label="Verifiers"))
    return VERIFIERS[name]


def parse_options(info: VerifierInfo[Any], options: Mapping[str, Any]) -> VerifierOptions:
    """Return the typed options of a row; a wrong one is a :class:`~grpo.errors.UserError`."""
    try:
        return info.options.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = info.options.model_fields
        if first["type"] == "extra_forbidden":
            fix = did_you_mean(key, known, label="Its options") if known else "It has no options."
            raise UserError(f"verifier {info.name!r} has no option {key!r}", fix=fix) from None
        raise UserError(f"option {key!r} of verifier {info.name!r}: {first['msg']}") from None


def check_row(name: str, ground_truth: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Check that a row can be graded at all: known verifier, right options, a ground truth that the verifier can read.

    Raises:
        UserError: with what is wrong, without a place.
    """
    info = verifier_info(name)
    problem = info.problem(ground_truth, parse_options(info, options))
    if problem:
        raise UserError(f"{problem} (verifier {name!r})")
