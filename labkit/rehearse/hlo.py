"""The optimized HLO of a compiled program, read from its text: computations in the order in which they run."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from labkit.errors import LabError

UNKNOWN_CYCLES = 2**63 - 1  # what the compiler writes where it has no estimate
DTYPE_BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "f4e2m1fn": 4, "f8e4m3fn": 8, "f8e5m2": 8, "f8e4m3b11fnuz": 8,
    "f8e4m3fnuz": 8, "f8e5m2fnuz": 8, "f8e4m3": 8, "f8e3m4": 8, "f8e8m0fnu": 8, "c64": 64, "token": 0, "opaque": 0,
}  # fmt: skip
_SCALAR = 24  # characters: longer literals are tables
HBM, VMEM = 0, 1  # memory spaces of a layout, S(n); the others hold semaphores and scalars
_ARRAY = re.compile(r"([a-z]+[0-9a-z]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?")
_TILE = re.compile(r"T((?:\([0-9,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_PARENTHESIS = re.compile(r"[()]")
_LINE = re.compile(r"\s*(ROOT )?%?([^\s=]+) = (.*)")
_HEAD = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|called_computations|branch_computations)=\{?((?:%[^\s,{}]+,? ?)+)"
)
_CONDITION = re.compile(r"condition=%?([^\s,]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array of an instruction's result; `layout` is the text within the braces."""

    dtype: str
    dims: tuple[int, ...]
    layout: str

    @property
    def space(self) -> int:
        """The memory space: `HBM`, `VMEM`, or another."""
        found = _SPACE.search(self.layout)
        return int(found[1]) if found else HBM

    @property
    def bytes(self) -> int:
        """Logical bytes."""
        return math.prod(self.dims) * DTYPE_BITS[self.dtype] // 8

    @property
    def padded_bytes(self) -> int:
        """Bytes with the padding of the layout's first tile, such as T(8,128)."""
        order = [int(i) for i in self.layout.partition(":")[0].split(",") if i]
        dims = [self.dims[i] for i in reversed(order)] if len(order) == len(self.dims) else list(self.dims)
        found = _TILE.search(self.layout)
        tile = [int(x) for x in found[1].split(")")[0].strip("(").split(",") if x.isdigit()] if found else []
        if len(tile) > len(dims):
            dims = [1] * (len(tile) - len(dims)) + dims
        for i, size in enumerate(reversed(tile), start=1):
            dims[-i] = -(-dims[-i] // size) * size
        return math.prod(dims) * DTYPE_BITS[self.dtype] // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: `name = shapes opcode(operands), attributes`. `cycles` is None where the compiler gives none.

    `literal` is the value of a scalar constant.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool
    literal: str = ""

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate of the time on one core."""
        found = _CYCLES.search(self.attributes)
        value = int(found[1]) if found else UNKNOWN_CYCLES
        return None if value == UNKNOWN_CYCLES else value

    @property
    def op_name(self) -> str:
        """Where in the traced function it comes from."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that it runs or applies."""
        return tuple(
            name.strip(" ,%")
            for found in _CALLED.finditer(self.attributes)
            for name in found[1].split(",")
            if name.strip()
        )

    @property
    def bytes(self) -> int:
        """Logical bytes of the whole result."""
        return sum(shape.bytes for shape in self.shapes)


@dataclasses.dataclass(frozen=True)
class Module:
    """A scheduled module: computations list their instructions in order, and `entry` names the one that runs."""

    name: str
    entry: str
    computations: dict[str, tuple[Instruction, ...]]

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        """The entry's instructions by name."""
        return {x.name: x for x in self.computations[self.entry]}

    def trips(self, loop: Instruction) -> int:
        """How often a while loop runs its body: what the compiler says, else what its condition counts up to from 0.

        1 if neither tells.
        """
        known, condition = _TRIPS.search(loop.attributes), _CONDITION.search(loop.attributes)
        if known or not condition:
            return int(known[1]) if known else 1
        lines = list(self._with_fused(condition[1]))
        limits = {x.literal for x in lines if x.opcode == "constant" and x.literal.isdigit()}
        counts = any(x.opcode == "compare" and "direction=LT" in x.attributes for x in lines)
        return int(limits.pop()) if counts and len(limits) == 1 else 1

    def _with_fused(self, computation: str) -> Iterator[Instruction]:
        for x in self.computations.get(computation, ()):
            yield x
            for name in x.called if x.opcode == "fusion" else ():
                yield from self._with_fused(name)

    def walk(self, computation: str | None = None, times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """The instructions that run on the core in order, with how often: loop bodies, calls and branches unfolded.

        Fusions are one instruction: what is inside them has no schedule of its own.
        """
        for x in self.computations[computation or self.entry]:
            yield x, times
            if x.opcode == "while":
                for name in x.called:
                    yield from self.walk(name, times * self.trips(x))
            elif x.opcode in ("call", "conditional", "async-start"):
                for name in x.called:
                    yield from self.walk(name, times)


def parse(text: str) -> Module:
    """Read `compiled.as_text()`.

    Raises:
        LabError: text that is no HLO module, or has a line or data type that this reader does not know.
    """
    if not text.startswith("HloModule "):
        raise LabError(f"This is no HLO module: it begins with {text[:40]!r}.", hint="Give compiled.as_text().")
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry, name = "", ""
    lines: list[Instruction] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and not line.startswith(" "):
            name, lines = head[2], []
            entry = name if head[1] else entry
        elif line.startswith("}"):
            computations[name] = tuple(lines)
        elif name and (found := _LINE.match(line)):
            lines.append(_instruction(found[2], found[3], bool(found[1])))
    if not entry:
        raise LabError("This HLO module has no ENTRY computation.", hint="The file may be truncated.")
    return Module(text.split(maxsplit=2)[1].strip(","), entry, computations)


def _instruction(name: str, rest: str, root: bool) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    opening = rest.find("(", end)
    closing = _closing(rest, opening)
    if opening < 0 or closing < 0:
        raise LabError(
            f"HLO instruction {name} could not be read: {rest[:80]!r}.", hint="A newer compiler may write it."
        )
    opcode, given = rest[end:opening].strip(), rest[opening + 1 : closing]
    operands = tuple(re.findall(r"%([^\s,()]+)", given)) if opcode != "constant" else ()
    literal = given if opcode == "constant" and len(given) < _SCALAR else ""
    return Instruction(name, opcode, shapes(rest[:end]), operands, rest[closing + 1 :], root, literal)


@functools.cache
def shapes(text: str) -> tuple[Shape, ...]:
    """All arrays of a shape or tuple of shapes."""
    found = []
    for dtype, dims, layout in _ARRAY.findall(re.sub(r"/\*.*?\*/", "", text)):
        if dtype not in DTYPE_BITS:
            raise LabError(
                f"HLO has data type {dtype!r}, which this reader does not know.", hint="Add it to DTYPE_BITS."
            )
        found.append(Shape(dtype, tuple(int(x.lstrip("<=")) for x in dims.split(",") if x), layout))
    return tuple(found)


def _closing(text: str, opening: int) -> int:
    """The index of the parenthesis that closes the one at `opening`; -1 if there is none."""
    depth = 0
    for found in _PARENTHESIS.finditer(text, max(opening, 0)):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    return -1
