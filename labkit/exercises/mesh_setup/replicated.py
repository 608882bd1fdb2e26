"""Mesh lab, exercise 1: find the arrays that every device holds whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit.exercises.frame import Coding, Wrong


def replicated(tree: dict[str, jax.Array]) -> set[str]:
    """The names of the arrays that are whole on every device of their mesh."""
    return {name for name, array in tree.items() if array.sharding.is_fully_replicated}


def _no_axes(tree: dict[str, jax.Array]) -> set[str]:
    return {name for name, array in tree.items() if array.sharding.spec == P()}


def _any_copy(tree: dict[str, jax.Array]) -> set[str]:
    def used(array: jax.Array) -> set[Any]:
        return {axis for axis in jax.tree.leaves(tuple(array.sharding.spec)) if axis}

    def large(array: jax.Array) -> set[Any]:
        return {axis for axis, size in array.sharding.mesh.shape.items() if size > 1}

    return {name for name, array in tree.items() if not large(array) <= used(array)}


def _tree() -> dict[str, Any]:
    """Arrays as shapes with shardings: nothing is allocated, and no device is needed."""
    mesh = AbstractMesh((4, 2, 1), ("fsdp", "tp", "dp"))
    specs = {
        "embedding": P("tp", "fsdp"),
        "norm": P(),
        "bias": P(None),
        "gate": P(None, "tp"),
        "moments": P(None, None),
        "scale": P("dp", None),  # an axis of size 1 splits nothing
    }
    shape = {name: (8,) if name == "bias" else (8, 16) for name in specs}
    return {
        name: jax.ShapeDtypeStruct(shape[name], jnp.float32, sharding=NamedSharding(mesh, spec))
        for name, spec in specs.items()
    }


def _finds_them(answer: Callable[..., Any]) -> str | None:
    tree = _tree()
    found, right = set(answer(tree)), replicated(tree)
    if found == right:
        return None
    if found == _any_copy(tree):
        return "You list every array that has copies. `gate` has some, but no device holds all of it."
    if missed := right - found:
        name = sorted(missed)[0]
        return f"{name!r} is missing: its spec is {tree[name].sharding.spec}, and yet each device holds all of it."
    name = sorted(found - right)[0]
    return f"{name!r} is split: its spec is {tree[name].sharding.spec}."


EXERCISE = Coding(
    name="mesh_1",
    title="Who is whole everywhere?",
    minutes=6,
    question="""
    Write `replicated(tree)`: of a dictionary of arrays, the set of the names of those that *every* device holds whole.
    Each array has a `.sharding`, with a `.spec` and a `.mesh`. Mind that an axis may have size 1.
    """,
    hints=(
        "An axis of size 1 in a spec splits nothing, and `P(None)` is another spec than `P()`.",
        "Look at what a sharding can say of itself: `dir(array.sharding)`.",
    ),
    solution_code=replicated,
    tests=(_finds_them,),
    praise="Those four, and no others.",
    because="""
    Compare behaviour, not spellings: `P()`, `P(None)` and `P('dp')` with `dp=1` all mean whole. `assert_sharded_like`
    of `labkit.mesh` does this for a model and its optimizer: Optax makes its zeros from nothing, so they are whole
    everywhere unless somebody looks.
    """,
    wrong=(
        Wrong(_no_axes, "is missing"),
        Wrong(_any_copy, "no device holds all"),
        Wrong(lambda tree: set(tree), "is split"),
        Wrong(lambda tree: set(), "is missing"),
    ),
)
