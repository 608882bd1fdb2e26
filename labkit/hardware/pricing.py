"""List prices, each with region, kind and date. Standard library only."""

from __future__ import annotations

import dataclasses
import functools

from labkit import resources
from labkit.errors import LabError, nearest
from labkit.hardware.facts import chip
from labkit.hardware.naming import Slice
from labkit.records import Record


@dataclasses.dataclass(frozen=True)
class Price(Record):
    """One list price, in USD per chip and hour. `kind` is "on_demand" or "spot"; `date` is when it was read."""

    item: str
    chip: str
    kind: str
    usd_per_chip_hour: float
    region: str
    date: str
    source: str
    note: str = ""
    chips: int = 1

    @property
    def usd_per_hour(self) -> float:
        """For all `chips`."""
        return self.usd_per_chip_hour * self.chips

    def __str__(self) -> str:
        return (
            f"{self.item}: {self.usd_per_chip_hour:.4g} USD per chip-hour, {self.usd_per_hour:.2f} USD per hour for "
            f"{self.chips} chips ({self.kind}, {self.region}, {self.date}; {self.source})"
        )


@functools.cache
def prices(chip_name: str | None = None) -> tuple[Price, ...]:
    """Every price of data/prices.json, or those of one chip; the newest first, then the cheapest."""
    wanted = chip(chip_name).name if chip_name else None
    data = resources.load_json("prices.json")
    rows = [Price.from_dict(row | {"source": data["sources"][row["source"]]}) for row in data["prices"]]
    kept = [row for row in rows if wanted in (None, row.chip)]
    by_price = sorted(kept, key=lambda row: row.usd_per_chip_hour)
    return tuple(sorted(by_price, key=lambda row: row.date, reverse=True))


def price(of: Slice, kind: str = "on_demand", region: str | None = None) -> Price:
    """What a slice costs: the newest price of its chip of this kind, in `region` or, without one, the cheapest.

    Raises:
        LabError: no price of that kind or region is on record, with those that are.
    """
    known = prices(of.chip.name)
    if not known:
        raise LabError(
            f"No list price of {of.chip.title} is on record.",
            hint="Add a row with region and date to data/prices.json.",
        )
    kinds = sorted({row.kind for row in known})
    if kind not in kinds:
        raise LabError(f"No {kind!r} price of {of.chip.title} is on record.", hint=f"On record: {', '.join(kinds)}.")
    rows = [row for row in known if row.kind == kind and region in (None, row.region)]
    if not rows:
        regions = sorted({row.region for row in known if row.kind == kind})
        raise LabError(
            f"No {kind} price of {of.chip.title} in {region!r} is on record.",
            hint=f"Nearest: {nearest(str(region), regions)}.",
        )
    return dataclasses.replace(rows[0], item=of.name, chips=of.chips)
