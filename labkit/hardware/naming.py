"""Slices: which names and shapes exist, how many chips, hosts and devices each has. Standard library only."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

from labkit.errors import LabError, nearest
from labkit.hardware.facts import GIB, Chip, _data, chip
from labkit.records import Record

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Slice(Record):
    """Chips that a job gets: one torus of `shape`, or `slices` equal ones joined by the data centre network.

    `chips`, `hosts` and `devices` count all of them together; `devices` is what `jax.devices()` lists at run time.
    `wraparound` says for each torus axis whether its last chip is linked to its first. `host_shape` is the part of
    the torus that one host holds: a v5e or v6e slice of 8 chips is one 8-chip host, larger ones are made of 4-chip
    hosts. `topology` is the name that libtpu compiles one torus for.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int
    chips: int
    hosts: int
    devices: int
    wraparound: tuple[bool, ...]
    host_shape: tuple[int, ...]
    topology: str

    @property
    def chips_per_host(self) -> int:
        """Chips that one host's processes see."""
        return self.chips // self.hosts

    @property
    def usable_hbm_bytes(self) -> int:
        """HBM that programs may use, over all chips."""
        return self.chips * self.chip.usable_hbm_bytes

    def __str__(self) -> str:
        grid = "x".join(map(str, self.shape))
        many = f"{self.slices} slices of " if self.slices > 1 else ""
        hosts = f"{self.hosts} host{'s' if self.hosts > 1 else ''}"
        chips = f"{self.chips} chip{'s' if self.chips > 1 else ''}"
        return (
            f"{self.name}: {many}{grid} {self.chip.title}, {chips} on {hosts}, "
            f"{self.usable_hbm_bytes / GIB:,.0f} GiB usable HBM"
        )


def slice(name: str) -> Slice:
    """A slice by any of its names.

    Accelerator types ("v5p-8", "v5litepod-16", "v6e-8", "tpu7x-8"), topologies ("v5p:2x2x1"), machine types
    ("ct6e-standard-8t", "tpu7x-standard-4t"), and several slices joined by the data centre network ("2xv5e-16").
    v2, v3, v4, v5p and tpu7x types count TensorCores, two a chip; v5e and v6e types count chips.

    Raises:
        LabError: a name that does not exist, with the nearest that do.
    """
    text = name.strip().lower()
    joined = re.fullmatch(r"(\d+)x([a-z].*)", text)
    count, single = (int(joined[1]), joined[2]) if joined else (1, text)
    if count < 1:
        raise LabError(f"{name!r} asks for no slice.", hint="Write the number of slices first, for example 2xv5e-16.")
    of, shape, host = _parse(name, single)
    return _make(of, shape, count, host)


@functools.cache
def slices(chip_name: str | None = None) -> tuple[str, ...]:
    """The canonical names of all legal slices, of one chip or of all TPUs, small to large."""
    wanted = [chip(chip_name).name] if chip_name else list(_data()["slices"]["shapes"])
    if wanted[0] not in _data()["slices"]["shapes"]:
        raise LabError(f"{wanted[0]} does not come in slices.", hint="Give a TPU: v2 to tpu7x.")
    return tuple(_canonical(chip(of), shape) for of in wanted for shape in legal_shapes(of))


@functools.cache
def legal_shapes(chip_name: str) -> tuple[Shape, ...]:
    """The torus shapes that slices of a chip can have, small to large."""
    entry = _data()["slices"]["shapes"][chip(chip_name).name]
    shapes = [_shape(text) for text in entry["list"]]
    if "cubes_up_to" in entry:
        steps = [range(4, limit + 1, 4) for limit in _shape(entry["cubes_up_to"])]
        cubes = [dims for dims in itertools.product(*steps) if list(dims) == sorted(dims)]
        shapes += [dims for dims in cubes if math.prod(dims) <= entry["max_chips"]]
    return tuple(sorted(shapes, key=lambda dims: (math.prod(dims), sum(dims))))


