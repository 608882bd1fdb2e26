"""From a slice of chips to shardings that divide, and real arrays placed by them."""

from __future__ import annotations

import importlib
from typing import Any

# What needs JAX is loaded when it is first used.
_LAZY = {
    "Axes": "devices",
    "Holding": "holdings",
    "Holdings": "holdings",
    "Placement": "placement",
    "Processes": "distributed",
    "assert_sharded_like": "placement",
    "axis_sizes": "devices",
    "check_sharding": "placement",
    "data_shard": "placement",
    "figure": "holdings",
    "initialize": "distributed",
    "inspect": "holdings",
    "inspect_as": "holdings",
    "load": "placement",
    "make_mesh": "devices",
    "optimizer": "placement",
    "row_axes": "placement",
    "shard_model": "placement",
    "topology_devices": "devices",
}

__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"labkit.mesh.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'labkit.mesh' has no attribute {name!r}")
