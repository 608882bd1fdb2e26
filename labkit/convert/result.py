"""What a conversion reports."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labkit.convert.memory import peak_rss
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

    @classmethod
    def finished(cls, out: str | Path, sizes: Collection[int], begun: float, merge: MergeReport | None = None) -> Self:
        """Of what has been written and read again: the bytes of each tensor, and when `time.monotonic` saw it begin."""
        seconds = time.monotonic() - begun
        return cls(str(out), len(sizes), sum(sizes), seconds, peak_rss(), verified=True, merge=merge)

    def __str__(self) -> str:
        checked = "verified" if self.verified else "not verified"
        line = f"{self.out}: {self.tensors} tensors, {self.bytes / 2**20:.1f} MiB in {self.seconds:.1f} s, {checked}"
        return f"{line}; {self.merge}" if self.merge else line
