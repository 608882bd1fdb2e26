"""What a conversion reports."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.convert.merging import MergeReport
from labkit.records import Record


@dataclass(frozen=True)
class Conversion(Record):
    """What a conversion wrote.

    `seconds` is wall time, `peak_rss_bytes` the process' largest resident size so far. `verified`: the files were read
    again and every tensor is what was meant. `merge`: what rounding did to the adapters, where some were merged.
    """

    out: str
    tensors: int
    bytes: int
    seconds: float
    peak_rss_bytes: int
    verified: bool
    merge: MergeReport | None = None

    def __str__(self) -> str:
        checked = "verified" if self.verified else "not verified"
        line = f"{self.out}: {self.tensors} tensors, {self.bytes / 2**20:.1f} MiB in {self.seconds:.1f} s, {checked}"
        return f"{line}; {self.merge}" if self.merge else line
