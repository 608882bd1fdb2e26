"""Who holds what: which device has which part of which array."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import plotly.graph_objects as go
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit import plots
from labkit.errors import LabError
from labkit.mesh.placement import _leaves
from labkit.models.sharding import check
from labkit.records import Record


@dataclass(frozen=True)
class Part(Record):
    """One device's part of an array: `index` holds (start, stop) of each dimension; `replica` 0 is the first copy."""

    device: int
    process: int
    index: tuple[tuple[int, int], ...]
    bytes: int
    replica: int

    def __str__(self) -> str:
        cut = ", ".join(f"{start}:{stop}" for start, stop in self.index)
        return f"device {self.device} holds [{cut}], {self.bytes:,} bytes"


@dataclass(frozen=True)
class Holding(Record):
    """One array and its parts, in the order of its mesh. `copies` is how often the whole of it is held."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    parts: tuple[Part, ...]
    copies: int

    @property
    def bytes(self) -> int:
        """Bytes of all parts, copies included."""
        return sum(part.bytes for part in self.parts)

    def __str__(self) -> str:
        times = "" if self.copies == 1 else f", {self.copies} copies"
        name = f"{self.path} " if self.path else ""
        return f"{name}{self.dtype}{list(self.shape)} as {self.spec} over {len(self.parts)} devices{times}"

    def _repr_html_(self) -> str:
        columns = ("device", "process", "part", "bytes", "copy")
        rows = [(p.device, p.process, _cut(p), f"{p.bytes:,}", p.replica) for p in self.parts]
        return _table(str(self), columns, rows)


@dataclass(frozen=True)
class Holdings(Record):
    """All arrays of a tree, and the bytes that each device holds of them."""

    arrays: tuple[Holding, ...]
    device_bytes: dict[int, int]

    def __getitem__(self, path: str) -> Holding:
        """The array whose path is, or ends with, `path`."""
        met = [a for a in self.arrays if a.path == path] or [a for a in self.arrays if a.path.endswith(path)]
        if not met:
            raise LabError(f"There is no array {path!r}.", hint=f"The first is {self.arrays[0].path}.")
        return met[0]

    def __str__(self) -> str:
        held = sorted(self.device_bytes.values())
        return f"{len(self.arrays)} arrays on {len(held)} devices, {held[0]:,} to {held[-1]:,} bytes on each"

    def _repr_html_(self) -> str:
        columns = ("array", "dtype", "shape", "sharding", "a device's part", "copies")
        rows = [(a.path, a.dtype, list(a.shape), a.spec, f"{a.parts[0].bytes:,} bytes", a.copies) for a in self.arrays]
        return _table(str(self), columns, rows)


def inspect(array_or_tree: Any) -> Holding | Holdings:
    """Who holds what of one array, or of all arrays of a model, an optimizer or any tree.

    Also of other processes' devices, and of abstract arrays that have a sharding: nothing is fetched.
    """
    if isinstance(array_or_tree, jax.Array | jax.ShapeDtypeStruct):
        return _holding("", array_or_tree)
    arrays = tuple(_holding(path, value) for path, value, _ in _leaves(array_or_tree))
    if not arrays:
        raise LabError("There is no JAX array in this tree.", hint="Give an array, a model, an optimizer or a state.")
    held: dict[int, int] = defaultdict(int)
    for part in (part for array in arrays for part in array.parts):
        held[part.device] += part.bytes
    return Holdings(arrays, dict(sorted(held.items())))


def inspect_as(array: Any, mesh: Mesh, axes: Sequence[Any]) -> Holding:
    """Who would hold what, were `array` (or an abstract one) sharded by these mesh axes, one for each dimension.

    Raises:
        LabError: an axis that the mesh lacks or that is used twice, a dimension that does not divide.
    """
    check("the array", tuple(array.shape), tuple(axes), mesh)
    return _holding("", jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, P(*axes))))


def _holding(path: str, value: Any) -> Holding:
    sharding = value.sharding
    if sharding is None:
        raise LabError(f"{path or 'This array'} is abstract and has no sharding.", hint="Call shard_model first.")
    seen: dict[Any, int] = defaultdict(int)
    parts = []
    for device, index in sharding.devices_indices_map(value.shape).items():
        cut = tuple(slice_.indices(size)[:2] for slice_, size in zip(index, value.shape, strict=True))
        size = value.dtype.itemsize
        for start, stop in cut:
            size *= stop - start
        parts.append(Part(device.id, device.process_index, cut, size, seen[cut]))
        seen[cut] += 1
    spec = str(sharding.spec) if isinstance(sharding, NamedSharding) else "one device"
    return Holding(path, tuple(value.shape), str(value.dtype), spec, tuple(parts), max(seen.values()))


def figure(holding: Holding) -> go.Figure:
    """The array as a rectangle, cut along (at most) two dimensions, each part coloured by the devices that hold it."""
    down, right = _shown(holding)
    groups: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for part in holding.parts:
        groups[part.index].append(part.device)
    drawn = plots.figure(
        _title(holding), _axis(holding, right), _axis(holding, down) if down is not None else "one dimension"
    )
    for i, (index, devices) in enumerate(groups.items()):
        x = index[right] if holding.shape else (0, 1)
        y = index[down] if down is not None else (0, 1)
        _rectangle(drawn, x, y, f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}", i)
    drawn.update_yaxes(autorange="reversed", showticklabels=down is not None).update_layout(showlegend=False)
    return drawn


def _shown(holding: Holding) -> tuple[int | None, int]:
    """The dimensions that the picture cuts, vertical and horizontal: those that are split, then the last."""
    cuts = [len({part.index[i] for part in holding.parts}) for i in range(len(holding.shape))]
    if len(cuts) < 2:
        return None, 0
    first, second = sorted(sorted(range(len(cuts)), key=lambda i: (cuts[i], i))[-2:])
    return first, second


def _title(holding: Holding) -> str:
    distinct = len({part.index for part in holding.parts})
    if distinct == 1:
        where = "on one device" if len(holding.parts) == 1 else f"whole on each of {len(holding.parts)} devices"
    else:
        where = f"in {distinct} parts" + (f", {holding.copies} copies of each" if holding.copies > 1 else "")
    return f"{holding.path or holding.dtype + str(list(holding.shape))}: {where}"


def _axis(holding: Holding, dimension: int) -> str:
    return f"index along dimension {dimension} of {list(holding.shape)}"


def _rectangle(drawn: go.Figure, x: tuple[int, int], y: tuple[int, int], label: str, i: int) -> None:
    drawn.add_scatter(
        x=[x[0], x[1], x[1], x[0], x[0]], y=[y[0], y[0], y[1], y[1], y[0]],
        fill="toself", fillcolor=plots.color("", i), opacity=0.75, mode="lines",
        line={"color": "#ffffff", "width": 2}, name=label, hovertext=f"{label}: [{y[0]}:{y[1]}, {x[0]}:{x[1]}]",
        hoverinfo="text",
    )  # fmt: skip
    drawn.add_annotation(
        x=(x[0] + x[1]) / 2, y=(y[0] + y[1]) / 2, text=label.replace("devices ", "").replace("device ", ""),
        showarrow=False, font={"color": "#ffffff", "size": 14}, bgcolor="rgba(0,0,0,0.55)",
    )  # fmt: skip


def _cut(part: Part) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in part.index) + "]"


def _table(caption: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr>"
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><caption style='text-align:left'>{html.escape(caption)}</caption>{head}{body}</table>"
