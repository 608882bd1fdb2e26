"""From logical axes to mesh axes: the sharding rules of the model families, and what to do where they do not divide.

Standard library only. Each dimension of a parameter has a name; a rule says which mesh axis, if any, splits the
dimensions of that name. The default rules give what Tunix's own models ask for.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from labkit import models
from labkit.errors import LabError, nearest
from labkit.mesh.sizes import nbytes, padded_bytes
from labkit.models.linears import Linear
from labkit.models.states import Param, abstract_state
from labkit.records import Record

Spec = tuple[str | None, ...]
Rules = Mapping[str, str | None]
OnIndivisible = Literal["error", "replicate"]

# The dimensions of each parameter, by the end of its path. A K and V projection of a single head has its own name for
# that dimension, since Tunix never splits it.
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "embedder.input_embedding": ("vocab", "embed"),
    "embedder.per_layer_input_embedding": ("vocab", "layer", "per_layer_embed"),
    "embedder.per_layer_model_projection.w": ("embed", "layer", "per_layer"),
    "lm_head.w": ("embed", "vocab"),
    "q_einsum.w": ("heads", "embed", "head_dim"),
    "k_einsum.w": ("kv_heads", "embed", "head_dim"),
    "kv_einsum.w": ("kv", "kv_heads", "embed", "head_dim"),
    "qkv_einsum.w": ("kv", "heads", "embed", "head_dim"),
    "attn_vec_einsum.w": ("heads", "head_dim", "embed"),
    "q_proj.w": ("embed", "heads", "head_dim"),
    "k_proj.w": ("embed", "kv_heads", "head_dim"),
    "v_proj.w": ("embed", "kv_heads", "head_dim"),
    "o_proj.w": ("heads", "head_dim", "embed"),
    "gate_proj.kernel": ("embed", "mlp"),
    "up_proj.kernel": ("embed", "mlp"),
    "down_proj.kernel": ("mlp", "embed"),
    "per_layer_input_gate.w": ("embed", "per_layer"),
    "per_layer_projection.w": ("per_layer", "embed"),
    "skip_scale": ("scale",),
    "_query_norm.scale": ("head_norm",),
    "_key_norm.scale": ("head_norm",),
    "q_norm.w": ("head_norm",),
    "k_norm.w": ("head_norm",),
}
_NORM = ("norm",)
RULES: dict[str, str | None] = {
    "vocab": "tp",
    "heads": "tp",
    "kv_heads": "tp",
    "mlp": "tp",
    "per_layer": "tp",
    "norm": "tp",
    "head_norm": "tp",
    "embed": "fsdp",
    "per_layer_embed": "fsdp",
}
FAMILY_RULES: dict[str, dict[str, str | None]] = {"gemma3": {"head_norm": None}}
NAMES = tuple(sorted({name for dims in DIMENSIONS.values() for name in dims} | {"norm", "kv_head", "rank"}))


@dataclass(frozen=True, eq=False)
class Arrays:
    """Parameters of one shape and one meaning: `names` are their dimensions', `paths` has one for each of them.

    They are made once for each model, and compared by identity.
    """

    paths: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.paths)


@dataclass(frozen=True)
class Replicated(Record):
    """A dimension that is whole on every device, because its mesh axis does not divide it."""

    path: str
    others: int
    dimension: int
    name: str
    shape: tuple[int, ...]
    axis: str
    size: int

    def __str__(self) -> str:
        more = f" and {self.others} more like it" if self.others else ""
        return (
            f"{self.path} {self.shape}{more}: dimension {self.dimension} ({self.name}) is "
            f"{self.shape[self.dimension]}, which {self.axis}={self.size} does not divide"
        )


def rules_of(family: str, changes: Rules | None = None) -> dict[str, str | None]:
    """The rules of a model family, with changes such as `{"kv_heads": None}`."""
    for name in changes or {}:
        if name not in NAMES:
            raise LabError(f"No dimension is named {name!r}.", hint=f"Nearest: {nearest(name, NAMES)}.")
    return RULES | FAMILY_RULES.get(family, {}) | dict(changes or {})


def dimensions(param: Param) -> tuple[str, ...]:
    """The names of the dimensions of a parameter of a Tunix model."""
    tail = ".".join(param.path.split(".")[-2:])
    names = DIMENSIONS.get(tail) or DIMENSIONS.get(param.path.rpartition(".")[2]) or _under_embedder(param.path)
    names = names or _NORM
    if len(names) != len(param.shape):
        raise LabError(f"labkit does not know the dimensions of {param.path} {param.shape}.")
    if tail == "kv_einsum.w" and param.shape[1] == 1:
        return tuple("kv_head" if name == "kv_heads" else name for name in names)
    return names


def _under_embedder(path: str) -> tuple[str, ...] | None:
    return DIMENSIONS.get(path)


@functools.cache
def weights(model: str, dtype: str) -> tuple[Arrays, ...]:
    """The parameters of a registry model, alike ones together."""
    return _grouped((param, dimensions(param)) for param in abstract_state(model, dtype))


@functools.lru_cache(maxsize=256)
def adapters(model: str, chosen: tuple[Linear, ...], rank: int, dtype: str) -> tuple[Arrays, ...]:
    """The LoRA adapters of the chosen linears, alike ones together; each has its weight's dimensions, and the rank."""
    by_path = {param.path: dimensions(param) for param in abstract_state(model)}
    pairs = []
    for linear in chosen:
        for param in linear.adapters(rank, by_path[linear.parameter], dtype):
            pairs.append((param, tuple(name or "rank" for name in param.axes)))
    return _grouped(pairs)


