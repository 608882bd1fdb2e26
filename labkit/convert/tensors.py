"""Tensors of a Hugging Face checkpoint, there to be read a block of rows at a time, wherever they come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from labkit.models import reading
from labkit.models.checkpoints import TensorInfo
from labkit.models.layout import Row

PIECE = 2**25  # bytes of a piece: large enough to keep the disk busy, small beside a tensor


@dataclass(frozen=True)
class Tensor:
    """One tensor by its Hugging Face name. `rows(start, stop)` reads rows of its first axis, multiples of `block`."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Callable[[int, int], jax.Array]
    block: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    def ranges(self, size: int = PIECE) -> Iterator[tuple[int, int]]:
        """The tensor cut into ranges of rows of about `size` bytes."""
        row = max(1, self.nbytes // max(1, self.shape[0]))
        step = max(1, size // (row * self.block)) * self.block
        for start in range(0, self.shape[0], step):
            yield start, min(start + step, self.shape[0])


def of_row(row: Row, dtype: Any, value: Callable[[], jax.Array]) -> Tensor:
    """The tensor of a Tunix parameter, by the layout table; `value` gets the parameter whenever rows are asked for.

    Rows of the tensor are a range of one of the parameter's axes, the first that the tensor's first axis joins. So
    slice, transpose and reshape are one pass on the device, and no second copy of the whole is made.
    """
    if not row.axes:
        return Tensor(row.hf, row.hf_shape, np.dtype(dtype), lambda start, stop: _rows(value(), start, stop - start))
    first = row.hf_groups[0]
    block = math.prod(row.sizes[axis] for axis in first[1:])
    cut = functools.partial(_moved, axes=row.axes, part=row.part, at=row.tunix_axes.index(first[0]))

    def rows(start: int, stop: int) -> jax.Array:
        return cut(value(), start // block, count=(stop - start) // block)

    return Tensor(row.hf, row.hf_shape, np.dtype(dtype), rows, block)


def of_file(name: str, info: TensorInfo) -> Tensor:
    """A tensor of a safetensors file; the file is mapped anew for each piece, so that no page of it stays in memory."""

    def rows(start: int, stop: int) -> jax.Array:
        return jnp.array(reading.mapped(info)[start:stop])

    return Tensor(name, info.shape, np.dtype(reading.DTYPES[info.dtype]), rows)


def of_rows(table: tuple[Row, ...], dtypes: Mapping[str, Any], get: Callable[[str], jax.Array]) -> dict[str, Tensor]:
    """All tensors of a Tunix model, by name; `get` has a parameter's value by its path, `dtypes` its dtype."""
    return {row.hf: of_row(row, dtypes[row.tunix], functools.partial(get, row.tunix)) for row in table}


@functools.partial(jax.jit, static_argnames=("count",))
def _rows(value: jax.Array, start: int, count: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(value, start, count, 0)


@functools.partial(jax.jit, static_argnames=("axes", "part", "at", "count"))
def _moved(value: jax.Array, start: int, axes: str, part: int | None, at: int, count: int) -> jax.Array:
    one = value if part is None else value[part]
    return einops.rearrange(lax.dynamic_slice_in_dim(one, start, count, at), axes)
