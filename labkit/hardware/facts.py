"""Chips and what is known of them, each value with its source. Standard library only."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from labkit import resources
from labkit.errors import LabError, nearest
from labkit.records import Record

GIB = 2**30
_DTYPES = ("bf16", "int8", "int4", "fp8")


@dataclasses.dataclass(frozen=True)
class Disagreement(Record):
    """Another value that a source gives for the same quantity."""

    value: float | str | None
    source: str
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.unit} [{self.source}]{'; ' + self.note if self.note else ''}"


@dataclasses.dataclass(frozen=True)
class Sourced(Record):
    """One quantity with its unit and the sources of its value; `disagreements` lists what other sources say."""

    value: float | str | None
    unit: str
    sources: tuple[str, ...]
    note: str = ""
    disagreements: tuple[Disagreement, ...] = ()

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.value} {self.unit}{note} [{'; '.join(self.sources) or 'no source'}]"


@dataclasses.dataclass(frozen=True)
class Chip(Record):
    """One accelerator chip. Every quantity is per chip unless its name says otherwise; None is not known.

    `peak_flops` is by dtype ("bf16", "int8", "int4", "fp8"), dense, and lacks a dtype without hardware support.
    `usable_hbm_bytes` is what the TPU compiler lets a program use (of a GPU: all of it).
    `ici_link_bandwidth` is one way, per link. `vmem_bytes` is per TensorCore. `devices` is JAX devices per chip at
    run time, `compiler_devices` in a compile-only topology. Bandwidths are in B/s, `clock` in Hz. `facts` holds all
    quantities with unit, sources and disagreements.
    """

    name: str
    title: str
    kind: str
    peak_flops: dict[str, float]
    hbm_bytes: int
    usable_hbm_bytes: int
    hbm_bandwidth: float
    clock: float | None
    cores: int
    devices: int
    compiler_devices: int
    chips_per_host: int | None
    torus_dims: int | None
    ici_links: int | None
    ici_link_bandwidth: float | None
    dcn_bandwidth: float | None
    vmem_bytes: int | None
    mxu_size: int | None
    mxus_per_core: int | None
    pod_chips: int | None
    facts: dict[str, Sourced] = dataclasses.field(repr=False)

    @property
    def usable_hbm_bytes_per_device(self) -> int:
        """HBM that a program on one compile-only device may use, in bytes."""
        return self.usable_hbm_bytes // self.compiler_devices

    def sourced(self, quantity: str) -> Sourced:
        """A quantity with its unit, sources and disagreements, for example ``sourced("hbm_bytes")``."""
        if quantity not in self.facts:
            raise LabError(
                f"{self.name} has no quantity {quantity!r}.", hint=f"Nearest: {nearest(quantity, list(self.facts))}."
            )
        return self.facts[quantity]

    def source(self, quantity: str) -> str:
        """Where the value of a quantity comes from, written out."""
        keys = self.sourced(quantity).sources
        return "; ".join(_data()["sources"][key] for key in keys) or "no source"

    def __str__(self) -> str:
        return (
            f"{self.title}: {self.peak_flops['bf16'] / 1e12:,.0f} bf16 TFLOP/s, "
            f"{self.usable_hbm_bytes / GIB:.2f} GiB usable HBM at {self.hbm_bandwidth / 1e9:,.0f} GB/s"
        )


@functools.cache
def _data() -> dict[str, Any]:
    return resources.load_json("hardware.json")


@functools.cache
def chips() -> tuple[Chip, ...]:
    """Every chip of data/hardware.json: TPU v2 to Ironwood, then the GPUs kept for reference."""
    return tuple(_chip(name, entry) for name, entry in _data()["chips"].items())


def _chip(name: str, entry: dict[str, Any]) -> Chip:
    facts = {key: Sourced.from_dict(value) for key, value in entry["facts"].items()}
    plain = {key: fact.value for key, fact in facts.items()}
    fields = {f.name for f in dataclasses.fields(Chip)}
    peaks = {dtype: plain[f"peak_{dtype}"] for dtype in _DTYPES if plain.get(f"peak_{dtype}")}
    known: dict[str, Any] = dict.fromkeys(fields) | {"cores": 1, "devices": 1, "compiler_devices": 1}
    known |= {key: value for key, value in plain.items() if key in fields}
    # A GPU runtime does not say what it keeps for itself: nominal and usable are then one.
    known["usable_hbm_bytes"] = known["usable_hbm_bytes"] or known["hbm_bytes"]
    return Chip(
        **known | {"name": name, "title": entry["title"], "kind": entry["kind"], "peak_flops": peaks, "facts": facts}
    )


def chip(name: str) -> Chip:
    """A chip by name or usual alias ("v5e", "v5litepod", "TPU v5 lite", "ironwood", "h100"), in any case."""
    key = name.strip().lower()
    names = _names()
    if key not in names:
        raise LabError(f"There is no chip {name!r}.", hint=f"Nearest: {nearest(key, list(names))}.")
    return names[key]


@functools.cache
def _names() -> dict[str, Chip]:
    found = {c.name: c for c in chips()}
    for entry, made in zip(_data()["chips"].values(), chips(), strict=True):
        found |= {alias.lower(): made for alias in entry["aliases"]}
    return found


@dataclasses.dataclass(frozen=True)
class Rule(Record):
    """A rule in words, with the keys of its sources."""

    rule: str
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.rule} [{'; '.join(self.sources)}]"


def rules() -> tuple[Rule, ...]:
    """How slices are named, shaped and wrapped, in words."""
    data = _data()["slices"]
    return tuple(Rule.from_dict(entry) for entry in (*data["naming_pitfalls"], *data["rules"]))


def sources() -> dict[str, str]:
    """The sources of data/hardware.json, by key."""
    return dict(_data()["sources"])
