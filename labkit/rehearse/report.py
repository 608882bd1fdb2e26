"""What a rehearsal found: does it compile, what does a chip hold, how long is a step, and what takes the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.hardware import GIB
from labkit.records import Record, Table, Tabled
from labkit.rehearse.costs import Op
from labkit.rehearse.failures import Buffer, OutOfMemory
from labkit.rehearse.liveness import Moment
from labkit.rehearse.program import Job
from labkit.rehearse.timing import Moved

_SHOWN = 40  # rows of a table of instructions


@dataclasses.dataclass(frozen=True)
class Report(Tabled):
    """The compiler's verdict on a job.

    `compiles` is False if the compiler refused; then `failure` says what ran out, or `error` what else was wrong, and
    what a program has (cycles, FLOPs, collectives) is empty. `bytes_per_chip` are of one device of the topology:
    `arguments`, `outputs`, `aliased` (outputs in the place of arguments), `temporaries`, `code`, `peak` (the compiler's
    own), `total` (what it holds against the limit) and `limit`.

    Of one step on one device: `cycles`, and `compute_seconds` from them; `exposed_seconds` of collectives that nothing
    hides; `step_seconds` their sum (None where the speed of a link or the clock is not known); `flops` of its matrix
    products, recomputed ones included; `hbm_bytes` read and written. Of all devices: `model_flops`, what the
    mathematics needs, and `tokens`. `mfu` is model FLOPs in a step's time over the peak in bf16, `hfu` the same with
    `flops`. `top` are the costliest instructions; `largest` the largest buffers in HBM at its peak, `hbm_peak`. The
    compiler's `peak` is of HBM and VMEM together, as is `scheduled_peak`, which is read off the schedule.
    """

    job: Job
    compiles: bool
    fits: bool
    bytes_per_chip: dict[str, int]
    cycles: int
    compute_seconds: float | None
    exposed_seconds: float | None
    step_seconds: float | None
    flops: float
    hbm_bytes: int
    model_flops: float
    tokens: int
    tokens_per_second: float | None
    mfu: float | None
    hfu: float | None
    collectives: tuple[Moved, ...]
    cycles_by_kind: dict[str, int]
    top: tuple[Op, ...]
    largest: tuple[Buffer, ...]
    hbm_peak: int
    scheduled_peak: int
    offloads: int
    failure: OutOfMemory | None
    error: str
    lower_seconds: float
    compile_seconds: float
    worker_peak_rss_bytes: int
    versions: dict[str, str]
    replayed: bool = False
    note: str = ""

    @property
    def slice(self) -> str:
        """The slice's name."""
        return self.job.slice

    @property
    def axes(self) -> dict[str, int]:
        """The mesh."""
        return self.job.axes

    @property
    def verdict(self) -> str:
        """Whether it runs, in a few words."""
        if self.failure:
            return str(self.failure)
        if not self.compiles:
            return f"does not compile: {self.error.splitlines()[0][:200] if self.error else 'no reason given'}"
        return f"fits: {gib(self.bytes_per_chip['total'])} of {gib(self.bytes_per_chip['limit'])} a device"

    def __str__(self) -> str:
        parts = [f"{self.job}: {self.verdict}"]
        if self.step_seconds is not None:
            parts.append(f"{self.step_seconds * 1e3:,.1f} ms a step")
        if self.tokens_per_second is not None and self.mfu is not None:
            parts.append(f"{self.tokens_per_second:,.0f} tokens/s, MFU {self.mfu:.1%}")
        parts.append(f"{'replayed' if self.replayed else 'compiled'}, {self.compile_seconds:,.0f} s to compile")
        return ", ".join(parts) + (f" ({self.note})" if self.note else "")

    def figure(self) -> Any:
        """Bars of what a device holds against its limit."""
        from labkit.rehearse import figures

        return figures.memory(self)

    def memory_timeline(self) -> tuple[Moment, ...]:
        """What is alive at each instruction of the schedule, by kind; `rehearse.figures.film` draws it."""
        return self._schedule().moments

    @property
    def hlo(self) -> Listing:
        """What runs, the costliest first: a table that can be searched."""
        return Listing(tuple(sorted(self._schedule().ops, key=lambda op: -op.cycles)), self.cycles)

    def trace(self, path: str | Path) -> Path:
        """Write the predicted step as a trace that ui.perfetto.dev and XProf open."""
        from labkit.rehearse import trace

        return trace.write_trace(self, Path(path))

    def _schedule(self) -> Any:
        from labkit.rehearse import rehearsal

        return rehearsal.schedule(require(self))

    def tables(self) -> list[Table]:
        """Memory, time, collectives, kinds of instructions, the costliest of them, and the largest buffers."""
        return [
            ("Memory of a device", ("what", "GiB", "bytes"), self._memory()),
            ("Time of a step", ("what", "ms"), self._times()),
            ("Collectives", ("axes", "kind", "count", "beside compute", "MiB", "ms"), self._moved()),
            ("Cycles by kind", ("kind", "share", "cycles"), self._kinds()),
            ("Costliest instructions", ("share", "kind", "runs", "of"), self._top()),
            ("Largest buffers at the peak", ("MiB", "shape", "of"), self._largest()),
        ]

    def _memory(self) -> list[tuple[str, ...]]:
        return [(what, f"{size / GIB:.3f}", f"{size:,}") for what, size in self.bytes_per_chip.items()]

    def _times(self) -> list[tuple[str, ...]]:
        times = {"compute": self.compute_seconds, "exposed collectives": self.exposed_seconds}
        rows = {**times, "step": self.step_seconds}
        return [(what, f"{seconds * 1e3:,.2f}") for what, seconds in rows.items() if seconds is not None]

    def _moved(self) -> list[tuple[str, ...]]:
        return [
            (" x ".join(c.axes) or "?", c.kind, f"{c.count:,}", f"{c.overlapped:,}", f"{c.bytes / 2**20:,.1f}",
             "?" if c.seconds is None else f"{c.seconds * 1e3:,.2f}")
            for c in self.collectives
        ]  # fmt: skip

    def _kinds(self) -> list[tuple[str, ...]]:
        return [(k, f"{c / self.cycles:.1%}", f"{c:,}") for k, c in list(self.cycles_by_kind.items())[:10]]

    def _top(self) -> list[tuple[str, ...]]:
        return [
            (f"{op.cycles / self.cycles:.1%}", op.kind, str(op.runs), op.op_name or op.name) for op in self.top[:10]
        ]

    def _largest(self) -> list[tuple[str, ...]]:
        return [(f"{b.bytes / 2**20:,.1f}", b.shape, b.op_name or "unnamed") for b in self.largest[:8]]


