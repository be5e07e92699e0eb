"""The named tasks: prompts that need no files. Imports nothing heavy, so that the launcher can check a run against it.

A task's prompts are split into training and held-out ones by a hash of the question, not by a seed: whatever seeds and
counts two runs use, no prompt that one trains on is held out in the other.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from types import MappingProxyType
from typing import Literal

from grpo.data.row import Message, RawRow
from grpo.errors import UserError, did_you_mean

Split = Literal["train", "eval"]

HELD_OUT_ONE_IN = 5


@dataclass(frozen=True)
class TaskInfo:
    """A named task.

    Attributes:
        name: as ``[[data.tasks]]`` names it.
        verifier: name in the verifier registry.
        description: for people.
        train_capacity, eval_capacity: how many training and held-out prompts there are. Written down, because ``plan``
            needs them and counting costs as much as building all rows.
        all_rows: every row of a split, in a fixed order.
    """

    name: str
    verifier: str
    description: str
    train_capacity: int
    eval_capacity: int
    all_rows: Callable[[Split], tuple[RawRow, ...]]

    def rows(self, split: Split, count: int, seed: int) -> tuple[RawRow, ...]:
        """Draw ``count`` different rows of a split, in an order that ``seed`` decides.

        The rows for a smaller count are the first of those for a larger one, on every platform and Python version.

        Raises:
            UserError: the split has fewer rows than that.
        """
        rows = self.all_rows(split)
        if count > len(rows):
            raise UserError(
                f"{split}_count is {count}, but task {self.name!r} has {len(rows)} {split} prompts",
                fix=f"Set {split}_count to at most {len(rows)}.",
            )
        # Only a hash defines this order: random.shuffle may change between Python versions.
        return tuple(sorted(rows, key=lambda row: (_hash(f"{seed}:{row.id}"), row.id))[:count])


def task_info(name: str) -> TaskInfo:
    """Return the task ``name``; an unknown name is a :class:`~grpo.errors.UserError`."""
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}", fix=did_you_mean(name, TASKS, label="Tasks"))
    return TASKS[name]


def is_held_out(question: str) -> bool:
    """Whether a question such as ``addition:12+34`` is in the held-out split."""
    return _hash(question) % HELD_OUT_ONE_IN == 0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class _Arithmetic:
    """Questions ``a{symbol}b=`` over two operands in 0..``largest``."""

    name: str
    symbol: str
    largest: int
    answer: Callable[[int, int], int]

    def row(self, a: int, b: int) -> RawRow:
        question = f"{a}{self.symbol}{b}"
        return RawRow(
            id=f"{self.name}/{question}",
            prompt=(Message("user", f"{question}="),),
            ground_truth=str(self.answer(a, b)),
            verifier="integer",
            source=self.name,
            where=f"task {self.name}, {question}",
        )


@cache
def _arithmetic_rows(task: _Arithmetic, split: Split) -> tuple[RawRow, ...]:
    """Return the rows of a split; computed at first use, because importing this module must cost nothing."""
    pairs = product(range(task.largest + 1), repeat=2)
    wanted = split == "eval"
    return tuple(task.row(a, b) for a, b in pairs if is_held_out(f"{task.name}:{a}{task.symbol}{b}") == wanted)


_ADDITION = _Arithmetic("addition", "+", 99, operator.add)
_MULTIPLICATION = _Arithmetic("multiplication", "*", 12, operator.mul)

TASKS: Mapping[str, TaskInfo] = MappingProxyType(
    {
        "addition": TaskInfo(
            name="addition",
            verifier="integer",
            description="a+b= with a and b from 0 to 99",
            train_capacity=7986,
            eval_capacity=2014,
            all_rows=partial(_arithmetic_rows, _ADDITION),
        ),
        "multiplication": TaskInfo(
            name="multiplication",
            verifier="integer",
            description="a*b= with a and b from 0 to 12",
            train_capacity=135,
            eval_capacity=34,
            all_rows=partial(_arithmetic_rows, _MULTIPLICATION),
        ),
    }
)
