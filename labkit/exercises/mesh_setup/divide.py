"""Mesh lab, exercise 4: a PartitionSpec that divides and leaves least whole."""

from __future__ import annotations

import math
from typing import Any

from labkit import models
from labkit.exercises.frame import Coding, Wrong

AXES = {"fsdp": 2, "tp": 8}


def spec() -> tuple[str | None, ...]:
    """Heads stay whole; the head's own dimension takes their place, and the width goes over `fsdp`."""
    return (None, "fsdp", "tp")


def _shape() -> tuple[int, int, int]:
    found = models.get("gemma4-31b")
    layer = found.layer_types.index("global")
    return found.layer_kv_heads(layer), found.embed_dim, found.layer_head_dim(layer)


def _divides(answer: Any) -> str | None:
    shape = _shape()
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return f"The answer has one entry for each of the 3 dimensions of {shape}."
    used = [axis for axis in answer if axis is not None]
    if unknown := [axis for axis in used if axis not in AXES]:
        return f"The mesh has the axes fsdp and tp, not {unknown[0]!r}."
    if len(set(used)) < len(used):
        return "An axis can split one dimension only."
    for size, axis in zip(shape, answer, strict=True):
        if axis and size % AXES[axis]:
            return f"{axis}={AXES[axis]} does not divide a dimension of {size}."
    ways = math.prod(AXES[axis] for axis in used)
    best = math.prod(AXES.values())
    if ways < best:
        return f"It divides, but each chip holds 1/{ways} of the array. With both axes used it would be 1/{best}."
    return None


EXERCISE = Coding(
    name="mesh_4",
    title="Four heads on eight chips",
    minutes=6,
    question="""
    The global layers of Gemma 4 31B have a `k_einsum` of shape (4 KV heads, 5376, 512). On a mesh of `fsdp=2, tp=8` the
    usual spec `("tp", "fsdp", None)` fails. Give `spec`, a tuple of three entries ("fsdp", "tp" or None), that divides
    and leaves on each chip as little of the array as possible.
    """,
    hints=(
        "Which of the three dimensions does 8 divide?",
        "Both axes have to be used, each for one dimension.",
    ),
    solution_code=spec,
    value=True,
    tests=(_divides,),
    praise="A sixteenth on each chip.",
    because="""
    For memory that is the best. For time it is not: split within a head, every attention score is a sum over chips. To
    leave these ten small arrays whole over `tp` (`on_indivisible="replicate"`) or to take `tp=4` is what one would do.
    """,
    wrong=(
        Wrong(("tp", "fsdp", None), "does not divide a dimension of 4"),
        Wrong((None, "fsdp", None), "1/2 of the array"),
        Wrong((None, "tp", "tp"), "one dimension only"),
        Wrong(("fsdp", "tp"), "one entry for each"),
        Wrong((None, "fsdp", "model"), "not 'model'"),
    ),
)
