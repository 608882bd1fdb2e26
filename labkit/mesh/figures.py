"""Pictures of a plan: the torus beside the logical mesh, a chip's memory against its limit, the time of collectives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from labkit import plots
from labkit.hardware import GIB
from labkit.mesh.axes import written
from labkit.mesh.mesh_plan import MeshPlan
from labkit.mesh.objectives import KINDS
from labkit.mesh.torus import Topology

_LINK = "rgba(128,128,128,0.6)"
_LABELS_UP_TO = 64
_STUB = 0.4  # how far a link that wraps around sticks out
_FAINTEST = 0.25


def topology_figure(topology: Topology) -> go.Figure:
    """The torus of a slice, and beside it the logical mesh, where there is one.

    A device is filled in the colour of the first mesh axis that is larger than one, and ringed in that of the second;
    the darker, the higher its index there. Links that wrap around are stubs. Of several slices one is shown.
    """
    title = str(topology).split(";")[0] if not topology.axes else _title(topology)
    drawn = plots.figure(title, "x (chip)", "y (chip)", height=440)
    solid = not _is_flat(topology)
    draw = _draw_solid if solid else _draw_flat
    draw(drawn, topology)
    if topology.axes:
        _draw_logical(drawn, topology)
    left = [0.0, 0.54] if topology.axes else [0.0, 1.0]
    if solid:
        camera = {"eye": {"x": 0.9, "y": -1.9, "z": 0.85}}
        drawn.update_layout(scene={"domain": {"x": left}, "camera": camera, **_scene_axes(topology)})
    else:
        wide, high = _flat(topology.shape)
        drawn.update_xaxes(domain=left, tick0=0, dtick=_tick(wide), selector=0)
        drawn.update_yaxes(tick0=0, dtick=_tick(high), scaleanchor="x", selector=0)
    return drawn.update_layout(showlegend=False)


def memory_figure(plan: MeshPlan) -> go.Figure:
    """The bytes of a chip by kind, with tile padding, against what a program may use."""
    held = {kind: plan.padded_bytes_per_chip[kind] / GIB for kind in KINDS if plan.padded_bytes_per_chip[kind]}
    drawn = plots.bars(
        f"{written(plan.axes)}: {plan.verdict}",
        [plan.slice],
        {kind: [size] for kind, size in held.items()},
        x="memory of a chip (GiB)",
        y="slice",
        stacked=True,
        horizontal=True,
        limit=plan.padded_bytes_per_chip["limit"] / GIB,
    )
    widest = max(sum(held.values()), plan.padded_bytes_per_chip["limit"] / GIB)
    below = {"orientation": "h", "x": 0, "y": -0.8, "yanchor": "top", "traceorder": "normal"}
    return drawn.update_xaxes(range=[0, 1.08 * widest]).update_layout(
        height=290, margin_b=130, bargap=0.4, legend=below
    )


def collectives_figure(plan: MeshPlan) -> go.Figure:
    """Seconds of a step's collectives, by what they are for, in the colours of the mesh axes."""
    rows = [c for c in plan.collectives if c.seconds is not None]
    names = [f"{c.kind} of {c.what.split(',')[0]}{' (dcn)' if c.network == 'dcn' else ''}" for c in rows]
    by_axis: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(rows))
    for i, row in enumerate(rows):
        by_axis[row.axis][i] = 1e3 * (row.seconds or 0.0)
    total = "none of known speed" if plan.seconds is None else f"{1e3 * plan.seconds:.3g} ms"
    drawn = plots.bars(
        f"Collectives of a step: {total}, if nothing hides them",
        names,
        dict(by_axis) or {"none": []},
        x="milliseconds a step",
        y="collective",
        stacked=True,
        horizontal=True,
    )
    return drawn.update_layout(height=170 + 32 * len(rows), showlegend=len(by_axis) > 0)


