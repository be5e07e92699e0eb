"""Whatever a file holds, plan and validate say yes or no: exit code 0 or 2, never a traceback."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import typer.main

from grpo.cli.main import app, guarded
from grpo.config.positions import key_lines
from grpo.config.schema import INNER, SECTIONS
from grpo.config.schema_base import keys_of

EXAMPLES = sorted((Path(__file__).parents[2] / "configs" / "examples").glob("*.toml"))
COMMAND = typer.main.get_command(app)
MUTANTS = 3000
CHUNKS = 10

SCALARS = (
    *("0", "-1", "1", "7", "1.5", "-0.0", "nan", "-nan", "inf", "-inf", "1e400", "1e-320", "true", "false"),
    *('""', '"x"', '"\\u0000"', '"é\\n"', '"🦜"', '"\\u202e"', "'''a\nb'''", '"builtin:"', '"builtin:../x"'),
    *('"../.."', '"/dev/null"', '"/proc/self/mem"', '"~"', '"\\ud7ff"', "2020-01-01", "07:32:00"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 400, "0xdead", "4611686018427387904"),
    *('"' + "x" * 5000 + '"', '"' + "/x" * 2000 + '"', "[" * 400 + "]" * 400),
)
NESTED = ("[]", "[[]]", "[{}]", "{}", "{ a = 1 }", "[1, 'a']", "{ a = { b = { c = [] } } }", "[nan]", '["", ""]')
LINES = (
    "[inference]",
    "[[data.tasks]]",
    "[[core]]",
    "[a.b.c]",
    "[data.tasks]",
    "[launch.slurm]",
    "[[launch]]",
    "[miles]",
)


def mutate(text: str, draw: random.Random) -> str:
    """Change one to three things of a file: lines gone, doubled; values and names of another kind or spelling."""
    lines = text.split("\n")
    for _ in range(draw.choice((1, 1, 2, 3))):
        index = draw.randrange(len(lines))
        line, kind = lines[index], draw.randrange(10)
        name, equals, _ = line.partition("=")
        if kind == 0 and len(lines) > 1:
            del lines[index]
        elif kind == 1:
            lines.insert(draw.randrange(len(lines)), line)
        elif kind == 2 and equals:
            lines[index] = f"{name}= {draw.choice(SCALARS)}"
        elif kind == 3 and equals:
            lines[index] = f"{name}= {draw.choice(NESTED)}"
        elif kind == 4 and line:
            at = draw.randrange(len(line))
            lines[index] = line[:at] + draw.choice("x\"'[]{}=#.\\é\x00\u202e ") + line[at + 1 :]
        elif kind == 5 and equals and len(name) > 2:
            at = draw.randrange(len(name) - 1)
            lines[index] = name[:at] + draw.choice(("", name[at] * 2, "_", "ø")) + line[at + 1 :]
        elif kind == 6:
            lines.insert(index, draw.choice(LINES))
        elif kind == 7:
            lines.insert(index, f"{draw.choice(list(SECTIONS))} = {draw.choice((*SCALARS, *NESTED))}")
        else:
            models = {section: info.model for section, info in SECTIONS.items() if not info.named}
            models |= {".".join(path): model for path, model in INNER.items()}
            section = draw.choice(list(models))
            value = draw.choice((*SCALARS, *NESTED))
            written = f"{section}.{draw.choice(list(keys_of(models[section])))} = {value}"
            lines.insert(0, written) if kind == 8 else lines.append(f"[{section}]\n{written.rpartition('.')[2]}")
    return "\n".join(lines)


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = guarded(lambda: COMMAND.main(list(arguments), prog_name="grpo", standalone_mode=True))
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.slow] if chunk >= CHUNKS // 2 else []) for chunk in range(CHUNKS)]
)
def test_a_mutated_example_gives_exit_0_or_2_and_one_line_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    folder = tmp_path / "a" / "b"  # the examples name ../../runs
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    draw, codes = random.Random(chunk), Counter[tuple[int, int]]()
    for number in range(chunk * MUTANTS // CHUNKS, (chunk + 1) * MUTANTS // CHUNKS):
        text = mutate(EXAMPLES[number % len(EXAMPLES)].read_text(), draw)
        Path("run.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
        found = []
        for command in ("plan", "validate"):
            code, _, err = run(command, "run.toml")
            assert code in (0, 2), f"{command}: {err}\n{text}"
            kinds = ("error: ", "warning: ", "cannot run yet: ", "run.toml: ")
            assert all(line.startswith(kinds) for line in err.splitlines()), f"{command}: {err}\n{text}"
            assert "Traceback" not in err and "internal error" not in err
            found.append(code)
        codes[found[0], found[1]] += 1
    assert min(codes[0, 0], codes[2, 2]) > 10  # both outcomes are met
    assert codes[2, 0] == 0  # what cannot be planned is no valid file
    assert list(tmp_path.rglob("*")) == [folder.parent, folder, folder / "run.toml"]


def edits(name: str) -> Iterator[str]:
    """Yield spellings one edit away: a letter gone, doubled, replaced, added, or two neighbours swapped."""
    for at in range(len(name)):
        yield name[:at] + name[at + 1 :]
        yield name[:at] + ("q" if name[at] != "q" else "z") + name[at + 1 :]
        yield name[:at] + name[at] + name[at:]
        if at and name[at - 1] != name[at]:
            yield name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]
    yield name + "x"
    yield "x" + name


def sections_of(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, section and name of every key of a file; names of a user's own aside."""
    for key, line in key_lines(path.read_text()).items():
        names = [part for part in key if isinstance(part, str)]
        if isinstance(key[-1], str) and len(names) > 1 and names[1] not in ("env", "secrets", "weka_mounts"):
            yield line, ".".join(names[:-1]), names[-1]


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.slow)], ids=["some edits", "all edits"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_misspelling_any_key_of_an_example_by_one_edit_names_the_right_key(
    path: Path, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo.config.load import load
    from grpo.config.settings import read_settings

    monkeypatch.chdir(tmp_path)
    lines, tried, draw = path.read_text().split("\n"), 0, random.Random(path.stem)
    for number, section, name in sections_of(path):
        if not lines[number - 1].startswith(name):
            continue  # the name stands in a header
        known = keys_of(INNER.get(tuple(section.split(".")), SECTIONS[section.partition(".")[0]].model))  # type: ignore[arg-type]
        wrongs = [wrong for wrong in edits(name) if wrong not in known]
        for wrong in wrongs if most is None else draw.sample(wrongs, most):
            changed = [*lines]
            changed[number - 1] = wrong + lines[number - 1][len(name) :]
            Path("run.toml").write_text("\n".join(changed))
            problems = [str(problem) for problem in read_settings(load(Path("run.toml")))[1]]
            said = [line for line in problems if line.startswith(f"run.toml:{number} ") and "Did you mean" in line]
            assert said and name in said[0].partition("Did you mean ")[2].rstrip("?").split(" or "), (
                f"{wrong}: {problems}"
            )
            tried += 1
    assert tried > (40 if most else 400)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_misspelling_a_section_of_an_example_by_one_edit_names_the_right_section(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo.config.load import load
    from grpo.config.settings import read_settings

    monkeypatch.chdir(tmp_path)
    text, tried = path.read_text(), 0
    for section in SECTIONS:
        if f"\n[{section}]\n" not in text:
            continue
        for wrong in edits(section):
            if wrong in SECTIONS:
                continue
            Path("run.toml").write_text(text.replace(f"\n[{section}]\n", f"\n[{wrong}]\n"))
            problems = [str(problem) for problem in read_settings(load(Path("run.toml")))[1]]
            said = [line for line in problems if " unknown section. Did you mean " in line.replace(":", "")]
            assert said and f"[{section}]" in said[0], f"{wrong}: {problems}"
            tried += 1
    assert tried > 100
