"""The chips of a slice as a torus: who is linked to whom, and how each axis of a mesh lies on it.

Standard library only. Which axes wrap around is the slice's (`hardware.slice(...).wraparound`). Rings and times follow
the usual model (J. Austin et al., How to Scale Your Model, 2025, chapters TPUs and Sharding).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from labkit import hardware
from labkit.hardware import Slice
from labkit.mesh import layout
from labkit.records import Record


@dataclass(frozen=True)
class Ring(Record):
    """How one mesh axis lies on the machine.

    `slices` is how many slices it goes over, by the data centre network; within one slice it joins `cores` devices of
    each of `chips` chips. `shape` is how many places along each torus axis these have, `strides` apart; `wraps` says
    where their ends are linked. `hops` is the longest way from a member to the next one, `steps` the way that data goes
    to reach all, in links. `links` is how many links of each chip its collectives keep busy: two along an axis that
    wraps, one along one that does not, a part of one that other rings share.
    """

    axis: str
    size: int
    slices: int
    cores: int
    chips: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    wraps: tuple[bool, ...]
    hops: int
    steps: int
    links: float

    def __str__(self) -> str:
        if self.size == 1:
            return f"{self.axis}=1"
        along = [f"{size} along {name}" for size, name in zip(self.shape, "xyz", strict=False) if size > 1]
        if math.prod(self.shape) != self.chips:
            along = [f"{self.chips} chips on a ring through all"]
        along += [f"{self.cores} cores of a chip"] if self.cores > 1 else []
        along += [f"{self.slices} slices"] if self.slices > 1 else []
        apart = f", neighbours {self.hops} link{'s' if self.hops != 1 else ''} apart" if self.hops else ""
        return f"{self.axis}={self.size}: {' x '.join(along)}{', wrapped' if any(self.wraps) else ''}{apart}"


@dataclass(frozen=True)
class Topology(Record):
    """The chips of one slice: `coordinates` of each (x runs first), `links` as pairs of their numbers.

    `wraparound_links` are those of `links` that join the ends of an axis. `bisection_bandwidth` is that of the thinnest
    cut into halves, one way, in B/s; None for one chip, or where the links' speed is not known. With axes, `rings` says
    how each lies on the torus, and `places` gives the mesh index of each device, chip by chip.
    """

    slice: str
    shape: tuple[int, ...]
    wraparound: tuple[bool, ...]
    slices: int
    coordinates: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, int], ...]
    wraparound_links: tuple[tuple[int, int], ...]
    bisection_bandwidth: float | None
    axes: dict[str, int]
    rings: tuple[Ring, ...]
    places: tuple[tuple[tuple[int, ...], ...], ...]

    def __str__(self) -> str:
        grid = "x".join(map(str, self.shape))
        wrapped = [name for name, wraps in zip("xyz", self.wraparound, strict=False) if wraps]
        text = f"{self.slice}: {grid} chips, {len(self.links)} links"
        text += f", wrapped along {' and '.join(wrapped)}" if wrapped else ", no wraparound"
        if self.bisection_bandwidth:
            text += f", bisection {self.bisection_bandwidth / 1e9:,.0f} GB/s"
        return "; ".join([text, *(str(ring) for ring in self.rings if ring.size > 1)])


def topology(slice_name: str | Slice, axes: Mapping[str, int] | None = None) -> Topology:
    """The chips and links of a slice (of several, of each), and where a mesh of `axes` would put its devices.

    Raises:
        LabError: an unknown slice, axes that do not make its number of devices.
    """
    of = hardware.slice(slice_name) if isinstance(slice_name, str) else slice_name
    return _topology(of.name, tuple((axes or {}).items()))


@functools.lru_cache(maxsize=256)
def _topology(slice_name: str, axes: tuple[tuple[str, int], ...]) -> Topology:
    of, sizes = hardware.slice(slice_name), dict(axes)
    number = {chip: i for i, chip in enumerate(_chips(of.shape))}
    plain, wrapped = _links(of, number)
    rings = tuple(ring(of, sizes, name) for name in sizes)
    return Topology(
        slice=of.name,
        shape=of.shape,
        wraparound=of.wraparound,
        slices=of.slices,
        coordinates=tuple(number),
        links=plain + wrapped,
        wraparound_links=wrapped,
        bisection_bandwidth=_bisection(of),
        axes=sizes,
        rings=rings,
        places=_places(of, sizes, number) if sizes else (),
    )


def ring(of: Slice, sizes: Mapping[str, int], axis: str) -> Ring:
    """How one axis of a mesh lies on a slice."""
    return _ring(of.name, tuple(sizes.items()), axis)


@functools.lru_cache(maxsize=8192)
def _ring(slice_name: str, sizes: tuple[tuple[str, int], ...], axis: str) -> Ring:
    of = hardware.slice(slice_name)
    across = layout.across_slices(dict(sizes), of.slices)
    shape = tuple(size // across[name] for name, size in sizes)
    column = [name for name, _ in sizes].index(axis)
    members = _members(of, shape, column, (0,) * len(shape))
    spread = [sorted({m[p] for m in members}) for p in range(len(members[0]))]
    cores = len(spread.pop()) if of.chip.devices > 1 else 1
    lengths = tuple(map(len, spread))
    strides = tuple(s[1] - s[0] if len(s) > 1 else 1 for s in spread)
    wraps = tuple(
        wraps and n * stride == dim and n > 2
        for wraps, n, stride, dim in zip(of.wraparound, lengths, strides, of.shape, strict=True)
    )
    parts = list(zip(lengths, strides, wraps, strict=True))
    chips, hops = len(members) // cores, _hops(of, members)
    if math.prod(lengths) == chips:
        links = sum((2 if w else 1) / stride for n, stride, w in parts if n > 1)
        steps = sum((n // 2 if w else n - 1) * stride for n, stride, w in parts)
    else:
        links, steps = _links_through_cuts(of, shape, column), (chips - 1) * hops
    size = dict(sizes)[axis]
    return Ring(axis, size, across[axis], cores, chips, lengths, strides, wraps, hops, steps, links)


def _members(of: Slice, shape: tuple[int, ...], column: int, start: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Where the devices of one ring are: those whose mesh index differs from `start` in one column alone."""
    indices = ((*start[:column], i, *start[column + 1 :]) for i in range(shape[column]))
    return [layout.coordinates(of, shape, index) for index in indices]


