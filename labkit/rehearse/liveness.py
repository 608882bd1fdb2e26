"""What lies in HBM while a step runs: the buffers of a scheduled module, from where they are made to their last use.

The module's order is the order in which it runs, so that its text tells which buffers are alive together. The peak
that the compiler reports (`peak_memory_in_bytes`) is of buffers in HBM and in VMEM together: a moment knows both. What
it lays out for `temporaries` is larger than what is alive at once, by fragmentation; a program is refused by that.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from labkit.records import Record
from labkit.rehearse.failures import Buffer
from labkit.rehearse.hlo import HBM, VMEM, Instruction, Module, Shape

# Their result lies where an operand lies.
_IN_PLACE = frozenset("get-tuple-element bitcast dynamic-update-slice add-dependency async-update".split())
_INDEX = re.compile(r"\bindex=(\d+)")
_ALIASING = re.compile(r"\{(\d+)\}: \((\d+), \{\}")
_NOTHING = frozenset("parameter constant partition-id replica-id after-all".split())
_NESTED = frozenset("while call conditional".split())
ON_CHIP = "on chip (VMEM)"
KINDS = ("arguments", "gathered weights", "kept long", "working")  # in HBM


@dataclasses.dataclass(frozen=True)
class Moment(Record):
    """Memory of a device while one instruction runs, by kind, in bytes: `KINDS` in HBM, and `ON_CHIP`."""

    instruction: str
    op_name: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        """All that is in HBM."""
        return _hbm(self.bytes)

    @property
    def everywhere(self) -> int:
        """HBM and VMEM together, as the compiler counts its peak."""
        return sum(self.bytes.values())

    def __str__(self) -> str:
        return f"{self.total / 2**30:.2f} GiB at {self.op_name or self.instruction}"


@dataclasses.dataclass(frozen=True)
class _Life:
    """A buffer: bytes, the instruction that makes it, and from which place to which it is alive, both included."""

    bytes: int
    maker: Instruction
    shape: Shape
    first: int
    last: int
    kind: str

    @property
    def written(self) -> str:
        """The shape as HLO writes it."""
        return f"{self.shape.dtype}[{','.join(map(str, self.shape.dims))}]"


def timeline(module: Module, arguments: int) -> tuple[Moment, ...]:
    """The bytes alive at every instruction of the entry computation; `arguments` are there all the time."""
    return tuple(
        Moment(x.name, x.op_name, {**alive, "arguments": arguments})
        for x, alive in _alive(module, module.entry)
        if x.opcode not in _NOTHING
    )


def largest(module: Module, count: int = 12) -> tuple[Buffer, ...]:
    """The largest buffers in HBM that are alive when most is held there."""
    in_hbm = [life for life in lives(module.computations[module.entry]) if life.kind != ON_CHIP]
    held = [_hbm(alive) for _, alive in _alive(module, module.entry)]
    best = held.index(max(held))
    there = sorted((x for x in in_hbm if x.first <= best <= x.last), key=lambda x: -x.bytes)
    return tuple(Buffer(x.bytes, x.written, x.maker.op_name or x.maker.name) for x in there[:count])


def _alive(module: Module, name: str) -> Iterator[tuple[Instruction, dict[str, int]]]:
    """Each instruction of a computation with the bytes alive by kind; a loop's or a branch's own are added."""
    lines = module.computations.get(name, ())
    changes: list[dict[str, int]] = [defaultdict(int) for _ in range(len(lines) + 1)]
    for life in lives(lines):
        changes[life.first][life.kind] += life.bytes
        changes[life.last + 1][life.kind] -= life.bytes
    alive = dict.fromkeys((*KINDS, ON_CHIP), 0)
    for x, change in zip(lines, changes, strict=False):
        alive = {kind: size + change.get(kind, 0) for kind, size in alive.items()}
        inner = _inner(module, x)
        yield x, {kind: size + inner.get(kind, 0) for kind, size in alive.items()}


def _inner(module: Module, x: Instruction) -> dict[str, int]:
    """What the body of a loop or a branch holds beyond what it is given, when it holds most."""
    if x.opcode not in _NESTED:
        return {}
    moments = (alive for name in x.called for _, alive in _alive(module, name))
    most = max(moments, key=_hbm, default=None)
    return {"working": _hbm(most), ON_CHIP: most[ON_CHIP]} if most else {}


def _hbm(alive: Mapping[str, int]) -> int:
    return sum(size for kind, size in alive.items() if kind != ON_CHIP)


def lives(lines: tuple[Instruction, ...]) -> list[_Life]:
    """The buffers that a computation makes, each until the last use of anything that lies in it."""
    place = {x.name: i for i, x in enumerate(lines)}
    within: list[_Parts] = []
    last: dict[_Made, int] = {}
    for i, x in enumerate(lines):
        given = [within[place[name]] for name in x.operands if name in place]
        within.append(_parts(i, x, given))
        for made in frozenset().union(*(part for parts in (*given, within[i]) for part in parts)):
            last[made] = i
    if lines:
        last |= dict.fromkeys({*frozenset().union(*within[-1]), *_reserved(lines)}, len(lines) - 1)
    return [_life(lines, made, end) for made, end in last.items()]


def _reserved(lines: tuple[Instruction, ...]) -> Iterator[_Made]:
    """What is fetched before the program begins has its place to the end: the run before fetches for the next one."""
    return ((i, 0) for i, x in enumerate(lines) if "cross_program_prefetch_index=" in x.attributes)


_Made = tuple[int, int]  # a buffer: the place of the instruction that makes it, and which part of its result it is
_Parts = tuple[frozenset[_Made], ...]  # of each part of a result, the buffers that it lies in


def _parts(i: int, x: Instruction, given: list[_Parts]) -> _Parts:
    """Where each part of an instruction's result lies: in an operand's place, or in a buffer of its own."""
    everything = frozenset().union(*(part for parts in given for part in parts))
    if x.opcode in _NOTHING:
        return (frozenset(),) * len(x.shapes)
    if x.opcode == "get-tuple-element" and (found := _INDEX.search(x.attributes)) and len(given[0]) > int(found[1]):
        return (given[0][int(found[1])],)
    if x.opcode in ("tuple", "optimization-barrier", "while"):
        return tuple(part for parts in given for part in parts)
    if x.opcode in _IN_PLACE or x.opcode.endswith("-done") or 'custom_call_target="ConcatBitcast"' in x.attributes:
        return (everything,) * len(x.shapes)
    kept = {int(o): int(n) for o, n in _ALIASING.findall(x.attributes)}
    handed = _handed_through(x)
    made: list[frozenset[_Made]] = []
    for j, shape in enumerate(x.shapes):
        own = frozenset({(i, j)}) if shape.space in (HBM, VMEM) and shape.dims else frozenset()
        if j in kept and kept[j] < len(given):
            made.append(frozenset().union(*given[kept[j]]))
        else:
            made.append(everything if j in handed else own)
    return tuple(made)


def _handed_through(x: Instruction) -> range:
    """Of what starts beside other work, the parts of the result that are its operands."""
    if not x.opcode.endswith("-start"):
        return range(0)
    return range(1, 2) if x.opcode == "copy-start" else range(len(x.operands))


def _life(lines: tuple[Instruction, ...], made: _Made, end: int) -> _Life:
    maker, shape = lines[made[0]], lines[made[0]].shapes[made[1]]
    return _Life(shape.padded_bytes, maker, shape, made[0], end, _kind(maker, shape, end - made[0], len(lines)))


def _kind(maker: Instruction, shape: Shape, lasts: int, count: int) -> str:
    if shape.space == VMEM:
        return ON_CHIP
    if "all-gather" in maker.opcode or "all-gather" in maker.name:
        return "gathered weights"
    return "kept long" if lasts > count // 10 else "working"
