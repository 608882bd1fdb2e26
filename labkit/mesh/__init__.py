"""From a slice of chips to shardings that divide, and real arrays placed by them."""

from __future__ import annotations

import importlib
from typing import Any

# Each is loaded when it is first used. `plan`, `topology` and their records need no JAX.
_LAZY = {
    "Axes": "devices",
    "Candidate": "mesh_plan",
    "Collective": "traffic",
    "Holding": "holdings",
    "Holdings": "holdings",
    "Job": "objectives",
    "MeshPlan": "mesh_plan",
    "Placement": "placement",
    "Processes": "distributed",
    "Replicated": "rules",
    "Ring": "torus",
    "Spoken": "local",
    "Topology": "torus",
    "assert_sharded_like": "placement",
    "axis_sizes": "axes",
    "check_sharding": "placement",
    "data_shard": "placement",
    "figure": "holdings",
    "initialize": "distributed",
    "inspect": "holdings",
    "inspect_as": "holdings",
    "load": "placement",
    "make_mesh": "devices",
    "objective": "objectives",
    "optimizer": "placement",
    "plan": "planner",
    "row_axes": "placement",
    "run_processes": "local",
    "shard_model": "placement",
    "topology": "torus",
    "topology_devices": "devices",
    "with_axes": "axes",
}

__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"labkit.mesh.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'labkit.mesh' has no attribute {name!r}")
