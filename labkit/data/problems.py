"""A problem: a specification in English, a reference module, and the testbench that judges an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.records import Record


@dataclass(frozen=True)
class PortInfo(Record):
    """One port of a problem's module: `direction` is "input" or "output", `width` in bits."""

    name: str
    direction: str
    width: int

    def __str__(self) -> str:
        return f"{self.direction} {self.name}[{self.width}]"


@dataclass(frozen=True)
class Problem(Record):
    """One task of specification to Verilog.

    `split` is "train", "test_seen" (held-out parameters, names and forms of families that training has) or
    "test_unseen" (families that training never has); readers of other sets use their own words. `wording` says
    whether the specification's wording occurs in training: "seen" or "unseen".
    """

    id: str
    family: str
    split: str
    spec: str
    reference: str
    testbench: str
    top: str
    ports: tuple[PortInfo, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    wording: str = "seen"

    def __str__(self) -> str:
        return f"{self.id}: module {self.top} with {len(self.ports)} ports, {self.wording} wording"
