"""The one thing that a training step is fed."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, Int
from numpy import ndarray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Rows of packed or padded samples, a pytree of arrays of one shape `[B, T]`.

    `loss_mask` at t says whether the token at t is a target that counts: it is predicted from t - 1, so it is never
    set on the first token of a sample. The loss shifts by one, the data does not. `positions` restart in each sample,
    `segment_ids` count samples in a row from 1 and are 0 on padding.
    """

    tokens: Int[Array | ndarray, "B T"]
    loss_mask: Bool[Array | ndarray, "B T"]
    positions: Int[Array | ndarray, "B T"]
    segment_ids: Int[Array | ndarray, "B T"]
