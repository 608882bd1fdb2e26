"""Who holds what of one tensor, as its sharding changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import plotly.graph_objects as go
from jax.sharding import Mesh

from labkit import mesh as meshes
from labkit.widgets.frame import Panel, dropdown


def who_holds_what(array: Any, mesh: Mesh, *, axes: tuple[Any, ...] | None = None) -> Panel:
    """A picture and a table of the parts of `array` on each device; a list a dimension chooses the axes that split it.

    `array` is a JAX array, or an abstract one; nothing is moved. `axes` is the sharding to start with.
    """
    start = axes or tuple(None for _ in array.shape)
    controls = {
        f"axis_{i}": dropdown(f"Dimension {i} ({size})", _choices(mesh), start[i]) for i, size in enumerate(array.shape)
    }
    return Panel(controls, lambda **chosen: _who_holds_what(array, mesh, tuple(chosen.values())))


def _who_holds_what(array: jax.ShapeDtypeStruct, mesh: Mesh, axes: tuple[Any, ...]) -> Iterable[Any]:
    holding = meshes.inspect_as(array, mesh, axes)
    drawn: go.Figure = meshes.figure(holding)
    return drawn, holding


def _choices(mesh: Mesh) -> list[tuple[str, Any]]:
    pairs = list(itertools.permutations(mesh.axis_names, 2))
    return [("whole", None), *((name, name) for name in mesh.axis_names), *((" and ".join(p), p) for p in pairs)]
