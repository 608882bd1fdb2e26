"""What the collectives of a step move, and how long the links take for it. Standard library only.

The model is that of rings on a torus (How to Scale Your Model, 2025, chapter Sharding): the chip that a collective
gives an array of S bytes receives what it lacks, S (n - 1) / n, over all links that its ring keeps busy. An all-reduce
is a reduce-scatter and an all-gather. Between slices the same goes over the data centre network, each chip fetching its
own part. A chip with two devices receives for both, once where they share a ring. Times are of bare links at their
nominal speed: overlap with compute, and the 10 % that real links lack, are not in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.hardware import Chip
from labkit.mesh.torus import Ring
from labkit.records import Record

KINDS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
# Of v5e, in a worked problem of How to Scale Your Model, chapter TPUs; no source gives other chips'.
HOP_SECONDS = 1e-6


@dataclass(frozen=True)
class Transfer:
    """`count` collectives of a step over one mesh axis; `bytes` is the whole array that each device needs or has."""

    axis: str
    kind: str
    bytes: float
    count: int
    what: str


@dataclass(frozen=True)
class Collective(Record):
    """Collectives of one kind over one mesh axis in one step: bytes that each chip receives, seconds that they take.

    `network` is "ici" (the links of a slice), "dcn" (between slices) or "chip" (between the devices of one chip).
    `seconds` is None where no source gives the speed of the links.
    """

    axis: str
    kind: str
    network: str
    count: int
    bytes: int
    seconds: float | None
    what: str

    def __str__(self) -> str:
        time = "time not known" if self.seconds is None else in_ms(self.seconds)
        return f"{self.axis} {self.kind} ({self.network}): {self.count} x, {self.bytes:,} bytes, {time} ({self.what})"


def in_ms(seconds: float) -> str:
    """Seconds in words: "4.65 ms", "1,230 ms"."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def collectives(transfers: Iterable[Transfer], rings: dict[str, Ring], chip: Chip) -> tuple[Collective, ...]:
    """The transfers on this machine, those of one axis, kind, network and purpose added up."""
    found: dict[tuple[str, str, str, str], list[tuple[int, float, float | None]]] = defaultdict(list)
    for moved in transfers:
        for network, amount, seconds in _parts(moved, rings[moved.axis], chip):
            found[moved.axis, moved.kind, network, moved.what].append((moved.count, amount, seconds))
    return tuple(
        Collective(axis, kind, network, sum(r[0] for r in rows), round(sum(r[1] for r in rows)), _sum(rows), what)
        for (axis, kind, network, what), rows in found.items()
    )


def _sum(rows: list[tuple[int, float, float | None]]) -> float | None:
    times = [row[2] for row in rows]
    return None if None in times else sum(t for t in times if t is not None)


def _parts(moved: Transfer, ring: Ring, chip: Chip) -> Iterable[tuple[str, float, float | None]]:
    """(network, bytes that a chip receives, seconds) for each network that the axis goes over."""
    if ring.size == 1 or not moved.bytes:
        return
    times = KINDS[moved.kind] * moved.count
    inner = ring.chips * ring.cores
    if ring.chips > 1:
        received = moved.bytes * (ring.chips - 1) / ring.chips * chip.devices / ring.cores
        speed = chip.ici_link_bandwidth
        seconds = received / (ring.links * speed) + ring.steps * HOP_SECONDS if speed else None
        yield "ici", times * received, _times(times, seconds)
    elif ring.cores > 1:
        received = moved.bytes * (ring.cores - 1)
        yield "chip", times * received, times * received / chip.hbm_bandwidth
    if ring.slices > 1:
        received = moved.bytes / inner * (ring.slices - 1) / ring.slices * chip.devices
        speed = chip.dcn_bandwidth
        yield "dcn", times * received, _times(times, received / speed if speed else None)


def _times(count: int, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds
