"""Rehearsal lab, exercise 3: the most that is alive at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

from labkit.exercises.answers import as_number
from labkit.exercises.budgets import Budget, cpu_seconds
from labkit.exercises.frame import Coding, Wrong

Lives = list[tuple[int, int, int]]  # of each buffer: bytes, and the first and the last instruction at which it is alive
MANY = 4000


def peak(lives: Lives) -> int:
    """The most bytes alive at one instruction."""
    change: dict[int, int] = defaultdict(int)
    for size, first, last in lives:
        change[first] += size
        change[last + 1] -= size  # at its last instruction it is still there
    return max(accumulate(change[at] for at in sorted(change)), default=0)


def _sum(lives: Lives) -> int:
    return sum(size for size, _, _ in lives)


def _largest(lives: Lives) -> int:
    return max((size for size, _, _ in lives), default=0)


def _early(lives: Lives) -> int:
    """As if a buffer were gone at its last use."""
    return max((_alive(lives, at, 0) for at in {first for _, first, _ in lives}), default=0)


def _slow(lives: Lives) -> int:
    return max((_alive(lives, at, 1) for at in range(1 + max((last for *_, last in lives), default=0))), default=0)


def _alive(lives: Lives, at: int, more: int) -> int:
    return sum(size for size, first, last in lives if first <= at < last + more)


def _drawn(count: int) -> Lives:
    rng = Random(5)
    starts = [(rng.randrange(1, 100), rng.randrange(4 * count)) for _ in range(count)]
    return [(size, first, first + rng.randrange(1, 50)) for size, first in starts]


def _test(answer: Callable[..., Any]) -> str | None:
    for lives in ([(10, 0, 2), (20, 2, 4), (5, 3, 6)], [], _drawn(40)):
        value, right = as_number(answer(list(lives))), peak(lives)
        if value is None:
            return "The function has to return one number."
        if value == right:
            continue
        if value == _sum(lives):
            return "That is the sum of all buffers, but they are not all alive at once."
        if value == _early(lives):
            return "A buffer is still there at its last instruction: its place is free only afterwards."
        return f"For {lives[:3]}{'...' if len(lives) > 3 else ''} the peak is {right}, not {value:g}."
    return None


EXERCISE = Coding(
    name="rehearse_3",
    title="How much is alive at once?",
    minutes=10,
    question=f"""
    Each buffer of a schedule is a tuple `(bytes, first, last)`: it is alive from instruction `first` to instruction
    `last`, both included. Write `peak(lives)`: the most bytes that are alive at one instruction, 0 if there are no
    buffers. A step has tens of thousands of instructions, so time counts: {MANY:,} buffers in a fraction of a second.
    """,
    hints=(
        "Only where a buffer comes or goes does anything change.",
        "Write down `+bytes` at `first` and `-bytes` after `last`, sort the places, and add up.",
    ),
    solution_code=peak,
    tests=(_test,),
    budgets=(
        Budget(
            what=f"CPU time for {MANY:,} buffers",
            limit=0.2,
            unit="seconds",
            measure=lambda answer: cpu_seconds(lambda: answer(_drawn(MANY)), repeats=2),
            advice="Every buffer for every instruction is millions of steps. What changes at one instruction?",
        ),
    ),
    praise="That is how the film of this lab is made.",
    because="""
    The sum of all buffers says nothing: a place is used again as soon as its buffer is dead. So what helps against a
    peak is whatever makes the buffers *at the peak* smaller, or shortens their lives, as remat does.
    """,
    wrong=(
        Wrong(_sum, "not all alive at once"),
        Wrong(_early, "still there"),
        Wrong(_largest, "the peak is"),
        Wrong(_slow, "over budget"),
        Wrong(lambda lives: lives, "one number"),
    ),
)
