"""Which linears got an adapter: the record that `inject` hands back."""

from __future__ import annotations

import dataclasses
import html

from labkit.lora.linears import Linear
from labkit.records import Record


@dataclasses.dataclass(frozen=True)
class LinearRow(Record):
    """One linear: its weight's shape and, if it is adapted, the shapes of A and B and their parameters."""

    path: str
    role: str
    adapted: bool
    shape: tuple[int, ...]
    a_shape: tuple[int, ...] | None
    b_shape: tuple[int, ...] | None
    parameters: int
    note: str = ""

    def __str__(self) -> str:
        adapter = (
            f"A {self.a_shape}, B {self.b_shape}, {self.parameters:,} parameters" if self.adapted else "no adapter"
        )
        return f"{self.path} {self.shape}: {adapter}{f' ({self.note})' if self.note else ''}"


@dataclasses.dataclass(frozen=True)
class Coverage(Record):
    """The linears of a model after injection, one row each.

    `missed` names the linears that a pattern left out though it adapts their role in another layer.
    """

    targets: str
    rank: int
    alpha: float
    base_parameters: int
    rows: tuple[LinearRow, ...]
    missed: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Adapter parameters in all."""
        return sum(row.parameters for row in self.rows)

    @property
    def adapted(self) -> int:
        """Number of linears that have an adapter."""
        return sum(row.adapted for row in self.rows)

    def __str__(self) -> str:
        share = 100 * self.parameters / self.base_parameters
        text = f"LoRA rank {self.rank}, alpha {self.alpha:g} on {self.targets!r}: {self.adapted} of {len(self.rows)} "
        text += f"linears, {self.parameters:,} parameters ({share:.2f} % of the base)"
        return text + (f", {len(self.missed)} MISSED" if self.missed else "")

    def _repr_html_(self) -> str:
        head = "<tr><th>linear</th><th>role</th><th>weight</th><th>A</th><th>B</th><th>parameters</th></tr>"
        body = "".join(_html_row(row, row.path in self.missed) for row in self.rows)
        return f"<table><caption style='text-align:left'>{html.escape(str(self))}</caption>{head}{body}</table>"


def row(linear: Linear, rank: int, adapted: bool) -> LinearRow:
    """The row of one linear."""
    note = "" if linear.used else "never called: reads another layer's keys and values"
    a, b = linear.adapter_shapes(rank) if adapted else (None, None)
    count = linear.adapter_parameters(rank) if adapted else 0
    return LinearRow(linear.path, linear.role, adapted, linear.shape, a, b, count, note)


def _html_row(row: LinearRow, missed: bool) -> str:
    cells = [row.path, row.role, row.shape, row.a_shape or "", row.b_shape or "", f"{row.parameters:,}"]
    if not row.adapted:
        cells[3:] = ["missed" if missed else row.note or "none", "", ""]
    style = " style='font-weight:bold;color:#b00020'" if missed else ""
    return f"<tr{style}>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
