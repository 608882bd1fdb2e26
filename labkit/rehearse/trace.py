"""The predicted step as a film: a trace in Chrome's format, which ui.perfetto.dev, chrome://tracing and XProf open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from labkit import hardware
from labkit.records import write_atomic
from labkit.rehearse.cache import Schedule
from labkit.rehearse.costs import Op
from labkit.rehearse.rehearsal import schedule
from labkit.rehearse.report import Report, require
from labkit.rehearse.timing import clock
from labkit.rehearse.traffic import KINDS

_TRACKS = {"layers": 1, "compute": 2, "collectives": 3}
_MICRO = 1e6


def write_trace(report: Report, path: Path) -> Path:
    """Write the trace of a rehearsed step: layers, what the core computes, exposed collectives, bytes alive in HBM.

    Every instruction starts when the one before it ends. A collective that stands alone takes the mean time of its
    kind; those that the compiler put beside computation are within it. Microseconds.

    Raises:
        LabError: a job that does not compile, or whose schedule is not stored here.
    """
    found = schedule(require(report))
    events = [*_names(report), *_spans(report, found), *_memory(report, found)]
    write_atomic(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def timed(report: Report, found: Schedule) -> Iterator[tuple[Op, float, float]]:
    """Each instruction with its start and its seconds."""
    speed = clock(hardware.slice(report.slice).chip)
    alone = {c.kind: (c.seconds or 0.0) / c.count for c in report.collectives}
    now = 0.0
    for op in found.ops:
        seconds = alone.get(op.kind, 0.0) * op.runs if op.kind in KINDS and not op.cycles else op.cycles / speed
        if seconds:
            yield op, now, seconds
            now += seconds


def _spans(report: Report, found: Schedule) -> Iterator[dict[str, Any]]:
    spans = list(timed(report, found))
    for op, start, seconds in spans:
        track = "collectives" if op.kind in KINDS else "compute"
        told = {"op_name": op.op_name, "runs": op.runs, "flops": op.flops, "hbm_bytes": op.hbm_bytes}
        yield _span(track, f"{op.kind}: {_short(op)}", start, seconds, told)
    for layer, group in groupby(spans, key=lambda span: span[0].layer):
        some = list(group)
        if layer is not None:
            end = some[-1][1] + some[-1][2]
            yield _span("layers", f"layer {layer}", some[0][1], end - some[0][1], {"instructions": len(some)})


def _span(track: str, name: str, start: float, seconds: float, told: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "pid": 1, "tid": _TRACKS[track], "name": name, "ts": start * _MICRO, "dur": seconds * _MICRO,
        "args": told,
    }  # fmt: skip


def _memory(report: Report, found: Schedule) -> Iterator[dict[str, Any]]:
    """A counter of the bytes alive, at the time of the instruction that each moment belongs to."""
    starts = {op.name: start for op, start, _ in timed(report, found)}
    for moment in found.moments:
        if moment.instruction in starts:
            at = starts[moment.instruction] * _MICRO
            yield {"ph": "C", "pid": 1, "name": "HBM alive (bytes)", "ts": at, "args": moment.bytes}


def _names(report: Report) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"predicted: {report.job}"}}
    for track, number in _TRACKS.items():
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}}


def _short(op: Op) -> str:
    return op.op_name.rpartition("/")[2] or op.name
