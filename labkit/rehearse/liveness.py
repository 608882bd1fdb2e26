"""What lies in HBM while a step runs: the buffers of a scheduled module, from where they are made to their last use.

The module's order is the order in which it runs, so that its text tells which buffers are alive together. A buffer in
the compiler's own assignment can be a little larger (alignment, fragmentation), and arguments that are overwritten in
place are counted once, as arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable

from labkit.records import Record
from labkit.rehearse.failures import Buffer
from labkit.rehearse.hlo import HBM, Instruction, Module, Shape

# Their result lies where an operand lies.
_IN_PLACE = frozenset("get-tuple-element bitcast dynamic-update-slice add-dependency async-update".split())
_INDEX = re.compile(r"\bindex=(\d+)")
_ALIASING = re.compile(r"\{(\d+)\}: \((\d+), \{\}")
_NOTHING = frozenset("parameter constant partition-id replica-id after-all".split())
_NESTED = frozenset("while call conditional".split())
KINDS = ("arguments", "gathered weights", "kept long", "working")


@dataclasses.dataclass(frozen=True)
class Moment(Record):
    """HBM of a device while one instruction runs, by kind, in bytes."""

    instruction: str
    op_name: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        """All kinds together."""
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
    lines = module.computations[module.entry]
    changes = _changes(lives(lines), len(lines))
    alive = dict.fromkeys(KINDS, 0) | {"arguments": arguments}
    moments = []
    for i, x in enumerate(lines):
        for kind, size in changes[i].items():
            alive[kind] += size
        if x.opcode not in _NOTHING:
            inner = {"working": alive["working"] + _inner(module, x)} if x.opcode in _NESTED else {}
            moments.append(Moment(x.name, x.op_name, alive | inner))
    return tuple(moments)


def _changes(some: Iterable[_Life], count: int) -> list[dict[str, int]]:
    """At each place, how many bytes of each kind come (or go, which shows one place later)."""
    made: list[dict[str, int]] = [defaultdict(int) for _ in range(count + 2)]
    for life in some:
        made[life.first][life.kind] += life.bytes
        made[life.last + 1][life.kind] -= life.bytes
    return made


def largest(module: Module, count: int = 12) -> tuple[Buffer, ...]:
    """The largest buffers that are alive when most is held."""
    lines = module.computations[module.entry]
    every = lives(lines)
    alive, best, peak = 0, 0, 0
    changes = _changes(every, len(lines))
    for i in range(len(lines)):
        alive += sum(changes[i].values())
        if alive > peak:
            best, peak = i, alive
    there = sorted((x for x in every if x.first <= best <= x.last), key=lambda x: -x.bytes)
    return tuple(Buffer(x.bytes, x.written, x.maker.op_name or x.maker.name) for x in there[:count])


def _inner(module: Module, x: Instruction) -> int:
    """The most that a loop's body or a branch holds beyond what it is given."""
    return max((_peak(module, name) for name in x.called), default=0)


def _peak(module: Module, name: str) -> int:
    lines = module.computations.get(name, ())
    changes = _changes(lives(lines), len(lines))
    alive = peak = 0
    for i, x in enumerate(lines):
        alive += sum(changes[i].values())
        peak = max(peak, alive + (_inner(module, x) if x.opcode in _NESTED else 0))
    return peak


def lives(lines: tuple[Instruction, ...]) -> list[_Life]:
    """The HBM buffers that a computation makes, each until the last use of anything that lies in it."""
    place = {x.name: i for i, x in enumerate(lines)}
    within: list[_Parts] = []
    last: dict[_Made, int] = {}
    for i, x in enumerate(lines):
        given = [within[place[name]] for name in x.operands if name in place]
        within.append(_parts(i, x, given))
        for made in frozenset().union(*(part for parts in (*given, within[i]) for part in parts)):
            last[made] = i
    if lines:
        last |= dict.fromkeys(frozenset().union(*within[-1]), len(lines) - 1)
    return [_life(lines, made, end) for made, end in last.items()]


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
        own = frozenset({(i, j)}) if shape.space == HBM and shape.dims else frozenset()
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
    return _Life(shape.padded_bytes, maker, shape, made[0], end, _kind(maker, made[0], end, len(lines)))


def _kind(maker: Instruction, first: int, last: int, count: int) -> str:
    if "all-gather" in maker.opcode or "all-gather" in maker.name:
        return "gathered weights"
    return "kept long" if last - first > count // 10 else "working"
