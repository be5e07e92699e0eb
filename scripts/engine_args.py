"""Write the argument lists of the pinned engines into the repository, from their wheels, without installing them.

    pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
        --platform manylinux_2_28_x86_64 --platform manylinux_2_34_x86_64 vllm==0.26.0 sglang==0.5.17
    python scripts/engine_args.py vllm-*.whl sglang-*.whl
    python scripts/engine_args.py --check vllm-*.whl sglang-*.whl    exit 1 if a list is stale; writes nothing

Each list, ``src/grpo/config/engine_args_NAME.json``, holds every public argument of the engine's own dataclass
(``vllm.engine.arg_utils.EngineArgs``, ``sglang.srt.server_args.ServerArgs``) with the kinds of value that it takes, its
default and its choices, as far as the source states them, and the model architectures that the engine generates text
with. The source is parsed, never imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "src" / "grpo" / "config"
SOURCES = {
    "vllm": ("vllm/engine/arg_utils.py", "EngineArgs", "vllm/config/"),
    "sglang": ("sglang/srt/server_args.py", "ServerArgs", "sglang/srt/server_args.py"),
}
PLAIN = {"int": "int", "float": "float", "str": "str", "bool": "bool", "None": "null", "NoneType": "null"}
SEQUENCES = {"list", "List", "set", "Set", "tuple", "Tuple", "Sequence"}
MAPPINGS = {"dict", "Dict", "Mapping"}
UNKNOWN = object()


@dataclass
class Kinds:
    """What an annotation allows: kinds of TOML value, and the choices if every text or number must be one of them."""

    kinds: set[str] = field(default_factory=set)
    choices: list[Any] = field(default_factory=list)
    open: bool = False  # whether values beside the choices are allowed

    def join(self, other: Kinds) -> None:
        """Allow also what ``other`` allows."""
        self.kinds |= other.kinds
        self.choices += [choice for choice in other.choices if choice not in self.choices]
        self.open |= other.open


class Names:
    """Assignments and classes of the parsed files, by name."""

    def __init__(self, sources: list[str]) -> None:
        self.values: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for source in sources:
            for node in ast.parse(source).body:
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name] = node
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.values.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                    self.values.setdefault(node.target.id, node.value)

    def fields(self, name: str) -> list[ast.AnnAssign]:
        """Return the fields of a class, in order."""
        return [node for node in self.classes[name].body if isinstance(node, ast.AnnAssign)]

    def kinds(self, node: ast.expr | None) -> Kinds:
        """Return what an annotation allows; what is not understood allows anything."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.kinds(ast.parse(node.value, mode="eval").body)
            return Kinds({"null"}) if node.value is None else Kinds({"any"}, open=True)
        if isinstance(node, ast.BinOp):
            both = self.kinds(node.left)
            both.join(self.kinds(node.right))
            return both
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(node.id if isinstance(node, ast.Name) else node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            return self._subscript(node.value.id, node.slice)
        return Kinds({"any"}, open=True)

    def _named(self, name: str) -> Kinds:
        if name in PLAIN:
            return Kinds({PLAIN[name]}, open=name != "None")
        if name in SEQUENCES:
            return Kinds({"list"})
        if name in MAPPINGS:
            return Kinds({"dict"})
        if name in self.values:
            return self.kinds(self.values[name])
        if name in self.classes:  # a configuration object is given as a table, an enumeration as a text
            bases = {base.id for base in self.classes[name].bases if isinstance(base, ast.Name)}
            return Kinds({"str"}, open=True) if {"Enum", "StrEnum"} & bases else Kinds({"dict"})
        return Kinds({"str" if name.endswith("Enum") else "any"}, open=True)

    def _subscript(self, name: str, inner: ast.expr) -> Kinds:
        items = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        if name in ("A", "Annotated"):
            return self.kinds(items[0])
        if name == "Optional":
            found = self.kinds(items[0])
            found.join(Kinds({"null"}))
            return found
        if name == "Union":
            found = Kinds()
            for item in items:
                found.join(self.kinds(item))
            return found
        if name == "Literal":
            return self._literal(items)
        if name in SEQUENCES:
            return Kinds({"list"})
        return Kinds({"dict"}) if name in MAPPINGS else Kinds({"any"}, open=True)

    def _literal(self, items: list[ast.expr]) -> Kinds:
        found = Kinds()
        for item in items:
            if isinstance(item, ast.Constant):
                found.join(Kinds({PLAIN[type(item.value).__name__]}, [item.value]))
            else:
                found.join(self.kinds(item))  # Literal["auto", OtherLiteral]
        return found

    def value(self, node: ast.expr | None) -> Any:
        """Return the value of a default, or UNKNOWN where the source only computes it."""
        if node is None:
            return UNKNOWN
        if isinstance(node, ast.Name) and node.id in self.values:
            return self.value(self.values[node.id])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._field_default(node.value.id, node.attr)
        if isinstance(node, ast.Call):
            return self._call(node)
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            return UNKNOWN
        return list(value) if isinstance(value, list | tuple) else UNKNOWN if isinstance(value, set) else value

    def _call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "get_field" and isinstance(node.args[0], ast.Name) and isinstance(node.args[1], ast.Constant):
            return self._field_default(node.args[0].id, str(node.args[1].value))
        if name in ("Field", "field"):
            default = next((item.value for item in node.keywords if item.arg == "default"), None)
            return self.value(default)
        return UNKNOWN

    def _field_default(self, owner: str, name: str) -> Any:
        if owner not in self.classes:
            return UNKNOWN
        found = [node for node in self.fields(owner) if isinstance(node.target, ast.Name) and node.target.id == name]
        return self.value(found[0].value) if found else UNKNOWN


def choices_of(names: Names, annotation: ast.expr) -> list[Any]:
    """Return the ``choices`` of an ``Arg(...)`` in an annotation, if there are any."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Arg":
            for item in node.keywords:
                if item.arg == "choices":
                    source = names.values.get(item.value.id) if isinstance(item.value, ast.Name) else item.value
                    try:
                        found = ast.literal_eval(source) if source is not None else []
                    except ValueError:
                        return []
                    return sorted(found, key=str) if isinstance(found, set) else list(found)
    return []


def arguments(names: Names, owner: str) -> dict[str, dict[str, Any]]:
    """Return every public argument of a dataclass: ``types``, and ``default`` and ``choices`` where they are known."""
    found: dict[str, dict[str, Any]] = {}
    for node in names.fields(owner):
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        if name.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            continue
        kinds = names.kinds(node.annotation)
        choices = choices_of(names, node.annotation) or ([] if kinds.open else kinds.choices)
        # What a TOML file cannot express, such as a class, is left out where something else is allowed too.
        entry: dict[str, Any] = {"types": sorted(kinds.kinds - {"null", "any"}) or ["any"]}
        default = names.value(node.value)
        if default is not UNKNOWN:
            entry["default"] = default
        if choices:
            entry["choices"] = [choice for choice in choices if choice is not None]
        found[name] = entry
    return dict(sorted(found.items()))


def architectures(engine: str, wheel: zipfile.ZipFile) -> list[str]:
    """Return the names of the model classes, as ``config.json`` has them, that generate text in an engine."""
    found: set[str] = set()
    if engine == "vllm":
        names = Names([wheel.read("vllm/model_executor/models/registry.py").decode("utf-8-sig")])
        for table in ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS"):
            source = names.values[table]
            assert isinstance(source, ast.Dict)
            found |= {str(key.value) for key in source.keys if isinstance(key, ast.Constant)}
    else:
        inside = [name for name in wheel.namelist() if name.startswith("sglang/srt/models/") and name.endswith(".py")]
        for name in inside:
            entry = Names([wheel.read(name).decode("utf-8-sig")]).values.get("EntryClass")
            found |= {node.id for node in ast.walk(entry) if isinstance(node, ast.Name)} if entry else set()
    return sorted(name for name in found if name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")))


def read_wheel(path: Path) -> tuple[str, str]:
    """Return the name of the engine and the text of its list, read from a wheel."""
    engine, version = path.name.split("-")[:2]
    main, owner, others = SOURCES[engine]
    with zipfile.ZipFile(path) as wheel:
        inner = [name for name in sorted(wheel.namelist()) if name.startswith(others) and name.endswith(".py")]
        names = Names([wheel.read(name).decode("utf-8-sig") for name in [*inner, *({main} - set(inner))]])
        models = architectures(engine, wheel)
    # One argument a line, so that a change of version is a readable diff.
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in arguments(names, owner).items())
    head = f'{{\n "engine": {json.dumps(engine)},\n "version": {json.dumps(version)},\n "arguments": {{\n'
    tail = ",\n".join(f"  {json.dumps(model)}" for model in models)
    return engine, f'{head}{lines}\n }},\n "architectures": [\n{tail}\n ]\n}}\n'


def main() -> int:
    """Write or check the lists of the wheels that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a list is stale")
    options = parser.parse_args()
    stale = 0
    for wheel in options.wheels:
        engine, text = read_wheel(wheel)
        path = TARGET / f"engine_args_{engine}.json"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            print(f"{path.name} is stale: run scripts/engine_args.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
