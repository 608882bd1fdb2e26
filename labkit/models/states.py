"""The parameters of each registry model as data: path, shape, dtype, axes. Standard library only."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

from labkit import resources
from labkit.errors import LabError, nearest
from labkit.models import registry
from labkit.records import Record

_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class Param(Record):
    """One parameter of a Tunix model. `axes` names the mesh axis that Tunix's default sharding gives each dimension."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes, without padding."""
        return self.size * _ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.path} {self.dtype}{list(self.shape)}"


@functools.cache
def abstract_state(name: str, dtype: str | None = None) -> tuple[Param, ...]:
    """Every parameter of a registry model as Tunix builds it, in order of path; `dtype` None is the checkpoint's.

    Read from data/abstract_states.json, which scripts/make_abstract_states.py writes.
    """
    spec = registry.get(name)
    dtype = dtype or spec.dtype
    if dtype not in _ITEM_BYTES:
        raise LabError(f"Unknown dtype {dtype!r}.", hint=f"Nearest: {nearest(dtype, list(_ITEM_BYTES))}.")
    groups = resources.load_json("abstract_states.json")["models"][name]
    return in_order(param for group in groups for param in _expand(group, dtype))


def _expand(group: dict[str, Any], dtype: str) -> Iterable[Param]:
    shape, axes = tuple(group["shape"]), tuple(group["axes"])
    paths = [group["path"].replace("*", str(layer)) for layer in group.get("layers", [""])]
    return (Param(path, shape, dtype, axes) for path in paths)


def fold(params: Iterable[Param]) -> list[dict[str, Any]]:
    """The parameters as JSON groups: layers that have one of the same shape and axes are one group with a list."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for param in params:
        parts = param.path.split(".")
        layer = int(parts[1]) if parts[0] == "layers" else None
        path = param.path if layer is None else ".".join(["layers", "*", *parts[2:]])
        new = {"path": path, "shape": list(param.shape), "axes": list(param.axes)}
        group = groups.setdefault((path, param.shape, param.axes), new)
        if layer is not None:
            group.setdefault("layers", []).append(layer)
    return list(groups.values())


def in_order(params: Iterable[Param]) -> tuple[Param, ...]:
    """Sorted by path, layers by number."""
    return tuple(
        sorted(params, key=lambda p: [part.zfill(4) if part.isdigit() else part for part in p.path.split(".")])
    )
