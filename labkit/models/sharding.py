"""How the parameters of a Tunix model go over a mesh: by its own metadata, or by specs that replace it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit.errors import LabError, nearest

Specs = Mapping[str, Sequence[Any]]
ROWS = ("dp", "fsdp")  # the mesh axes that rows of a batch go over


def variables(model: nnx.Module) -> dict[str, nnx.Variable]:
    """The model's own variables by path, joined with dots; what is set on them is set on the model."""
    found = nnx.to_flat_state(nnx.state(model))
    return {".".join(map(str, path)): _own(model, path) for path, _ in found}


def axes_of(variable: nnx.Variable) -> tuple[Any, ...]:
    """The mesh axis (or axes, or None) of each dimension, as the variable's metadata has it."""
    axes = tuple(variable.get_metadata().get("out_sharding") or ())
    return axes + (None,) * (len(variable.get_value().shape) - len(axes))


def partition(
    model: nnx.Module,
    mesh: Mesh,
    specs: Specs | None = None,
    on_indivisible: Literal["error", "replicate"] = "error",
) -> dict[str, NamedSharding]:
    """The sharding of each parameter on a mesh, checked; `specs` (by path) are written into the model's metadata.

    What is made from the model afterwards, adapters and optimizer states, takes its sharding from that metadata. On a
    mesh with an axis `dp` the model's activations keep their rows on it.
    `on_indivisible="replicate"` leaves a dimension that does not divide whole on each device, and warns.

    Raises:
        LabError: a spec of no parameter or of too many dimensions, an axis that the mesh lacks or that shards two
            dimensions, a dimension that does not divide.
    """
    _keep_rows(model, mesh)
    found = variables(model)
    for path, axes in (specs or {}).items():
        if path not in found:
            raise LabError(f"The model has no parameter {path}.", hint=f"Nearest: {nearest(path, list(found))}.")
        found[path].set_metadata(out_sharding=tuple(axes))
    whole = []
    for path, variable in found.items():
        shape, axes = tuple(variable.get_value().shape), axes_of(variable)
        if on_indivisible == "error":
            check(path, shape, axes, mesh)
        bad = _indivisible(path, shape, axes, mesh.shape)
        if bad:
            variable.set_metadata(out_sharding=tuple(None if i in bad else axis for i, axis in enumerate(axes)))
            whole += [f"dimension {i} of {path} {shape} over {axes[i]!r}" for i in bad]
    if whole:
        warnings.warn(f"Replicated, because it does not divide: {'; '.join(whole)}.", stacklevel=2)
    return {path: NamedSharding(mesh, P(*axes_of(variable))) for path, variable in found.items()}


def _keep_rows(model: nnx.Module, mesh: Mesh) -> None:
    """Tunix's configs put the rows of activations on `fsdp` alone, which would gather them over `dp` in each layer."""
    if "dp" not in mesh.axis_names:
        return
    rows = tuple(name for name in ROWS if name in mesh.axis_names)
    for holder in (model.config, *(module for _, module in nnx.iter_modules(model) if hasattr(module, "shd_config"))):
        given = holder.shd_config
        names = [field.name for field in dataclasses.fields(given) if field.name.startswith("act_")]
        changed = dataclasses.replace(given, **{name: (rows, *getattr(given, name)[1:]) for name in names})
        if isinstance(holder, nnx.Module):
            holder.shd_config = changed
        else:
            object.__setattr__(holder, "shd_config", changed)  # Tunix's Llama 3 config is frozen


def check(path: str, shape: tuple[int, ...], axes: tuple[Any, ...], mesh: Mesh) -> None:
    """A `LabError`, naming the array, unless these mesh axes can shard it."""
    for i in _indivisible(path, shape, axes, mesh.shape):
        raise LabError(
            f"Dimension {i} of {path} {shape} is {shape[i]}, which mesh axis {axes[i]!r} of "
            f"{_ways(axes[i], mesh.shape)} does not divide.",
            hint=f"Choose a smaller {axes[i]!r}, split another dimension by a spec for this array, or replicate it "
            'with on_indivisible="replicate".',
        )


def _own(model: nnx.Module, path: Sequence[Any]) -> nnx.Variable:
    node: Any = model
    for key in path:
        node = node[key] if isinstance(key, int) else getattr(node, key)
    return node


def _indivisible(path: str, shape: tuple[int, ...], axes: tuple[Any, ...], sizes: Mapping[str, int]) -> list[int]:
    """The dimensions that their axes do not divide; a `LabError` for a spec that makes no sense."""
    if len(axes) > len(shape):
        raise LabError(f"The spec {axes} of {path} has {len(axes)} entries for {len(shape)} dimensions {shape}.")
    named = [name for entry in axes for name in _names(entry)]
    for name in named:
        if name not in sizes:
            raise LabError(
                f"The mesh has axes {tuple(sizes)}, but {path} is sharded over {name!r}.",
                hint=f"Make a mesh with an axis {name!r}; its size may be 1.",
            )
        if named.count(name) > 1:
            raise LabError(f"The spec {axes} of {path} uses axis {name!r} twice.", hint="Leave one of them out.")
    return [i for i, entry in enumerate(axes) if shape[i] % _ways(entry, sizes)]


def _ways(entry: Any, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[name] for name in _names(entry))


def _names(entry: Any) -> tuple[str, ...]:
    """The axes of one dimension: none, one, or several."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)
