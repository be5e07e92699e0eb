"""Whatever a file holds, reading it gives problems or settings, never another exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config.load import load
from grpo.config.schema import SECTIONS
from grpo.config.schema_base import keys_of
from grpo.errors import UserError
from grpo.plan.describe import facts
from grpo.plan.resolve import find_problems, resolve

EXAMPLES = Path(__file__).parents[2] / "configs" / "examples"
VALUES = [
    *(
        "0",
        "-1",
        "1",
        "3",
        "1e400",
        "nan",
        "-inf",
        "1.5",
        "true",
        '""',
        '"x"',
        "'\\u0000'",
        '"é\\n"',
        "[]",
        "[[]]",
        "{}",
    ),
    *("[1, 'a']", "[{}]", "{a = 1}", "2020-01-01", "9223372036854775807", "-9223372036854775808", "9" * 400, "0x7f"),
    *("1e-300", "1e300", "4611686018427387904", '"builtin:"', '"../.."', "[" * 400 + "]" * 400, '"' + "x" * 9999 + '"'),
]


def mutate(text: str, random: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(random.randint(1, 4)):
        index = random.randrange(len(lines))
        line = lines[index]
        kind = random.randrange(8)
        if kind == 0:
            del lines[index]
        elif kind == 1:
            lines.insert(random.randrange(len(lines)), line)
        elif kind == 2 and "=" in line:
            lines[index] = f"{line.partition('=')[0]}= {random.choice(VALUES)}"
        elif kind == 3 and line:
            at = random.randrange(len(line))
            lines[index] = line[:at] + random.choice("x\"'[]{}=#.\\é\x00 ") + line[at + 1 :]
        elif kind == 4 and line:
            at = random.randrange(len(line))
            lines[index] = line[:at] + line[at + 1 :]
        elif kind == 5:
            section, info = random.choice([item for item in SECTIONS.items() if not item[1].named])
            name = random.choice(list(keys_of(info.model)))
            lines.append(f"[{section}]\n{name} = {random.choice(VALUES)}")
        elif kind == 6:
            lines.insert(index, random.choice(["[inference]", "[[data.tasks]]", "[[core]]", "[a.b.c]", "[data.tasks]"]))
        else:
            section, info = random.choice([item for item in SECTIONS.items() if not item[1].named])
            name = random.choice(list(keys_of(info.model)))
            lines.insert(0, f"{section}.{name} = {random.choice(VALUES)}")
        if not lines:
            break
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_file_is_resolved_or_refused(write: Callable[[str], Path], seed: int) -> None:
    draw = random.Random(seed)
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))]
    read = refused = 0
    for _ in range(150):
        text = mutate(draw.choice(texts), draw)
        try:
            settings, problems = find_problems(load(write(text)))
        except UserError as error:
            assert len(str(error).splitlines()) == 1
            refused += 1
            continue
        for problem in problems:
            assert len(str(problem).splitlines()) == 1, str(problem)
        if not problems:
            facts(resolve(settings).job)
        read += 1
    assert read > 30 and refused > 30
