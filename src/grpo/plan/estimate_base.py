"""A number with its arithmetic, and what estimates assume about the hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo.errors import UserError, did_you_mean

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
"""Of one element, by the name that torch has for its type."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of an estimate.

    Attributes:
        name: what it is, ``learner.gradients``: a name of the machine-readable output.
        label: the same for people.
        value: in ``unit``; None where it cannot be known from here, and ``note`` then says why.
        unit: ``bytes``, ``tokens``, ``s`` and so on.
        formula: in words, with the operations written out: ``4 bytes x parameters``.
        inputs: of the formula, by the words used in it.
        note: a source, or what the number leaves out; ``assumed:`` begins one that rests on an assumption.
    """

    name: str
    label: str
    value: int | float | None
    unit: str
    formula: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the parts as JSON values."""
        parts = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "formula": self.formula,
            "inputs": dict(self.inputs),
        }
        return parts | ({"note": self.note} if self.note else {})

    @property
    def amount(self) -> str:
        """The value with its unit: ``8.4 GiB``."""
        return "unknown" if self.value is None else show(self.value, self.unit)

    @property
    def arithmetic(self) -> str:
        """Formula, inputs and note: ``4 bytes x parameters (parameters 2,255,190,528)``."""
        known = {name: value for name, value in self.inputs.items() if value is not None}
        inputs = ", ".join(f"{name} {show(value)}" for name, value in known.items())
        text = f"{self.formula} ({inputs})" if self.formula and inputs else self.formula or inputs
        return f"{text}; {self.note}" if text and self.note else text or self.note

    def text(self) -> str:
        """Return ``8.4 GiB = 4 bytes x parameters (parameters 2,255,190,528)``."""
        return f"{self.amount} = {self.arithmetic}" if self.formula else f"{self.amount}; {self.arithmetic}"


@dataclass(frozen=True, slots=True)
class Part:
    """Quantities that belong together, under a title."""

    title: str
    quantities: tuple[Quantity, ...]


def show(value: Any, unit: str = "") -> str:
    """Return a number for people: bytes in binary units, large integers with commas, four digits of others."""
    if unit == "bytes":
        return _bytes(value)
    if unit == "s":
        return _duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if value == 1 and unit.endswith("s"):
        unit = unit.removesuffix("s")
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} {unit}".rstrip()


def _bytes(value: float) -> str:
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return (
        f"{size:.0f} {units[0]}"
        if units[0] == "B"
        else f"{size:.3g} {units[0]}"
        if size < 1000
        else (f"{size:.0f} {units[0]}")
    )


def _duration(value: float) -> str:
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as its data sheet has it: memory in bytes, bytes/s of it, dense bfloat16 operations/s (no sparsity)."""

    name: str
    memory: int
    bandwidth: float
    flops: float


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu("a100", 80 * 10**9, 2.039e12, 312e12),
    "h100": Gpu("h100", 80 * 10**9, 3.35e12, 989e12),
    "h200": Gpu("h200", 141 * 10**9, 4.8e12, 989e12),
    "b200": Gpu("b200", 180 * 10**9, 8.0e12, 2.25e15),
}
"""NVIDIA's data sheets, SXM modules: A100 80GB, H100, H200, B200 (HGX)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What estimates assume where nothing is measured.

    Attributes:
        gpu: of every node.
        flops_share: of the GPU's peak that training reaches. bandwidth_share: of its memory bandwidth that decoding
            reaches.
        engine_memory: share of the GPU's memory that an engine may take (vLLM's gpu_memory_utilization and sglang's
            mem_fraction_static override it).
    """

    gpu: Gpu = GPUS["h100"]
    flops_share: float = 0.35
    bandwidth_share: float = 0.5
    engine_memory: float = 0.9


def hardware(name: str) -> Hardware:
    """Return the assumptions about a GPU.

    Raises:
        UserError: no such GPU is known.
    """
    if (gpu := GPUS.get(name.lower())) is None:
        raise UserError(f"no GPU {name!r} is known", where="--gpu", fix=did_you_mean(name.lower(), GPUS, label="GPUs"))
    return Hardware(gpu)
