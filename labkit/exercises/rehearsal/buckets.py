"""Rehearsal lab, exercise 5: few shapes, little padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from labkit.exercises.answers import as_number
from labkit.exercises.budgets import Budget, compilations
from labkit.exercises.frame import Coding, Wrong

LENGTHS = tuple(int(n) for n in np.random.default_rng(7).integers(1, 1025, 60))
SHAPES, PADDED = 8, 1.15


def bucket(length: int) -> int:
    """The next multiple of 128: eight shapes up to 1,024."""
    return -(-length // 128) * 128


def _power(length: int) -> int:
    return 1 << (length - 1).bit_length()


def _test(answer: Callable[..., Any]) -> str | None:
    widths = [as_number(answer(length)) for length in LENGTHS]
    if any(width is None or width % 1 for width in widths):
        return "The function has to return a whole number."
    for length, width in zip(LENGTHS, widths, strict=True):
        if width is not None and width < length:
            return f"A row of {length} tokens does not fit into a bucket of {width:.0f}."
    padded = sum(w for w in widths if w is not None) / sum(LENGTHS)
    if padded > PADDED:
        return f"The padded rows are {padded:.2f} times as long as the rows: at most {PADDED} is asked."
    return None


def _compilations(answer: Callable[..., Any]) -> float:
    def run() -> None:
        step = jax.jit(lambda row: jnp.sum(row * 2))  # a function of its own, so that nothing is compiled yet
        for length in LENGTHS:
            step(np.zeros(int(answer(length)), np.float32)).block_until_ready()

    return compilations(run)


EXERCISE = Coding(
    name="rehearse_5",
    title="Few shapes, little padding",
    minutes=8,
    question=f"""
    Rows of 1 to 1,024 tokens come in any order. Write `bucket(length)`, the width to which a row is padded: never less
    than `length`, the padded rows together at most {PADDED} times as long as the rows, and at most {SHAPES} programs
    compiled.
    """,
    hints=(
        "Each new width is a new shape, and each new shape is compiled again.",
        "Powers of two are few shapes, but half of a bucket may be padding. What of equal steps?",
    ),
    solution_code=bucket,
    tests=(_test,),
    budgets=(
        Budget(
            what="programs compiled",
            limit=SHAPES,
            unit="compilations",
            measure=_compilations,
            advice="Too many different widths.",
        ),
    ),
    praise="Eight programs for every row that may come.",
    because="""
    On a TPU a large step compiles for minutes. Buckets bound how often; packing (the LoRA lab) goes further: one shape,
    and hardly any padding.
    """,
    wrong=(
        Wrong(lambda length: length, "over budget"),
        Wrong(_power, "times as long"),
        Wrong(lambda length: 1024, "times as long"),
        Wrong(lambda length: 128, "does not fit"),
        Wrong(lambda length: "wide", "whole number"),
    ),
)
