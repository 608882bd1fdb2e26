"""Which chip a place of the logical mesh is: the assignment that `jax.make_mesh` makes. Standard library only.

JAX lays logical axes along the torus from the last (the busiest) to the first, each over as many whole torus axes as
make up its size, and splits torus axes where none do (jax/_src/mesh_utils.py, jax 0.10.2). On the smallest slices it
follows a ring of chips instead.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from labkit.errors import LabError
from labkit.hardware import Slice

Coords = tuple[int, ...]
# The rings that JAX follows, as positions in its list of devices (the cores of a chip, then x, then y, then z).
_RINGS = {
    ("v2", 8): (0, 1, 2, 3, 6, 7, 4, 5),
    ("v3", 8): (0, 1, 2, 3, 6, 7, 4, 5),
    ("v5e", 4): (0, 1, 3, 2),
    ("v6e", 4): (0, 1, 3, 2),
    ("v5e", 8): (0, 1, 2, 3, 7, 6, 5, 4),
    ("v6e", 8): (0, 1, 2, 3, 7, 6, 5, 4),
}
_RING_4X4 = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4)


def across_slices(sizes: Mapping[str, int], slices: int) -> dict[str, int]:
    """How many slices each axis goes over: the first that they divide takes all.

    Raises:
        LabError: no axis that they divide.
    """
    for chosen, size in sizes.items():
        if size % slices == 0:
            return {name: slices if name == chosen else 1 for name in sizes}
    raise LabError(
        f"{slices} slices do not divide any of {', '.join(f'{n}={s}' for n, s in sizes.items())}.",
        hint=f"Give the outermost axis (dp or fsdp) a size that is a multiple of {slices}.",
    )


def physical_shape(of: Slice) -> tuple[int, ...]:
    """The torus of one slice, with the devices of a chip as a last axis where a chip has two."""
    return of.shape if of.chip.devices == 1 else (*of.shape, of.chip.devices)


def coordinates(of: Slice, shape: tuple[int, ...], index: Sequence[int]) -> Coords:
    """Where in its slice the device at `index` of a logical mesh of `shape` (of one slice) is, a chip's core last."""
    ring = _ring(of, shape)
    physical = physical_shape(of)
    if ring is None:
        return _in_assignment(assignment(physical, shape), index)
    flat = 0
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i
    return _device(of, ring[flat])


def _device(of: Slice, position: int) -> Coords:
    """The coordinates of a device by its position in `jax.devices()`; v2 and v3 list host by host, of 2 x 2 chips."""
    position, core = divmod(position, of.chip.devices)
    host = (2, 2) if of.chip.name in ("v2", "v3") else of.shape
    within, hosts = [], []
    for size in host:
        position, i = divmod(position, size)
        within.append(i)
    for size, dim in zip(host, of.shape, strict=True):
        position, i = divmod(position, dim // size)
        hosts.append(i)
    found = tuple(h * size + i for h, size, i in zip(hosts, host, within, strict=True))
    return found if of.chip.devices == 1 else (*found, core)


def _ring(of: Slice, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of devices that JAX has for this slice and mesh, None where it assigns torus axes."""
    count = of.devices // of.slices
    name = of.chip.name
    if name in ("v2", "v3") and count > 8:
        tray = _RINGS[name, 8]
        return tuple(i - i % 8 + tray[i % 8] if shape[-1] == 8 else i for i in range(count))
    if name == "tpu7x" and count % 8 == 0 and count <= 32 and max(of.shape[:2]) <= 2:
        return tuple(i - i % 8 + _RINGS["v3", 8][i % 8] for i in range(count))
    if name in ("v5e", "v6e") and of.shape == (4, 4) and max(shape) == count:
        return _RING_4X4
    return _RINGS.get((name, count))


@functools.lru_cache(maxsize=4096)
def assignment(physical: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """How much of each torus axis each logical axis takes: one row a torus axis, one column a logical axis."""
    whole = _whole_axes(physical, shape)
    if whole is not None:
        return whole
    columns: list[tuple[int, ...]] = [(1,) * len(physical)] * len(shape)
    for logical in reversed(range(len(shape))):
        taken = tuple(math.prod(column[p] for column in columns) for p in range(len(physical)))
        columns[logical] = max(_splits(physical, taken, shape[logical]), key=lambda z: _preference(z, physical, taken))
    return tuple(zip(*columns, strict=True))


def _whole_axes(physical: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """The assignment that splits no torus axis, if JAX finds one: most torus axes first."""
    free = list(physical)
    rows = [[1] * len(shape) for _ in physical]
    for logical in reversed(range(len(shape))):
        chosen = _first_subset(free, shape[logical])
        if chosen is None and shape[logical] > 1:
            return None
        for p in chosen or ():
            rows[p][logical], free[p] = physical[p], 0
    return tuple(map(tuple, rows))


def _first_subset(free: list[int], size: int) -> tuple[int, ...] | None:
    for count in range(len(free), 0, -1):
        for subset in itertools.combinations(range(len(free)), count):
            if math.prod(free[p] for p in subset) == size:
                return subset
    return None


def _splits(physical: tuple[int, ...], taken: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """All ways to make `size` of what is left of the torus axes."""
    left = [dim // used for dim, used in zip(physical, taken, strict=True)]
    divisors = [[d for d in range(1, dim + 1) if dim % d == 0 and size % d == 0] for dim in left]
    return [z for z in itertools.product(*divisors) if math.prod(z) == size]


def _preference(z: tuple[int, ...], physical: tuple[int, ...], taken: tuple[int, ...]) -> tuple[object, ...]:
    """JAX's order of splits: whole torus axes, more of them, and then its two rules for ties."""
    whole = [part for part, dim in zip(z, physical, strict=True) if part == dim]
    overlapping = math.prod(part for part, used in zip(z, taken, strict=True) if used > 1)
    return math.prod(whole), sum(part > 1 for part in whole), overlapping, z


def _in_assignment(parts: tuple[tuple[int, ...], ...], index: Sequence[int]) -> Coords:
    """Each logical index is a number whose digits run over the torus axes; a torus coordinate collects its digits."""
    found = [0] * len(parts)
    for logical, i in enumerate(index):
        digits = []
        for row in reversed(parts):
            i, digit = divmod(i, row[logical])
            digits.append(digit)
        for p, digit in enumerate(reversed(digits)):
            found[p] = found[p] * parts[p][logical] + digit
    return tuple(found)
