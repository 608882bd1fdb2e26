"""Facts about chips, slices and prices, each with its source. Standard library only, no JAX."""

from __future__ import annotations

from labkit.hardware.facts import GIB, Chip, Disagreement, Rule, Sourced, chip, chips, rules, sources
from labkit.hardware.naming import Slice, legal_shapes, slice, slices
from labkit.hardware.pricing import Price, price, prices

__all__ = [
    "GIB",
    "Chip",
    "Disagreement",
    "Price",
    "Rule",
    "Slice",
    "Sourced",
    "chip",
    "chips",
    "legal_shapes",
    "price",
    "prices",
    "rules",
    "slice",
    "slices",
    "sources",
]