@dataclasses.dataclass(frozen=True)
class Listing(Tabled):
    """Instructions of a step, the costliest first, and the cycles of the whole step."""

    ops: tuple[Op, ...]
    cycles: int

    def search(self, text: str) -> Listing:
        """Those whose kind, name or place in the traced function has this text."""
        return Listing(tuple(op for op in self.ops if text in f"{op.kind} {op.name} {op.op_name}"), self.cycles)

    def __str__(self) -> str:
        found = sum(op.cycles for op in self.ops)
        return f"{len(self.ops):,} instructions, {found / max(self.cycles, 1):.1%} of {self.cycles:,} cycles"

    def tables(self) -> list[Table]:
        """The first instructions of the list."""
        columns = ("share", "kind", "runs", "GFLOP", "HBM MiB", "of")
        return [("The costliest first", columns, [self._row(op) for op in self.ops[:_SHOWN]])]

    def _row(self, op: Op) -> tuple[str, ...]:
        share = f"{op.cycles / max(self.cycles, 1):.2%}"
        size = (f"{op.flops / 1e9:,.1f}", f"{op.hbm_bytes / 2**20:,.1f}")
        return (share, op.kind, str(op.runs), *size, op.op_name or op.name)


@dataclasses.dataclass(frozen=True)
class Difference(Record):
    """What changed from one rehearsal to another: a quantity -> (before, after)."""

    before: str
    after: str
    changed: dict[str, tuple[float | None, float | None]]

    def __str__(self) -> str:
        parts = [f"{name} {_value(old)} -> {_value(new)}" for name, (old, new) in self.changed.items()]
        return f"{self.before} -> {self.after}: {'; '.join(parts) or 'nothing changed'}"


def diff(before: Report, after: Report) -> Difference:
    """Which quantities differ between two rehearsals."""
    pairs = {name: (a, b) for name, a, b in zip(_QUANTITIES, _values(before), _values(after), strict=True) if a != b}
    return Difference(str(before.job), str(after.job), pairs)


_QUANTITIES = ("arguments (bytes)", "temporaries (bytes)", "total (bytes)", "cycles", "FLOPs", "HBM bytes",
               "collectives (bytes)", "step (s)", "MFU", "compile (s)")  # fmt: skip


def _values(report: Report) -> Sequence[float | None]:
    held = report.bytes_per_chip
    return (held.get("arguments"), held.get("temporaries"), held.get("total"), report.cycles, report.flops,
            report.hbm_bytes, sum(c.bytes for c in report.collectives), report.step_seconds, report.mfu,
            report.compile_seconds)  # fmt: skip


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:,.4g}"


def require(report: Report) -> Report:
    """The report, or a `LabError` with the compiler's verdict if it does not compile."""
    if not report.compiles:
        raise LabError(
            f"{report.job} does not run: {report.verdict}.", hint="labkit rehearse --fix looks for a change."
        )
    return report


def gib(size: int) -> str:
    """Bytes in GiB, or MiB where that reads better."""
    return f"{size / GIB:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
