"""One look for every figure: the title says the finding, axes have units, a colour means the same in every lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from labkit.errors import LabError

# What a byte is for. At least 20 CIE76 units apart, also for protanopic, deuteranopic and tritanopic readers.
MEMORY = {
    "weights": "#0072b2",
    "adapters": "#d55e00",
    "optimizer": "#a855f7",
    "gradients": "#e39c7a",
    "activations": "#14b4d8",
    "logits": "#8c4a2b",
    "kv_cache": "#5a1fe0",
    "headroom": "#808080",
}
# Which mesh axis something belongs to.
AXES = {"dp": "#9a3fb5", "fsdp": "#2fb0a8", "tp": "#b5103c", "pp": "#9aa000", "sp": "#4b3be8"}
# Anything else, in the order in which it is drawn. Before and after training is the pair of every lab.
SERIES = ("#0072b2", "#d55e00", "#14b4d8", "#8c4a2b", "#a855f7", "#e39c7a", "#5a1fe0")
BEFORE, AFTER, LIMIT = "#808080", "#0072b2", "#e03131"

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_TEXT = "#787878"  # 4.3 : 1 on white and on JupyterLab's dark #111111
_GRID = "rgba(128,128,128,0.28)"
WIDTH, HEIGHT = 860, 400  # fits a notebook cell of a window that is 1280 px wide


def color(name: str, position: int = 0) -> str:
    """The colour of a series: by its meaning if `name` has one (``"weights"``, ``"fsdp"``), else by its position."""
    key = name.lower().replace(" ", "_")
    fixed = {**MEMORY, **AXES, "before": BEFORE, "after": AFTER, "limit": LIMIT}
    return fixed.get(key, SERIES[position % len(SERIES)])


def figure(title: str, x: str, y: str, *, height: int = HEIGHT, width: int = WIDTH) -> go.Figure:
    """An empty figure in labkit's look.

    Args:
        title: the finding in a sentence, not the names of the axes.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        height: pixels.
        width: pixels.
    """
    for what, text in (("title", title), ("x axis", x), ("y axis", y)):
        if not text.strip():
            raise LabError(
                f"A figure's {what} is empty.", hint="Say the finding in the title, quantity and unit on an axis."
            )
    axis = {"gridcolor": _GRID, "linecolor": _TEXT, "zeroline": False, "ticks": "outside", "tickcolor": _TEXT}
    return go.Figure(
        layout={
            "template": "none",  # the look is in the layout below: a stored figure is half the size
            "title": {"text": title, "x": 0.01, "xanchor": "left", "font": {"size": 17}},
            "font": {"size": 14, "color": _TEXT},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": {**axis, "title": {"text": x}},
            "yaxis": {**axis, "title": {"text": y}},
            "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
            "margin": {"l": 70, "r": 20, "t": 90, "b": 60},
            "hovermode": "closest",
            "height": height,
            "width": width,
        }
    )


def lines(title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x: str, y: str) -> go.Figure:
    """Curves: `series` maps a name to its points `(xs, ys)`. Colours and dashes tell them apart."""
    drawn = figure(title, x, y)
    for i, (name, (xs, ys)) in enumerate(series.items()):
        line = {"color": color(name, i), "width": 2.5, "dash": _DASHES[i % len(_DASHES)]}
        drawn.add_scatter(x=_compact(xs), y=_compact(ys), name=name, mode="lines", line=line)
    return _place_legend(drawn)


def bars(
    title: str,
    categories: Sequence[str],
    values: Mapping[str, Sequence[float]],
    *,
    x: str,
    y: str,
    stacked: bool = False,
    horizontal: bool = False,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    limit: float | None = None,
) -> go.Figure:
    """Bars: `values` maps a series to one value a category.

    Args:
        title: the finding in a sentence.
        categories: names under the bars.
        values: series name -> one value a category.
        x: label of the horizontal axis (of the values if `horizontal`).
        y: label of the vertical axis.
        stacked: series on top of each other, else beside.
        horizontal: bars to the right, for long category names.
        intervals: series name -> `(low, high)` a category, drawn as error bars.
        limit: a line that the bars must not cross, such as the memory of a chip.
    """
    drawn = figure(title, x, y)
    for i, (name, heights) in enumerate(values.items()):
        along, across = ("x", "y") if horizontal else ("y", "x")
        error = _error_bars(heights, (intervals or {}).get(name))
        drawn.add_bar(
            **{along: _compact(heights), across: list(categories), f"error_{along}": error},
            name=name,
            orientation="h" if horizontal else "v",
            marker={"color": color(name, i), "line": {"color": _TEXT, "width": 0.5}},
        )
    drawn.update_layout(barmode="stack" if stacked else "group", bargap=0.25, showlegend=len(values) > 1)
    if horizontal:
        drawn.update_yaxes(autorange="reversed", automargin=True, title_standoff=16)
    if limit is not None:
        _limit_line(drawn, limit, horizontal)
    return _place_legend(drawn)


def with_interval(
    drawn: go.Figure, name: str, x: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> go.Figure:
    """Add the band from `low` to `high` around the curve `name`; returns the same figure."""
    if not len(x) == len(low) == len(high):
        raise LabError(f"The interval of {name!r} has {len(x)} x values, {len(low)} lows and {len(high)} highs.")
    position = [trace.name for trace in drawn.data].index(name) if name in {t.name for t in drawn.data} else 0
    shade = faded(color(name, position), 0.25)
    edge = {"width": 0, "color": shade}
    for edge_values, fill in ((low, None), (high, "tonexty")):
        drawn.add_scatter(
            x=_compact(x), y=_compact(edge_values), line=edge, fill=fill, fillcolor=shade,
            mode="lines", showlegend=False, hoverinfo="skip", legendgroup=name,
        )  # fmt: skip
    return drawn


def _error_bars(heights: Sequence[float], interval: Sequence[tuple[float, float]] | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    up = [high - v for v, (_, high) in zip(heights, interval, strict=True)]
    down = [v - low for v, (low, _) in zip(heights, interval, strict=True)]
    return {"array": _compact(up), "arrayminus": _compact(down), "color": _TEXT, "thickness": 2, "width": 5}


def _place_legend(drawn: go.Figure) -> go.Figure:
    """More names than fit in one row under the title stand at the right."""
    if sum(len(trace.name or "") + 6 for trace in drawn.data) > 75:
        drawn.update_layout(legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top"}, margin_t=60)
    return drawn


def _limit_line(drawn: go.Figure, limit: float, horizontal: bool) -> None:
    style = {"line": {"color": LIMIT, "dash": "dash", "width": 2}, "annotation_text": "limit"}
    style["annotation_font"] = {"color": LIMIT}
    if horizontal:
        drawn.add_vline(limit, **style)
    else:
        drawn.add_hline(limit, **style)


def _compact(values: Sequence[float]) -> Any:
    """Numbers as float32, which Plotly stores as base64; anything else as a list."""
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.kind in "fiu" else list(values)


def faded(hex_color: str, opacity: float) -> str:
    """A colour that lets the background through: opacity 0 is none of it, 1 all."""
    red, green, blue = (int(hex_color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
