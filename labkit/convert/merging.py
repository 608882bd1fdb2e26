"""Adapters folded into the weights: summed in float32, rounded once, and what the rounding cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32

from labkit.convert.adapters import Adapters
from labkit.convert.tensors import Tensor
from labkit.records import Record

SWALLOWED = 0.1  # share of the adapters' change above which `to_hf` warns


@dataclass(frozen=True)
class MergedLinear(Record):
    """What became of one adapter.

    `change` is the root mean square of scale * B A, `rounding_error` the norm of what rounding added relative to the
    norm of that change, `swallowed` the share of the change (sum of absolute values) in weights that stayed as they
    were.
    """

    name: str
    change: float
    rounding_error: float
    swallowed: float

    def __str__(self) -> str:
        return (
            f"{self.name}: change {self.change:.3g}, rounding error {self.rounding_error:.2%} of it, "
            f"{self.swallowed:.2%} swallowed"
        )


@dataclass(frozen=True)
class MergeReport(Record):
    """What rounding to `dtype` did to each adapter, and to all of them together."""

    dtype: str
    scale: float
    rounding_error: float
    swallowed: float
    linears: tuple[MergedLinear, ...]

    @property
    def worst(self) -> MergedLinear:
        """The linear that lost the largest share."""
        return max(self.linears, key=lambda linear: linear.swallowed)

    def __str__(self) -> str:
        return (
            f"{len(self.linears)} adapters merged into {self.dtype}: rounding error {self.rounding_error:.2%} of the "
            f"change, {self.swallowed:.2%} of it swallowed; worst {self.worst}"
        )

    def _repr_html_(self) -> str:
        head = "<tr><th style='text-align:left'>linear</th><th>change (rms)</th><th>rounding error</th><th>swallowed"
        rows = "".join(
            f"<tr><td style='text-align:left'>{x.name}</td><td>{x.change:.3g}</td><td>{x.rounding_error:.2%}</td>"
            f"<td>{x.swallowed:.2%}</td></tr>"
            for x in self.linears
        )
        return f"<table><caption style='text-align:left'>{self}</caption>{head}</th></tr>{rows}</table>"


class Merger:
    """Turns tensors into what is written: with their adapter, in the dtype asked for, a piece at a time."""

    def __init__(self, adapters: Adapters | None, dtype: np.dtype | None) -> None:
        self.adapters, self.dtype = adapters, dtype
        self._sums: dict[str, np.ndarray] = {}
        self._sizes: dict[str, int] = {}
        self._written = ""

    def pieces(self, tensor: Tensor, ranges: Iterable[tuple[int, int]] = ()) -> Iterator[tuple[np.ndarray, int]]:
        """Each piece as it is written, and how many of its values are not finite; `ranges` of rows cut the pieces."""
        ranges = ranges or tensor.ranges()
        dtype = self.dtype or tensor.dtype
        module = tensor.name.removesuffix(".weight")
        pair = self.adapters.pairs.get(module) if self.adapters else None
        if pair is None:
            for start, stop in ranges:
                written, bad = _cast(tensor.rows(start, stop), dtype)
                yield np.asarray(written), int(bad)
            return
        assert self.adapters is not None
        a, scale = jnp.asarray(pair.a, jnp.float32), jnp.float32(self.adapters.scale)
        sums = np.zeros(4)
        for start, stop in ranges:
            b = jnp.asarray(pair.b[start:stop], jnp.float32)
            written, bad, found = merge(tensor.rows(start, stop), a, b, scale, dtype)
            sums += np.asarray(found, np.float64).sum(-1)
            yield np.asarray(written), int(bad)
        self._sums[module], self._sizes[module] = sums, math.prod(tensor.shape)
        self._written = np.dtype(dtype).name

    def report(self) -> MergeReport | None:
        """What the merge cost so far; None where nothing was merged."""
        if not self._sums or self.adapters is None:
            return None
        total = sum(self._sums.values(), np.zeros(4))
        linears = tuple(
            MergedLinear(name, math.sqrt(sums[0] / self._sizes[name]), *_shares(sums))
            for name, sums in self._sums.items()
        )
        return MergeReport(self._written, self.adapters.scale, *_shares(total), linears)


def _shares(sums: np.ndarray) -> tuple[float, float]:
    """Rounding error and swallowed share of the sums that `merge` makes."""
    squares, errors, change, lost = sums
    return (math.sqrt(errors / squares) if squares else 0.0), (lost / change if change else 0.0)


@functools.partial(jax.jit, static_argnames=("dtype",))
def merge(
    weight: Float[Array, "out in"],
    a: Float32[Array, "r in"],
    b: Float32[Array, "out r"],
    scale: Float32[Array, ""],
    dtype: Any,
) -> tuple[Float[Array, "out in"], Array, Float32[Array, "4 out"]]:
    """W + scale * B A in float32, rounded once to `dtype`.

    Returns:
        The sum; how many of its values are not finite; and for each row the sums of the change's squares, of the
        rounding error's squares, of the change's absolute values, and of those in weights that did not change.
    """
    plain = weight.astype(jnp.float32)
    change = scale * jnp.matmul(b, a, precision="highest")
    exact = plain + change
    written = lax.optimization_barrier(exact.astype(dtype))  # else XLA drops the rounding and finds no error
    error = written.astype(jnp.float32) - exact
    size = jnp.abs(change)
    unchanged = written == weight.astype(dtype)
    sums = [change**2, error**2, size, jnp.where(unchanged, size, 0.0)]
    return written, _bad(written), jnp.stack([jnp.sum(x, -1) for x in sums])


@functools.partial(jax.jit, static_argnames=("dtype",))
def _cast(piece: Array, dtype: Any) -> tuple[Array, Array]:
    written = piece.astype(dtype)
    return written, _bad(written)


def _bad(values: Array) -> Array:
    return jnp.sum(~jnp.isfinite(values), dtype=jnp.int32)
