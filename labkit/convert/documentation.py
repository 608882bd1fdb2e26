"""The layout table as documentation: it shows itself."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.errors import LabError, nearest
from labkit.models.layout import TABLES, Row, Rule, rows
from labkit.models.spec import ModelSpec
from labkit.records import Record


@dataclass(frozen=True)
class LayoutRule(Record):
    """One line of a family's table, and what it does in words."""

    tunix: str
    hf: str
    axes: str
    part: int | None
    meaning: str

    def __str__(self) -> str:
        part = "" if self.part is None else f"[{self.part}]"
        return f"{self.tunix}{part} <-> {self.hf}: {self.meaning}"


@dataclass(frozen=True)
class LayoutTable(Record):
    """How a family's parameters are named and laid out in Tunix and in Transformers; `{layer}` is a layer's number."""

    family: str
    rules: tuple[LayoutRule, ...]

    def __str__(self) -> str:
        return "\n".join([f"layout of {self.family}", *(f"  {rule}" for rule in self.rules)])

    def to_markdown(self) -> str:
        """The table as Markdown."""
        head = "| Tunix | Transformers | axes | what happens |\n| --- | --- | --- | --- |"
        rows = (f"| `{_slice(x)}` | `{x.hf}` | {f'`{x.axes}`' if x.axes else ''} | {x.meaning} |" for x in self.rules)
        return "\n".join([head, *rows])

    def _repr_html_(self) -> str:
        names = ("Tunix", "Transformers", "axes", "what happens")
        cells = [names, *((_slice(x), x.hf, x.axes, x.meaning) for x in self.rules)]
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in cells
        )
        return f"<table><caption style='text-align:left'>layout of {html.escape(self.family)}</caption>{rows}</table>"


def table(family: str) -> LayoutTable:
    """The layout table of a family ("gemma3", "gemma4", "llama3", "qwen3"), from which all conversions come."""
    if family not in TABLES:
        raise LabError(f"There is no family {family!r}.", hint=f"Nearest: {nearest(family, list(TABLES))}.")
    return LayoutTable(family, tuple(LayoutRule(x.tunix, x.hf, x.axes, x.part, _meaning(x)) for x in TABLES[family]))


@dataclass(frozen=True)
class Step(Record):
    """A tensor on its way: what was done to it, the names of its axes then, and its shape."""

    done: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.done}: {list(self.shape)} ({', '.join(self.axes)})"


@dataclass(frozen=True)
class Trace(Record):
    """One tensor of a model on both sides, and each step from Tunix to Transformers. `parameters` is its size."""

    model: str
    tunix: str
    hf: str
    part: int | None
    parameters: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.tunix} -> {self.hf}", *(f"  {step}" for step in self.steps)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(step.done)}</td>"
            f"<td style='text-align:left'>{html.escape(', '.join(step.axes))}</td><td>{list(step.shape)}</td></tr>"
            for step in self.steps
        )
        caption = f"{self.tunix} &rarr; {self.hf}: {self.parameters:,} parameters"
        return f"<table><caption style='text-align:left'>{caption}</caption>{rows}</table>"


def trace(spec: ModelSpec, tensor: str) -> Trace:
    """How a tensor (by its name in Transformers) comes from its Tunix parameter, step by step.

    Raises:
        LabError: a name that the model does not have.
    """
    table = {row.hf: row for row in rows(spec)}
    if tensor not in table:
        raise LabError(f"{spec.name} has no tensor {tensor!r}.", hint=f"Nearest: {nearest(tensor, list(table))}.")
    row = table[tensor]
    size = math.prod(row.hf_shape)
    return Trace(spec.name, row.tunix, row.hf, row.part, size, tuple(_steps(row)))


def _steps(row: Row) -> Iterator[Step]:
    names = row.tunix_axes or tuple(f"axis {i}" for i in range(len(row.hf_shape)))
    fused = () if row.part is None else ("part",)
    yield Step("Tunix's parameter", fused + names, row.tunix_shape)
    if row.part is not None:
        yield Step(f"slice {row.part} of the fused parameter", names, row.tunix_shape[1:])
    order = tuple(axis for group in row.hf_groups for axis in group)
    if order and order != names:
        yield Step("axes moved", order, tuple(row.sizes[axis] for axis in order))
    if any(len(group) > 1 for group in row.hf_groups):
        yield Step("axes joined", tuple(" ".join(group) for group in row.hf_groups), row.hf_shape)


def _slice(rule: LayoutRule) -> str:
    return rule.tunix if rule.part is None else f"{rule.tunix}[{rule.part}]"


def _meaning(rule: Rule) -> str:
    """What the axes' pattern does, in words."""
    if not rule.axes:
        return "as it is"
    left, right = (side.split() for side in rule.axes.replace("(", "").replace(")", "").split("->"))
    done = ["one slice of a fused parameter"] if rule.part is not None else []
    done += ["transposed"] if left != right else []
    done += ["axes joined"] if "(" in rule.axes else []
    return ", ".join(done)
