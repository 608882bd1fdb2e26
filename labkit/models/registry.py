"""The models that labkit knows by name. Standard library only: planners and web pages use it without JAX."""

from __future__ import annotations

import functools
from typing import Any

from labkit import resources
from labkit.errors import LabError, nearest
from labkit.models.spec import ModelSpec

_KINDS = {"L": "local", "G": "global"}


@functools.cache
def _registry() -> dict[str, ModelSpec]:
    data = resources.load_json("models.json")
    return {name: _spec(name, data["families"][entry["family"]] | entry) for name, entry in data["models"].items()}


def _spec(name: str, entry: dict[str, Any]) -> ModelSpec:
    pattern = entry["layer_pattern"]
    values = {k: v for k, v in entry.items() if k not in ("layer_pattern", "source")}
    kinds = [_KINDS[pattern[i % len(pattern)]] for i in range(entry["num_layers"])]
    return ModelSpec.from_dict({"name": name, "layer_types": kinds} | values)


def names() -> tuple[str, ...]:
    """The names that `get` and `load` take, smallest models of each family first."""
    return tuple(_registry())


def get(name: str) -> ModelSpec:
    """The spec of a registry model. An unknown name is a `LabError` that lists the nearest."""
    try:
        return _registry()[name]
    except KeyError:
        raise LabError(f"There is no model {name!r}.", hint=f"Nearest: {nearest(name, names())}.") from None
