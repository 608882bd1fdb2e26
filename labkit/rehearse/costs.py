"""What a compiled module does on one device: cycles, FLOPs and HBM traffic, loop bodies as often as they run.

The compiler's own `cost_analysis` counts a loop's body once, and its `optimal_seconds` can be negative.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from labkit.records import Record
from labkit.rehearse.hlo import HBM, Instruction, Module
from labkit.rehearse.traffic import KINDS

FREE = frozenset("parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id".split())
# What names a fusion: the first of these that it contains.
_TELLING = ("convolution", "dot", "sort", "scatter", "gather", "dynamic-update-slice", "reduce", "transpose", "copy")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([0-9,]*)\}")
_LAYER = re.compile(r"\b(?:layers?|blocks?)[_./](\d+)")
_OFFLOAD = re.compile(r"\b(?:gather|scatter|all-gather|all-reduce|reduce-scatter|all-to-all)_offload|sparsecore", re.I)


@dataclasses.dataclass(frozen=True)
class Op(Record):
    """One instruction: its kind, the cycles of all its runs together, and what of the traced function it is."""

    name: str
    kind: str
    runs: int
    cycles: int
    flops: float
    hbm_bytes: int
    op_name: str
    layer: int | None

    def __str__(self) -> str:
        times = f"{self.runs} x " if self.runs > 1 else ""
        return f"{self.cycles / 1e3:,.0f} k cycles: {times}{self.kind} {self.name} ({self.op_name or 'unnamed'})"


def ops(module: Module) -> tuple[Op, ...]:
    """What runs, in the order of the schedule; what costs nothing is left out."""
    shapes = {name: {x.name: x for x in lines} for name, lines in module.computations.items()}
    owner = {id(x): name for name, lines in module.computations.items() for x in lines}
    return tuple(
        _op(module, x, times, shapes[owner[id(x)]])
        for x, times in module.walk()
        if x.opcode not in FREE and not x.opcode.endswith("-done") and x.opcode not in ("while", "call", "conditional")
    )


def _op(module: Module, x: Instruction, times: int, around: dict[str, Instruction]) -> Op:
    layer = _LAYER.search(x.op_name)
    return Op(
        name=x.name,
        kind=kind(module, x),
        runs=times,
        cycles=times * (x.cycles or 0),
        flops=times * flops(module, x, around),
        hbm_bytes=times * hbm_bytes(x, around),
        op_name=x.op_name,
        layer=int(layer[1]) if layer else None,
    )


def kind(module: Module, x: Instruction) -> str:
    """The opcode; of a fusion, what decides its cost: a convolution (the matrix unit), a gather; else elementwise."""
    opcode = x.opcode.removesuffix("-start")
    if opcode != "fusion":
        return "convolution" if opcode == "dot" else opcode
    inside = {y.opcode.removesuffix("-start") for y in _inside(module, x)}
    telling = next((one for one in (*_TELLING, *KINDS) if one in inside), "elementwise")
    return "convolution" if telling == "dot" else telling


def offloads(module: Module) -> int:
    """How many instructions the compiler gave to SparseCores, as far as their names and attributes say so."""
    return sum(bool(_OFFLOAD.search(x.name) or _OFFLOAD.search(x.attributes[:2000])) for x, _ in module.walk())


def flops(module: Module, x: Instruction, around: dict[str, Instruction]) -> float:
    """FLOPs of the matrix products of one run of an instruction, those inside a fusion included."""
    if x.opcode == "fusion":
        return sum(
            _product(y, {z.name: z for z in module.computations[name]})
            for name in x.called
            for y in module.computations.get(name, ())
        )
    return _product(x, around)


def _product(x: Instruction, around: dict[str, Instruction]) -> float:
    """2 x outputs x what each of them sums over."""
    if x.opcode == "dot":
        left, found = around[x.operands[0]].shapes[0], _CONTRACTED.search(x.attributes)
        summed = math.prod(left.dims[int(i)] for i in found[1].split(",") if i) if found else 1
        return 2.0 * math.prod(x.shapes[0].dims) * summed
    return _convolution(x, around) if x.opcode == "convolution" else 0.0


def _convolution(x: Instruction, around: dict[str, Instruction]) -> float:
    """2 x rows x features of both sides x the pairs of output and kernel positions that meet an input, not padding.

    The compiler writes products with a head dimension as convolutions over the heads, most of which is padding.
    """
    base, kernel = (around[name].shapes[0] for name in x.operands[:2])
    labels = _LABELS.search(x.attributes)
    if labels is None:
        return 0.0
    sides = zip(labels.groups(), (base, kernel, x.shapes[0]), strict=True)
    of_base, of_kernel, of_result = (dict(zip(text, shape.dims, strict=True)) for text, shape in sides)
    windows = _windows(x.attributes)
    pairs = math.prod(
        _meetings(of_base[d], of_result[d], windows[i]) for i, d in enumerate(sorted(c for c in of_base if c.isdigit()))
    )
    return 2.0 * of_result["b"] * of_kernel["i"] * of_kernel["o"] * pairs


def _windows(attributes: str) -> list[dict[str, str]]:
    """The window of each spatial dimension: its size, stride, pad and dilations, where they are not the usual ones."""
    found = _WINDOW.search(attributes)
    fields = [field.split("=") for field in found[1].split()] if found else []
    columns = [[(name, value) for value in text.split("x")] for name, text in fields]
    return [dict(row) for row in zip(*columns, strict=True)]


def _meetings(size: int, outputs: int, window: dict[str, str]) -> int:
    """How many pairs of output and kernel position lie on an input."""
    stride, low = int(window.get("stride", 1)), int(window.get("pad", "0_0").split("_")[0])
    spread, apart = int(window.get("lhs_dilate", 1)), int(window.get("rhs_dilate", 1))
    at = np.arange(outputs)[:, None] * stride + np.arange(int(window["size"])) * apart - low
    return int(((at >= 0) & (at <= (size - 1) * spread) & (at % spread == 0)).sum())


def hbm_bytes(x: Instruction, around: dict[str, Instruction]) -> int:
    """Bytes that one run reads from and writes to HBM: operands and results that lie there, with their padding.

    A fusion that carries a collective along hands the collective's buffers through, and counts as nothing here.
    """
    if "async_collective" in x.attributes or x.opcode.removesuffix("-start") in KINDS:
        return 0
    read = [shape for name in x.operands if name in around for shape in around[name].shapes]
    return sum(shape.padded_bytes for shape in (*read, *x.shapes) if shape.space == HBM and shape.dims)


def by_kind(some: Iterable[Op]) -> dict[str, int]:
    """Cycles by kind, the largest first."""
    found: Counter[str] = Counter()
    for op in some:
        found[op.kind] += op.cycles
    return {name: cycles for name, cycles in found.most_common() if cycles}


def by_layer(some: Iterable[Op]) -> dict[int, int]:
    """Cycles by layer of the model, forward and backward together; what has no layer in its name is under -1."""
    found: dict[int, int] = defaultdict(int)
    for op in some:
        found[-1 if op.layer is None else op.layer] += op.cycles
    return dict(sorted(found.items()))


def _inside(module: Module, x: Instruction) -> Iterable[Instruction]:
    return (y for name in x.called for y in module.computations.get(name, ()))
