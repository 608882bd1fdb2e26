"""Pictures of a rehearsal: what a device holds, and when."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from labkit import plots
from labkit.hardware import GIB
from labkit.rehearse.liveness import KINDS, Moment
from labkit.rehearse.report import Report

_POINTS = 800  # of a curve: a picture has no more columns


def memory(*reports: Report) -> go.Figure:
    """Bars of what a device holds by kind in each of some rehearsals, against the limit of the first one's chip."""
    names = [f"{r.job.arguments.get('model', r.job.step)} on {r.slice}" for r in reports]
    kinds = {
        "arguments": [r.bytes_per_chip.get("arguments", 0) / GIB for r in reports],
        "temporaries": [_beyond(r) / GIB for r in reports],
    }
    limit = next((r.bytes_per_chip["limit"] for r in reports if r.bytes_per_chip), None)
    return plots.bars(
        "; ".join(r.verdict for r in reports)[:110], names, kinds, x="memory of a device (GiB)", y="rehearsal",
        stacked=True, horizontal=True, limit=limit / GIB if limit else None,
    )  # fmt: skip


def _beyond(report: Report) -> int:
    """What is held besides the arguments; of a refused program, what the compiler said that it needs."""
    if report.failure:
        return report.failure.needed
    return report.bytes_per_chip.get("total", 0) - report.bytes_per_chip.get("arguments", 0)


def film(moments: Sequence[Moment]) -> go.Figure:
    """The bytes that are alive at each instruction, by kind."""
    peak = max(moments, key=lambda moment: moment.total)
    drawn = plots.figure(f"The peak, {peak}"[:110], "instruction in the schedule", "alive in HBM (GiB)")
    chosen = sorted({*range(0, len(moments), max(1, len(moments) // _POINTS)), moments.index(peak)})
    for i, kind in enumerate(k for k in KINDS if any(m.bytes[k] for m in moments)):
        held = [moments[at].bytes[kind] / GIB for at in chosen]
        drawn.add_scatter(
            x=chosen, y=held, name=kind, stackgroup="alive", mode="lines", line={"width": 0, "shape": "hv"},
            fillcolor=plots.color(kind, i),
        )  # fmt: skip
    return drawn
