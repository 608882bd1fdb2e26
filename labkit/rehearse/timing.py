"""How long a step takes on a slice, by what the compiler made of it and the speed of the links.

Compute is the compiler's own estimate of cycles at the chip's clock. Collectives are not in it: their time is that of
rings on the torus (`labkit.mesh.traffic`). Those that the compiler fused into computation are taken to be hidden by it,
the others to stand alone. Left out: what the host does, the input, the start of a program, and that real links and
matrix units fall short of their nominal speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from labkit import hardware
from labkit.errors import LabError
from labkit.mesh.torus import Ring, ring
from labkit.mesh.traffic import HOP_SECONDS
from labkit.records import Record
from labkit.rehearse.traffic import Collective

# How often the data of a ring collective goes round; what is sent to one neighbour goes over one link.
_ROUNDS = {"all-gather": 1.0, "reduce-scatter": 1.0, "all-reduce": 2.0, "all-to-all": 0.25, "collective-permute": 1.0}


@dataclasses.dataclass(frozen=True)
class Moved(Record):
    """Collectives of one kind over the same axes: bytes of their results on a device, seconds, and seconds not hidden.

    `seconds` and `exposed` are None where no source gives the speed of the links, or the axes are not known.
    """

    axes: tuple[str, ...]
    kind: str
    count: int
    overlapped: int
    bytes: int
    seconds: float | None
    exposed: float | None

    def __str__(self) -> str:
        time = "time not known" if self.seconds is None else f"{self.seconds * 1e3:,.2f} ms"
        beside = f", {self.overlapped} beside computation" if self.overlapped else ""
        over = " x ".join(self.axes) or "unknown axes"
        return f"{over} {self.kind}: {self.count:,} x, {self.bytes / 2**20:,.1f} MiB, {time}{beside}"


def moved(found: Collective, of: hardware.Slice, axes: Mapping[str, int]) -> Moved:
    """A program's collectives with the time that they take on this slice."""
    rings = [ring(of, axes, name) for name in found.axes]
    seconds = _seconds(found, rings, of.chip) if rings else None
    alone = (found.count - found.overlapped) / found.count
    exposed = None if seconds is None else seconds * alone
    return Moved(found.axes, found.kind, found.count, found.overlapped, found.bytes, seconds, exposed)


def _seconds(found: Collective, rings: list[Ring], chip: hardware.Chip) -> float | None:
    """Over several axes at once, their links work side by side."""
    share = (found.devices - 1) / found.devices
    received = found.bytes * share * _ROUNDS.get(found.kind, 1.0)
    if any(r.slices > 1 for r in rings):
        return received * chip.devices / chip.dcn_bandwidth if chip.dcn_bandwidth else None
    links = sum(r.links for r in rings if r.chips > 1)
    if not links:
        return received / chip.hbm_bandwidth  # between the devices of one chip
    if not chip.ici_link_bandwidth:
        return None
    steps = sum(r.steps for r in rings) * found.count
    cores = max(r.cores for r in rings)
    return received * chip.devices / cores / (links * chip.ici_link_bandwidth) + steps * HOP_SECONDS


def clock(chip: hardware.Chip) -> float:
    """Cycles a second; a `LabError` for a chip whose clock no source gives."""
    if chip.clock is None:
        raise LabError(f"No source gives the clock of {chip.title}.", hint="Its cycles can be read, its seconds not.")
    return chip.clock
