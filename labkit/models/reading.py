"""Safetensors to JAX arrays, shard by shard: the host holds one tensor beside the arrays that it makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from labkit.models.checkpoints import TensorInfo
from labkit.models.layout import Row, rows
from labkit.models.spec import ModelSpec

DTYPES = {"BF16": jnp.bfloat16, "F16": jnp.float16, "F32": jnp.float32}


def fill(
    model: nnx.Module, spec: ModelSpec, tensors: Mapping[str, TensorInfo], shardings: Mapping[str, Sharding]
) -> nnx.Module:
    """The abstract model of a spec with the weights of a checkpoint.

    Each device's part of a parameter is cut out of the mapped file and cast, one parameter after the other; the parts
    of other hosts are never read.

    Args:
        model: with a `jax.ShapeDtypeStruct` for each parameter (`labkit.models.abstract`).
        spec: its shapes.
        tensors: where each tensor of the model is, by canonical name (`labkit.models.checkpoints.check`).
        shardings: of each parameter, by its path joined with dots.
    """
    graph, state = nnx.split(model)
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows(spec, {path: tuple(variable.get_value().shape) for path, variable in flat.items()}):
        parts[row.tunix].append(row)
    for path, variable in flat.items():
        wanted = variable.get_value()
        variable.set_value(_place(parts[path], tensors, wanted.shape, wanted.dtype, shardings[path]))
    return nnx.merge(graph, state)


def _place(
    fused: list[Row], tensors: Mapping[str, TensorInfo], shape: tuple[int, ...], dtype: Any, sharding: Sharding
) -> jax.Array:
    views = [row.tunix_view(mapped(tensors[row.hf])) for row in sorted(fused, key=lambda row: row.part or 0)]

    def cut(index: tuple[slice, ...]) -> np.ndarray:
        if fused[0].part is not None:
            return _stack([view[index[1:]] for view in views[index[0]]]).astype(dtype, copy=False)
        part = views[0][index].astype(dtype, copy=False)
        # JAX on CPU may keep a contiguous array as it is, and the file's memory must not become a weight.
        return np.array(part) if part.flags.c_contiguous else part

    placed = jax.make_array_from_callback(shape, sharding, cut)
    return jax.block_until_ready(placed)  # else the copies of the next parameters would pile up on the host


def _stack(parts: list[np.ndarray]) -> np.ndarray:
    """`np.stack`, with the axes in memory as the parts have them: XLA turns them ten times as fast as NumPy."""
    order = sorted(range(parts[0].ndim), key=lambda axis: -parts[0].strides[axis])
    stacked = np.stack([part.transpose(order) for part in parts])
    return stacked.transpose(0, *(1 + int(i) for i in np.argsort(order)))


def mapped(info: TensorInfo) -> np.ndarray:
    """A tensor of a safetensors file as a view of the file, which is let go with the last view."""
    dtype = np.dtype(DTYPES[info.dtype])
    if info.start == info.end:
        return np.empty(info.shape, dtype)
    return np.memmap(info.file, dtype, "r", info.start, info.shape)