def _hops(of: Slice, members: list[tuple[int, ...]]) -> int:
    """The longest way between neighbours, from the last back to the first too."""
    pairs = itertools.pairwise([*members, members[0]])
    return max(sum(map(_distance, a, b, of.shape, of.wraparound)) for a, b in pairs)


def _links_through_cuts(of: Slice, shape: tuple[int, ...], column: int) -> float:
    """Links that each chip has for rings that are no blocks, as on the smallest slices: the narrowest cut decides.

    Each ring sends both ways round, half of its data each way; a ring of two sends all to the other.
    """
    starts = itertools.product(*(range(1 if i == column else size) for i, size in enumerate(shape)))
    rings = [_members(of, shape, column, start) for start in starts]
    crossing: dict[tuple[int, int], float] = {}
    for members in rings:
        pairs = itertools.pairwise([*members, members[0]])
        for a, b in pairs:
            for p in range(len(of.shape)):
                for cut in range(min(a[p], b[p]), max(a[p], b[p])):
                    crossing[p, cut] = crossing.get((p, cut), 0.0) + 0.5
    chips = math.prod(of.shape)
    return min(chips / of.shape[p] / used for (p, _), used in crossing.items())


def _distance(a: int, b: int, dim: int, wraps: bool) -> int:
    straight = abs(a - b)
    return min(straight, dim - straight) if wraps else straight


def _chips(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All chips of a torus, x first."""
    return [chip[::-1] for chip in itertools.product(*(range(dim) for dim in reversed(shape)))]


def _links(
    of: Slice, number: Mapping[tuple[int, ...], int]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Links between neighbours, and those that join the ends of an axis."""
    plain, wrapped = [], []
    for chip, i in number.items():
        for p, (dim, wraps) in enumerate(zip(of.shape, of.wraparound, strict=True)):
            following = (*chip[:p], (chip[p] + 1) % dim, *chip[p + 1 :])
            if chip[p] + 1 < dim:
                plain.append((i, number[following]))
            elif wraps and dim > 2:
                wrapped.append((i, number[following]))
    return tuple(plain), tuple(wrapped)


def _bisection(of: Slice) -> float | None:
    """Links that the thinnest cut across an axis meets, times what one carries one way, in B/s."""
    chips = math.prod(of.shape)
    cuts = [
        chips // dim * (2 if wraps and dim > 2 else 1)
        for dim, wraps in zip(of.shape, of.wraparound, strict=True)
        if dim > 1
    ]
    speed = of.chip.ici_link_bandwidth
    return min(cuts) * speed if cuts and speed else None


def _places(
    of: Slice, sizes: Mapping[str, int], number: Mapping[tuple[int, ...], int]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each chip of the first slice, the mesh indices of its devices."""
    across = layout.across_slices(sizes, of.slices)
    shape = tuple(size // across[name] for name, size in sizes.items())
    found: list[list[tuple[int, ...]]] = [[] for _ in number]
    for index in itertools.product(*map(range, shape)):
        place = layout.coordinates(of, shape, index)
        found[number[place[: len(of.shape)]]].append(index)
    return tuple(map(tuple, found))