def _grouped(pairs: Iterable[tuple[Param, tuple[str, ...]]]) -> tuple[Arrays, ...]:
    found: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for param, names in pairs:
        kind = ".".join(part for part in param.path.split(".") if not part.isdigit())
        found[kind, param.shape, param.dtype, names].append(param.path)
    return tuple(
        Arrays(tuple(paths), shape, dtype, names)  # type: ignore[arg-type]
        for (_, shape, dtype, names), paths in found.items()
    )


class Split(NamedTuple):
    """How arrays are split: the mesh axis of each dimension, the shape of a device's part, what was left whole."""

    spec: Spec
    shape: tuple[int, ...]
    whole: tuple[Replicated, ...]


def resolve(arrays: Arrays, rules: Rules, sizes: Mapping[str, int], on_indivisible: OnIndivisible = "error") -> Split:
    """How the rules split arrays over a mesh with axes of these sizes.

    Raises:
        LabError: with `on_indivisible="error"`, a dimension that its mesh axis does not divide; always, an axis that
            would split two dimensions of one array.
    """
    axes = tuple([rules.get(name) for name in arrays.names])
    found = _split(arrays, axes, tuple([sizes.get(axis, 1) if axis else 1 for axis in axes]))
    if found.whole and on_indivisible == "error":
        raise indivisible(found.whole[0])
    return found


@functools.lru_cache(maxsize=65536)
def _split(arrays: Arrays, axes: Spec, ways: tuple[int, ...]) -> Split:
    named = [axis for axis in axes if axis]
    twice = [axis for axis in named if named.count(axis) > 1]
    if twice:
        raise LabError(
            f"The rules split two dimensions of {arrays.paths[0]} {arrays.shape} over {twice[0]!r}.",
            hint=f"Its dimensions are {', '.join(arrays.names)}: give one of them another axis.",
        )
    dims = list(enumerate(zip(arrays.shape, ways, strict=True)))
    odd = [i for i, (size, count) in dims if size % count]
    spec = tuple(None if i in odd else axis for i, axis in enumerate(axes))
    shape = tuple(size if i in odd else size // count for i, (size, count) in dims)
    whole = tuple(
        Replicated(arrays.paths[0], arrays.count - 1, i, arrays.names[i], arrays.shape, axes[i] or "", ways[i])
        for i in odd
    )
    return Split(spec, shape, whole)


@functools.lru_cache(maxsize=65536)
def device_bytes(arrays: Arrays, shape: tuple[int, ...]) -> tuple[int, int]:
    """Logical and padded bytes of all of these arrays, of each of which a device holds a part of this shape."""
    return arrays.count * nbytes(shape, arrays.dtype), arrays.count * padded_bytes(shape, arrays.dtype)


def indivisible(fault: Replicated) -> LabError:
    """The error of a dimension that does not divide, with the choices that there are."""
    size = fault.shape[fault.dimension]
    smaller = math.gcd(size, fault.size)
    return LabError(
        f"{fault}.",
        hint=f"Choose {fault.axis}={smaller} or another divisor of {size}, leave the array whole on each chip with "
        f'on_indivisible="replicate", or split another dimension by rules such as {{"{fault.name}": None}}.',
    )


def of_model(model: str, changes: Rules | None = None) -> dict[str, str | None]:
    """The rules of a registry model's family."""
    return rules_of(models.get(model).family, changes)