def _parse(name: str, text: str) -> tuple[Chip, Shape, Shape | None]:
    """The chip and shape that a name without a slice count means, and the host's shape where the name fixes it."""
    machine = re.fullmatch(r"([a-z0-9]+-[a-z]+)-(\d+)t", text)
    if machine and machine[1] in _data()["slices"]["machine_types"]:
        return _from_machine(name, machine[1], int(machine[2]))
    topology = re.fullmatch(r"([a-z0-9 ]+)[:-](\d+x\d+(?:x\d+)?)", text)
    if topology:
        of = _tpu(name, topology[1])
        shape = _shape(topology[2])
        if shape not in legal_shapes(of.name):
            raise _unknown(name, of, math.prod(shape))
        return of, shape, None
    kind = re.fullmatch(r"([a-z0-9 ]+)-(\d+)", text)
    if not kind:
        examples = ", ".join(f"{known}-8" for known in ("v5e", "v5p", "v6e"))
        raise LabError(f"There is no slice {name!r}.", hint=f"Write a chip and a size, for example {examples}.")
    of = _tpu(name, kind[1])
    count = int(kind[2])
    found = [s for s in legal_shapes(of.name) if math.prod(s) * _counted_per_chip(of) == count]
    if not found:
        raise _unknown(name, of, count // _counted_per_chip(of))
    return of, found[0], None


def _from_machine(name: str, machine: str, chips: int) -> tuple[Chip, Shape, Shape]:
    entry = _data()["slices"]["machine_types"][machine]
    if chips not in entry["chips"]:
        valid = ", ".join(f"{machine}-{n}t" for n in entry["chips"])
        raise LabError(f"There is no machine type {name!r}.", hint=f"Nearest: {valid}.")
    shape = next(s for s in legal_shapes(entry["chip"]) if math.prod(s) == chips)
    return chip(entry["chip"]), shape, shape


def _tpu(name: str, word: str) -> Chip:
    known = {made: entry for made, entry in _data()["chips"].items() if entry["kind"] == "tpu"}
    words = [w.lower() for made, entry in known.items() for w in (made, *entry["aliases"])]
    if word not in words:
        raise LabError(
            f"There is no slice {name!r}: {word!r} is not a TPU.", hint=f"Nearest: {nearest(word, list(known))}."
        )
    return chip(word)


def _unknown(name: str, of: Chip, chips: int) -> LabError:
    counts = sorted(legal_shapes(of.name), key=lambda s: (abs(math.prod(s) - chips), sum(s)))[:3]
    unit = "TensorCores, two a chip" if _counted_per_chip(of) == 2 else "chips"
    names = ", ".join(_canonical(of, s) for s in sorted(counts, key=math.prod))
    return LabError(f"There is no slice {name!r}: {of.name} names count {unit}.", hint=f"Nearest: {names}.")


def _make(of: Chip, shape: Shape, count: int, host: Shape | None) -> Slice:
    per_slice = math.prod(shape)
    host = host or _host_shape(of, shape)
    single = _canonical(of, shape)
    return Slice(
        name=single if count == 1 else f"{count}x{single}",
        chip=of,
        shape=shape,
        slices=count,
        chips=count * per_slice,
        hosts=count * per_slice // math.prod(host),
        devices=count * per_slice * of.devices,
        wraparound=_wraparound(of, shape),
        host_shape=host,
        topology=f"{of.name}:{'x'.join(map(str, shape))}",
    )


def _host_shape(of: Chip, shape: Shape) -> Shape:
    """The chips of one host: all of a slice that fits one, else four in a square."""
    if math.prod(shape) <= (of.chips_per_host or 1):
        return shape
    return (2, 2, 1)[: len(shape)]


def _wraparound(of: Chip, shape: Shape) -> tuple[bool, ...]:
    rule: dict[str, Any] = _data()["slices"]["wraparound"][of.name]
    if rule.get("cubes"):
        return (all(dim % 4 == 0 for dim in shape),) * len(shape)
    return tuple(dim == rule["axis"] for dim in shape)


def _canonical(of: Chip, shape: Shape) -> str:
    """The accelerator type of a shape; where several shapes have one chip count, only the most cubic has a type."""
    first = next(s for s in legal_shapes(of.name) if math.prod(s) == math.prod(shape))
    if first != shape:
        return f"{of.name}:{'x'.join(map(str, shape))}"
    return f"{of.name}-{math.prod(shape) * _counted_per_chip(of)}"


def _counted_per_chip(of: Chip) -> int:
    cores = of.name in _data()["slices"]["accelerator_types"]["counts_cores"]["value"]
    return of.cores if cores else 1


def _shape(text: str) -> Shape:
    return tuple(int(dim) for dim in text.split("x"))
