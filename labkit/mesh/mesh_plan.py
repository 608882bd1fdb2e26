"""The plan of a mesh: the record that `plan` makes, and how it is read. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.hardware import GIB
from labkit.mesh.axes import written
from labkit.mesh.objectives import KINDS, Job
from labkit.mesh.rules import Replicated, Spec
from labkit.mesh.torus import Ring
from labkit.mesh.traffic import Collective, in_ms
from labkit.records import Record, Table, Tabled


@dataclass(frozen=True)
class Candidate(Record):
    """A mesh that was considered. `reason` says in a line why it was not chosen; `possible` whether all divides."""

    axes: dict[str, int]
    possible: bool
    fits: bool
    total: int
    seconds: float | None
    reason: str

    def __str__(self) -> str:
        return f"{written(self.axes)}: {self.reason}"


@dataclass(frozen=True)
class MeshPlan(Tabled):
    """A mesh for one step of a job on a slice.

    `axes` are sizes, outermost first; `rings` say how each lies on the torus. `specs` and `adapter_specs` hold the mesh
    axis of each dimension of each parameter, by path. `bytes_per_chip` are logical, by kind, with `total`, `limit`
    (what the compiler lets a program use) and `headroom`; `padded_bytes_per_chip` are those with the padding of tiles,
    whose total decides `fits`. Both are of the moment when most is held, which `peak_in` names. `replicated` lists what
    was left whole because it does not divide. `collectives` are those of one step, `seconds` the sum of their times
    (None where the speed of a link is not known). `reasons` has a line for each other mesh, and for whatever keeps this
    one from running; `possible` is False where rows or arrays do not divide.
    """

    slice: str
    job: Job
    axes: dict[str, int]
    rings: tuple[Ring, ...]
    possible: bool
    fits: bool
    bytes_per_chip: dict[str, int]
    padded_bytes_per_chip: dict[str, int]
    peak_in: str
    collectives: tuple[Collective, ...]
    seconds: float | None
    reasons: tuple[str, ...]
    replicated: tuple[Replicated, ...]
    considered: tuple[Candidate, ...]
    specs: dict[str, tuple[str | None, ...]]
    adapter_specs: dict[str, tuple[str | None, ...]]

    @property
    def model(self) -> str:
        """The model's name."""
        return self.job.model

    def alternatives(self) -> tuple[Candidate, ...]:
        """The other meshes, the best first: those that fit, then those that are too big, then those that divide not."""
        return self.considered

    def spec(self, path: str) -> Spec:
        """The mesh axes of one parameter or adapter."""
        return (self.specs | self.adapter_specs)[path]

    @property
    def verdict(self) -> str:
        """Whether it runs, in a few words."""
        total, limit = self.padded_bytes_per_chip["total"], self.padded_bytes_per_chip["limit"]
        if not self.possible:
            return "cannot run"
        if not self.fits:
            return f"too big by {(total - limit) / GIB:.2f} GiB a chip"
        return f"fits, {(limit - total) / GIB:.2f} GiB a chip to spare"

    def __str__(self) -> str:
        time = "" if self.seconds is None else f", collectives {in_ms(self.seconds)} a step"
        whole = f", {len(self.replicated)} kinds of arrays replicated" if self.replicated else ""
        return f"{self.job} on {self.slice}: {written(self.axes)}: {self.verdict}{time}{whole}"

    def _lines(self) -> tuple[str, ...]:
        return (str(self), *(str(ring) for ring in self.rings if ring.size > 1))

    def tables(self) -> list[Table]:
        """Memory by kind, collectives, what is replicated, and why not another mesh."""
        return [
            ("Memory of a chip", ("kind", "GiB", "bytes", "padded"), self._memory_rows()),
            (
                "Collectives of a step",
                ("axis", "kind", "over", "count", "GiB a chip", "time", "of"),
                self._moved_rows(),
            ),
            ("Whole on every chip", ("array",), [(str(each),) for each in self.replicated]),
            ("Why not otherwise", ("reason",), [(reason,) for reason in self.reasons[:12]]),
        ]

    def _memory_rows(self) -> list[tuple[str, ...]]:
        logical, padded = self.bytes_per_chip, self.padded_bytes_per_chip
        return [
            (kind, f"{logical[kind] / GIB:.3f}", f"{logical[kind]:,}", f"{padded[kind]:,}")
            for kind in (*KINDS, "total", "limit", "headroom")
            if logical[kind] or kind not in KINDS
        ]

    def _moved_rows(self) -> list[tuple[str, ...]]:
        return [
            (c.axis, c.kind, c.network, f"{c.count:,}", f"{c.bytes / GIB:.4g}",
             "?" if c.seconds is None else in_ms(c.seconds), c.what)
            for c in self.collectives
        ]  # fmt: skip
