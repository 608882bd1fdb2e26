"""Are two checkpoints the same, tensor by tensor and in what they say?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from labkit import models
from labkit.convert.to_hf import tunix_parameters
from labkit.errors import LabError
from labkit.records import Record

PROBE = (4, 64)  # rows and tokens of the probe


@dataclass(frozen=True)
class Verification(Record):
    """`equal` is bit for bit; differences are of float32 values, agreement is of the likeliest token."""

    a: str
    b: str
    equal: bool
    max_abs_difference: float
    worst_tensor: str
    max_logit_difference: float
    mean_logit_difference: float
    argmax_agreement: float

    def __str__(self) -> str:
        if self.equal:
            return f"{self.a} and {self.b} are equal, bit for bit"
        return (
            f"{self.a} and {self.b} differ by up to {self.max_abs_difference:.3g} in {self.worst_tensor}; "
            f"logits by {self.max_logit_difference:.3g}, {self.argmax_agreement:.1%} of the likeliest tokens agree"
        )


def verify(a: str | Path, b: str | Path, *, seed: int = 0) -> Verification:
    """Compare two model directories of one shape.

    Raises:
        LabError: models of different parameters.
    """
    left, right = models.load(a), models.load(b)
    one, two = tunix_parameters(left.model), tunix_parameters(right.model)
    for name in sorted(one.keys() | two.keys()):
        shapes = [tuple(side[name].shape) if name in side else None for side in (one, two)]
        if shapes[0] != shapes[1]:
            raise LabError(f"{name} is {shapes[0]} in {a} and {shapes[1]} in {b}.", hint="Compare models of one shape.")
    gaps = {name: _gap(one[name], two[name]) for name in one}
    worst = max(gaps, key=lambda name: gaps[name])
    tokens = np.random.default_rng(seed).integers(0, left.spec.vocab_size, PROBE)
    x, y = (_logits(side.model, tokens) for side in (left, right))
    return Verification(
        a=str(a),
        b=str(b),
        equal=all(np.array_equal(np.asarray(one[n]), np.asarray(two[n])) for n in one),
        max_abs_difference=gaps[worst],
        worst_tensor=worst,
        max_logit_difference=float(np.abs(x - y).max()),
        mean_logit_difference=float(np.abs(x - y).mean()),
        argmax_agreement=float((x.argmax(-1) == y.argmax(-1)).mean()),
    )


def _gap(a: jax.Array, b: jax.Array) -> float:
    return float(np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max())


def _logits(model: nnx.Module, tokens: np.ndarray) -> np.ndarray:
    rows, length = tokens.shape
    positions = np.tile(np.arange(length), (rows, 1))
    mask = np.tile(np.tril(np.ones((length, length), bool)), (rows, 1, 1))
    return np.asarray(nnx.jit(lambda m: m(tokens, positions, None, mask)[0])(model), np.float32)
