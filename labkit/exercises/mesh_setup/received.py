"""Mesh lab, exercise 2: the bytes that a chip receives in a collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.exercises.answers import as_number
from labkit.exercises.frame import Coding, Wrong


def received_bytes(size: int, ways: int, kind: str) -> float:
    """Bytes that each of `ways` chips receives, for an array of `size` bytes in all, in a ring."""
    once = size * (ways - 1) / ways  # all parts but its own
    return 2 * once if kind == "all-reduce" else once


def _whole(size: int, ways: int, kind: str) -> float:
    return size * (2 if kind == "all-reduce" else 1)


def _once(size: int, ways: int, kind: str) -> float:
    return size * (ways - 1) / ways


def _a_part(size: int, ways: int, kind: str) -> float:
    return size / ways * (2 if kind == "all-reduce" else 1)


def _test(answer: Callable[..., Any]) -> str | None:
    for size, ways in ((4096, 4), (2**30, 8), (100, 1)):
        for kind in ("all-gather", "reduce-scatter", "all-reduce"):
            value, right = as_number(answer(size, ways, kind)), received_bytes(size, ways, kind)
            if value is None:
                return "The function has to return one number."
            if abs(value - right) <= 1e-6 * max(right, 1):
                continue
            if value == _whole(size, ways, kind):
                return "A chip has its own part already: it does not receive that one."
            if kind == "all-reduce" and value == _once(size, ways, kind):
                return (
                    "An all-reduce first sums the parts (a reduce-scatter) and then hands them round (an all-gather)."
                )
            return f"{kind} of {size:,} bytes over {ways} chips: {value:,.0f} is not what a chip receives."
    return None


EXERCISE = Coding(
    name="mesh_2",
    title="What does a collective move?",
    minutes=6,
    question="""
    An array of `size` bytes in all goes through a collective over `ways` chips that form a ring. Write
    `received_bytes(size, ways, kind)`: the bytes that *each* chip receives, for `kind` "all-gather" (each has one part
    and wants all), "reduce-scatter" (each has a whole summand and wants its part of the sum) and "all-reduce" (each
    wants the whole sum).
    """,
    hints=(
        "In an all-gather, what does a chip lack? With one chip, nothing moves at all.",
        "In a reduce-scatter, partial sums travel round the ring: in each of `ways - 1` steps one part of the array.",
        "An all-reduce is a reduce-scatter and then an all-gather.",
    ),
    solution_code=received_bytes,
    tests=(_test,),
    praise="Right for all three.",
    because="""
    Nearly the same for 4 chips as for 256: `size * (ways - 1) / ways`. Over the speed of the links this is the least
    time of the collective (How to Scale Your Model, 2025, chapter Sharding).
    """,
    wrong=(
        Wrong(_whole, "its own part already"),
        Wrong(_once, "first sums"),
        Wrong(_a_part, "is not what a chip receives"),
        Wrong(lambda size, ways, kind: kind, "one number"),
    ),
)
