"""The collectives of a compiled program: which mesh axes they run over, how often, and how many bytes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from labkit.records import Record
from labkit.rehearse.hlo import Instruction, Module

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_LISTED = re.compile(r"replica_groups=\{(\{[0-9,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[0-9,{}]*\})\}")
_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclasses.dataclass(frozen=True)
class Collective(Record):
    """All collectives of one kind over the same mesh axes in one run of the program.

    `axes` are mesh axes, such as ("tp",); `devices` is the size of a group. `bytes` is the data of one device's result
    (of a reduce-scatter: its operand), summed over all of them. `overlapped` are those that run beside computation.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    count: int
    bytes: int
    overlapped: int

    def __str__(self) -> str:
        over = " x ".join(self.axes) or "unknown axes"
        return f"{self.count} {self.kind} over {over} ({self.devices}): {self.bytes / 2**20:,.1f} MiB"


def collectives(module: Module, axes: Mapping[str, int]) -> tuple[Collective, ...]:
    """The program's collectives, grouped by kind and mesh axes; those in loops as often as the loops run.

    An asynchronous collective appears in the text where it starts and where it ends: its channel counts once.
    """
    found: dict[tuple[str, tuple[str, ...], int], list[tuple[int, int, bool]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for x, times, inside in _instructions(module):
        kind = x.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        channel = _CHANNEL.search(x.attributes)
        key = (kind, channel[1] if channel else x.name)
        if key in seen:
            continue
        seen.add(key)
        group = group_of(x.attributes, math.prod(axes.values()))
        over = axes_of(group, axes)
        found[kind, over, len(group)].append((times, _bytes(module, x, kind, len(group)), inside))
    return tuple(
        Collective(
            kind,
            over,
            devices,
            sum(times for times, _, _ in some),
            sum(times * size for times, size, _ in some),
            sum(times for times, _, inside in some if inside),
        )
        for (kind, over, devices), some in sorted(found.items())
    )


def group_of(attributes: str, devices: int) -> tuple[int, ...]:
    """The devices, numbered along the mesh, that device 0 exchanges data with, itself included."""
    if named := _NAMED.search(attributes):
        sizes = [int(part.split("=")[1]) for part in named[1].split(",")]
        names = [part.split("=")[0].strip("'\" ") for part in named[1].split(",")]
        over = [name.strip("'\" ") for name in named[2].split(",")]
        index = np.arange(math.prod(sizes)).reshape(sizes)
        return _along(index, [names.index(name) for name in over])
    if iota := _IOTA.search(attributes):
        shape, dims = (tuple(map(int, text.split(","))) for text in (iota[1], iota[2]))
        order = tuple(map(int, iota[3].split(","))) if iota[3] else tuple(range(len(dims)))
        groups = np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(shape)
        return next(tuple(map(int, row)) for row in groups.reshape(-1, shape[-1]) if 0 in row)
    if listed := _LISTED.search(attributes):
        groups_ = [tuple(map(int, part.split(","))) for part in re.findall(r"\{([0-9,]+)\}", listed[1])]
        return next((group for group in groups_ if 0 in group), groups_[0])
    if pairs := _PAIRS.search(attributes):
        return _ring([tuple(map(int, part.split(","))) for part in re.findall(r"\{([0-9,]+)\}", pairs[1])])
    return tuple(range(devices))  # no groups: all devices


def axes_of(group: tuple[int, ...], axes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that a group of devices varies over; () if the group is no whole axes of the mesh."""
    index = np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))
    names = [name for name, size in axes.items() if size > 1]
    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            if set(_along(index, [list(axes).index(name) for name in some])) == set(group):
                return some
    return ()


def _along(index: np.ndarray, over: list[int]) -> tuple[int, ...]:
    """The devices that differ from the first one in these mesh dimensions only."""
    picked = index[tuple(slice(None) if i in over else 0 for i in range(index.ndim))]
    return tuple(int(i) for i in picked.reshape(-1))


def _ring(pairs: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The devices that data of device 0 passes through when it is sent on and on."""
    follow = {pair[0]: pair[1] for pair in pairs}
    ring, at = [0], follow.get(0, 0)
    while at not in ring:
        ring.append(at)
        at = follow.get(at, 0)
    return tuple(ring)


def _instructions(module: Module) -> Iterator[tuple[Instruction, int, bool]]:
    """What runs, with how often and whether it lies within a fusion, where collectives run beside computation."""
    for x, times in module.walk():
        yield x, times, False
        if x.opcode == "fusion":
            for name in x.called:
                yield from ((inner, times, True) for inner in module.computations.get(name, ()))


def _bytes(module: Module, x: Instruction, kind: str, devices: int) -> int:
    shapes = x.shapes[len(x.shapes) // 2 :] if x.opcode.endswith("-start") and len(x.shapes) > 1 else x.shapes
    size = sum(shape.bytes for shape in shapes)
    return size * devices if kind == "reduce-scatter" else size
