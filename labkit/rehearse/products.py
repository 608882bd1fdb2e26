"""Matrix products to rehearse: the smallest steps that show what a sharding costs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit.errors import LabError
from labkit.rehearse.program import Program

# How x[m, k] @ w[k, n] is laid over the axis `tp`: specs of x, w and the result.
LAYOUTS = {
    "column": (P(None, None), P(None, "tp"), P(None, "tp")),
    "row": (P(None, "tp"), P("tp", None), P(None, None)),
    "whole": (P(None, None), P(None, None), P(None, None)),
}


def matmul(mesh: Mesh, *, m: int, k: int, n: int, layout: str = "column", dtype: str = "bfloat16") -> Program:
    """x[m, k] @ w[k, n], the columns or the rows of w over `tp`, or all of it on every device."""
    if layout not in LAYOUTS:
        raise LabError(f"Unknown layout {layout!r}.", hint=f"One of {', '.join(LAYOUTS)}.")
    left, right, result = LAYOUTS[layout]

    def array(shape: tuple[int, int], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    def step(x: Any, w: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, result))

    return Program(step, (array((m, k), left), array((k, n), right)), (), m, 2.0 * m * k * n)