def _title(topology: Topology) -> str:
    far = max((ring for ring in topology.rings if ring.size > 1), key=lambda ring: ring.hops, default=None)
    if far is None:
        return f"{topology.slice}: one device"
    apart = f"{far.hops} link{'s' if far.hops != 1 else ''}"
    return f"{topology.slice} as {written(topology.axes)}: neighbours are at most {apart} apart, along {far.axis}"


def _inner(topology: Topology) -> tuple[int, ...]:
    """Size of each mesh axis within one slice."""
    return tuple(ring.size // ring.slices for ring in topology.rings)


def _large(topology: Topology) -> list[int]:
    """The mesh axes that colours tell apart: those larger than one, as columns of a mesh index."""
    return [i for i, size in enumerate(_inner(topology)) if size > 1]


def _colors(topology: Topology, places: Sequence[Sequence[int]], which: int) -> dict[str, Any]:
    """Marker colours by the index along the first (0) or second (1) axis: numbers on a scale of that axis' colour.

    Numbers, since Plotly takes a millisecond to check each ten colours.
    """
    large = _large(topology)
    if len(large) <= which:
        return {"color": plots.SERIES[0] if not which else _LINK}
    axis = large[which]
    full = plots.color(list(topology.axes)[axis])
    scale = [[0.0, plots.faded(full, _FAINTEST)], [1.0, full]]
    top = max(_inner(topology)[axis] - 1, 1)
    return {
        "color": np.asarray([place[axis] for place in places], np.float32),
        "colorscale": scale,
        "cmin": 0,
        "cmax": top,
    }


def _marker(topology: Topology, places: Sequence[Sequence[int]], size: float) -> dict[str, Any]:
    line = {**_colors(topology, places, 1), "width": max(1.0, size / 9)}
    return {**_colors(topology, places, 0), "size": size, "line": line, "showscale": False}


def _chips(topology: Topology) -> tuple[list[tuple[int, ...]], list[str], list[str]]:
    """Of each chip: the mesh index of its first device, a label, and what hovering shows."""
    if not topology.places:
        return [()] * len(topology.coordinates), [""] * len(topology.coordinates), list(map(str, topology.coordinates))
    large, names = _large(topology), list(topology.axes)
    firsts = [indices[0] for indices in topology.places]
    few = len(firsts) <= (_LABELS_UP_TO if _is_flat(topology) else _LABELS_UP_TO // 4)
    labels = [",".join(str(first[i]) for i in large) if few else "" for first in firsts]
    hover = [
        f"chip {spot}<br>{'<br>'.join(', '.join(map('{}={}'.format, names, index)) for index in indices)}"
        for spot, indices in zip(topology.coordinates, topology.places, strict=True)
    ]
    return firsts, labels, hover


def _draw_flat(drawn: go.Figure, topology: Topology) -> None:
    spots = [_flat(chip) for chip in topology.coordinates]
    places, labels, hover = _chips(topology)
    lines, chips = _segments(topology, spots), np.asarray(spots, np.float32)
    drawn.add_scatter(x=lines[:, 0], y=lines[:, 1], mode="lines", line={"color": _LINK, "width": 2}, hoverinfo="skip")
    drawn.add_scatter(
        x=chips[:, 0], y=chips[:, 1], mode="markers+text", text=labels, hovertext=hover, hoverinfo="text",
        textfont={"size": 11, "color": "#000000"}, marker=_marker(topology, places, _size(len(spots))),
    )  # fmt: skip


def _draw_solid(drawn: go.Figure, topology: Topology) -> None:
    places, labels, hover = _chips(topology)
    lines, chips = _segments(topology, topology.coordinates), np.asarray(topology.coordinates, np.float32)
    x, y, z = lines.T
    drawn.add_scatter3d(x=x, y=y, z=z, mode="lines", line={"color": _LINK, "width": 3}, hoverinfo="skip")
    x, y, z = chips.T
    drawn.add_scatter3d(
        x=x, y=y, z=z, mode="markers+text", text=labels, hovertext=hover, hoverinfo="text",
        marker=_marker(topology, places, 9),
    )  # fmt: skip


def _is_flat(topology: Topology) -> bool:
    """Whether the torus can be drawn in two dimensions, x and y."""
    return all(dim == 1 for dim in topology.shape[2:])


def _flat(chip: Sequence[int]) -> tuple[int, ...]:
    """A chip of a torus that is flat in two dimensions."""
    return tuple(chip[:2])


def _segments(topology: Topology, spots: Sequence[Sequence[int]]) -> np.ndarray:
    """All links as one line, broken where a row is NaN; those that wrap around as a stub at each end."""
    chips = np.asarray(spots, np.float32)
    pairs = np.asarray(topology.links or np.empty((0, 2)), int)
    starts, ends = chips[pairs[:, 0]], chips[pairs[:, 1]]
    wraps = np.abs(starts - ends).max(axis=1, initial=0) > 1
    away = np.sign(starts - ends) * _STUB
    plain = (starts[~wraps], ends[~wraps])
    low, high = (starts[wraps], (starts + away)[wraps]), (ends[wraps], (ends - away)[wraps])
    first, last = (np.concatenate(parts) for parts in zip(plain, low, high, strict=True))
    return np.stack([first, last, np.full_like(first, np.nan)], axis=1).reshape(-1, chips.shape[1])


def _draw_logical(drawn: go.Figure, topology: Topology) -> None:
    """The mesh as a grid: the last axis to the right, the others downwards."""
    inner, names = _inner(topology), list(topology.axes)
    hover = _chips(topology)[2]
    places = [index for indices in topology.places for index in indices]
    texts = [text for text, indices in zip(hover, topology.places, strict=True) for _ in indices]
    x = np.asarray([place[-1] for place in places], np.float32)
    y = np.asarray([_row(place, inner) for place in places], np.float32)
    marker = _marker(topology, places, _size(int(max(x.max(), y.max()) + 1) ** 2))
    drawn.add_scatter(
        x=x, y=y, mode="markers", hovertext=texts, hoverinfo="text", xaxis="x2", yaxis="y2",
        marker={**marker, "symbol": "square"},
    )  # fmt: skip
    above = [name for name, size in zip(names[:-1], inner[:-1], strict=True) if size > 1] or [names[0]]
    style = {"zeroline": False, "showgrid": False, "tick0": 0}
    right = {**style, "domain": [0.66, 1.0], "anchor": "y2", "dtick": _tick(int(x.max()) + 1)}
    right["range"] = [-0.6, float(x.max()) + 0.6]
    down = {**style, "anchor": "x2", "autorange": "reversed", "dtick": _tick(int(y.max()) + 1)}
    drawn.update_layout(
        xaxis2={**right, "title": {"text": f"{names[-1]} (index)"}},
        yaxis2={**down, "title": {"text": f"{' x '.join(above)} (index)"}},
    )


def _row(place: Sequence[int], sizes: Sequence[int]) -> int:
    """All but the last index as one number."""
    row = 0
    for i, size in zip(place[:-1], sizes[:-1], strict=True):
        row = row * size + i
    return row


def _tick(count: int) -> int:
    """The step between ticks that leaves at most eight."""
    return max(1, -(-count // 8))


def _size(count: int) -> float:
    """Of a marker, in pixels, where so many share the picture."""
    return max(7.0, min(30.0, 220 / math.sqrt(max(count, 1))))


def _scene_axes(topology: Topology) -> dict[str, Any]:
    """Axes as long as the torus, its longest side filling the picture."""
    longest = max(topology.shape)
    sides = {name: max(0.3, size / longest) for name, size in zip("xyz", topology.shape, strict=False)}
    style = {"dtick": 1, "backgroundcolor": "rgba(0,0,0,0)", "gridcolor": _LINK, "zeroline": False}
    axes = {f"{name}axis": {**style, "title": {"text": f"{name} (chip)"}} for name in "xyz"}
    return {**axes, "aspectmode": "manual", "aspectratio": sides}
