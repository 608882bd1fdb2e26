"""LoRA lab, exercise 4: packing samples into windows."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.exercises.answers import as_list
from labkit.exercises.budgets import Budget, cpu_seconds
from labkit.exercises.frame import Coding, Wrong


def pack(lengths: list[int], window: int) -> list[list[int]]:
    """Indices of the samples of each window: the longest first, each into the fullest window that still has room."""
    windows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, number of the window), sorted
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(room, (lengths[sample], -1))
        if at == len(room):
            windows.append([])
            insort(room, (window, len(windows) - 1))
            at = bisect_left(room, (lengths[sample], -1))
        free, number = room.pop(at)
        windows[number].append(sample)
        insort(room, (free - lengths[sample], number))
    return windows


def _pack_alone(lengths: list[int], window: int) -> list[list[int]]:
    return [[i] for i in range(len(lengths))]


def _pack_in_order(lengths: list[int], window: int) -> list[list[int]]:
    windows: list[list[int]] = [[]]
    free = window
    for i, length in enumerate(lengths):
        if length > free:
            windows.append([])
            free = window
        windows[-1].append(i)
        free -= length
    return windows


def _pack_overfull(lengths: list[int], window: int) -> list[list[int]]:
    return [list(range(i, min(i + 4, len(lengths)))) for i in range(0, len(lengths), 4)]


def _pack_first_fit(lengths: list[int], window: int) -> list[list[int]]:
    windows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for number in range(len(room)):
            if room[number] >= lengths[i]:
                break
        else:
            number = len(room)
            windows.append([])
            room.append(window)
        windows[number].append(i)
        room[number] -= lengths[i]
    return windows


def codev_lengths(count: int, seed: int = 0, window: int = 3072) -> list[int]:
    """Sample lengths in tokens, log-normal with the published mean of 922 and 99th percentile of 2,553.

    The shape is a guess; its mean and 99th percentile are those of arXiv:2605.25645.
    """
    ratio, z99 = math.log(2553 / 922), 2.3263
    sigma = z99 - math.sqrt(z99**2 - 2 * ratio)
    drawn = np.random.default_rng(seed).lognormal(math.log(922) - sigma**2 / 2, sigma, count)
    return [int(v) for v in np.clip(drawn, 32, window)]


def _pack_test(answer: Callable[..., Any]) -> str | None:
    for lengths, window in (([5, 5, 5], 10), ([10], 10), (codev_lengths(2000), 3072)):
        windows = [[int(i) for i in w] for w in as_list(answer(list(lengths), window))]
        placed = sorted(i for w in windows for i in w)
        if placed != list(range(len(lengths))):
            return f"{len(lengths)} samples went in and {len(placed)} came out: each index must appear exactly once."
        fullest = max(sum(lengths[i] for i in w) for w in windows)
        if fullest > window:
            return f"A window of {window} tokens got {fullest}: samples are never cut."
    share = sum(lengths) / (window * sum(1 for w in windows if w))
    if share < 0.9:
        return f"{share:.0%} of the tokens are useful, and 90 % are asked for. In which order do you place the samples?"
    return None


def _pack_seconds(answer: Callable[..., Any]) -> float:
    lengths = codev_lengths(20_000, seed=1)
    return cpu_seconds(lambda: answer(lengths, 3072), repeats=1)


EXERCISE = Coding(
    name="lora_4",
    title="Pack 20,000 samples",
    minutes=12,
    question="""
    The published recipe (arXiv:2605.25645) pads samples of 922 tokens on average to 3,072: seven of ten tokens are
    padding. Write `pack(lengths, window)`. It puts whole samples into windows of `window` tokens and returns a list
    with one list a window, of the indices of its samples: `pack([5, 5, 5], 10)` may be `[[0, 1], [2]]`. *Budget: at
    least 90 % useful tokens, and 1 s of CPU time for 20,000 samples.*
    """,
    hints=(
        "In order of arrival a long sample often finds no room. Place the long ones first, then fill up.",
        "Looking through all windows for each sample is quadratic. Keep the windows sorted by their room.",
        "`bisect.bisect_left` finds the fullest window that still has room; `bisect.insort` puts it back.",
    ),
    solution_code=pack,
    tests=(_pack_test,),
    budgets=(
        Budget(
            "CPU time for 20,000 samples", 1.0, "seconds", _pack_seconds, "Do not look at every window for each sample."
        ),
    ),
    praise="Every sample whole, at least 90 % useful.",
    because="""
    Best fit decreasing, a classic of bin packing. Sorting all of the data puts samples of like length together, so
    `labkit.data.packing` sorts only within groups of 1,024 shuffled samples: every row stays a mix.
    """,
    wrong=(
        Wrong(_pack_alone, "of the tokens are useful"),
        Wrong(_pack_in_order, "In which order"),
        Wrong(_pack_overfull, "never cut"),
        Wrong(lambda lengths, window: [[0]], "exactly once"),
        Wrong(_pack_first_fit, "over budget"),
    ),
)
