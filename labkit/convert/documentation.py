"""The layout table as documentation: it shows itself."""

from __future__ import annotations

import html
from dataclasses import dataclass

from labkit.errors import LabError, nearest
from labkit.models.layout import TABLES, Rule
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
