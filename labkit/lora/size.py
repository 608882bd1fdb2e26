"""How large adapters would be, from shapes alone."""

from __future__ import annotations

import dataclasses
import functools
import re

from labkit import models
from labkit.lora.linears import Linear, linears, select
from labkit.models import ModelSpec
from labkit.models import linears as stored
from labkit.records import Record


@dataclasses.dataclass(frozen=True)
class AdapterSize(Record):
    """Adapters of one rank on one model: number of parameters, and bytes at `bytes_per_parameter`."""

    model: str
    rank: int
    targets: str
    linears: int
    parameters: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.model} rank {self.rank} on {self.targets!r}: {self.parameters:,} parameters, {self.bytes:,} bytes"
        )


def size(spec: ModelSpec | str, rank: int, targets: str = "all", *, bytes_per_parameter: int = 2) -> AdapterSize:
    """Parameters and bytes of the adapters that `inject` would make; no weight is allocated.

    The first call for a model outside the registry traces its shapes (a second or so), later ones only add up.
    """
    spec = models.get(spec) if isinstance(spec, str) else spec
    chosen = select(linears_of(spec), targets)
    parameters = sum(linear.adapter_parameters(rank) for linear in chosen)
    return AdapterSize(spec.name, rank, targets, len(chosen), parameters, parameters * bytes_per_parameter)


def linears_of(spec: ModelSpec | str) -> tuple[Linear, ...]:
    """The linears of a registry model or spec, from shapes alone: as `linears(models.abstract(spec))`, but quick."""
    spec = models.get(spec) if isinstance(spec, str) else spec
    if spec.name in models.names() and spec == models.get(spec.name):
        return stored.linears_of(spec.name)
    return _linears(spec.to_json())


@functools.lru_cache(maxsize=64)
def _linears(spec_json: str) -> tuple[Linear, ...]:
    """Builds one layer of each kind, since tracing all 60 layers of a large model takes ten seconds and more."""
    spec = ModelSpec.from_json(spec_json)
    small, source = _one_of_each_kind(spec)
    built = linears(models.abstract(small))
    return tuple(_in_layer(x, i) for i, like in enumerate(source) for x in built if x.layer == like)


def _one_of_each_kind(spec: ModelSpec) -> tuple[ModelSpec, list[int]]:
    """A spec with the shortest runs of layers that hold every kind, and for each layer of `spec` its like there."""
    kinds = [(kind, spec.layer_shares_kv(i)) for i, kind in enumerate(spec.layer_types)]
    first = [kinds.index(kind) for kind in kinds]
    shared_from = spec.num_layers - spec.num_kv_shared_layers
    own = range(max(i for i in first if i < shared_from) + 1)
    shared = range(shared_from, max(first) + 1)
    kept = [*own, *shared]
    types = tuple(spec.layer_types[i] for i in kept)
    small = dataclasses.replace(spec, num_layers=len(kept), layer_types=types, num_kv_shared_layers=len(shared))
    return small, [kept.index(i) for i in first]


def _in_layer(linear: Linear, layer: int) -> Linear:
    return dataclasses.replace(linear, path=re.sub(r"^layers/\d+", f"layers/{layer}", linear.path))
