"""The exercise of the first notebook."""

from __future__ import annotations

from labkit import hardware
from labkit.exercises.frame import Number, Wrong


def memory_of_v5p_8() -> float:
    """GiB of HBM in a v5p-8: the 8 counts TensorCores, two a chip."""
    slice_ = hardware.slice("v5p-8")
    return slice_.chips * slice_.chip.hbm_bytes / 2**30


START_1 = Number(
    name="start_1",
    title="How much memory do you rent?",
    minutes=3,
    question="""
    You rent a `v5p-8`. How many **GiB** of HBM do its chips have together? (One GiB is 2**30 bytes. Ask
    `labkit.hardware`, or look it up.)
    """,
    hints=(
        "What does the 8 in `v5p-8` count? Look at `hardware.slice('v5p-8')`.",
        "Multiply the number of chips by `chip.hbm_bytes`, and divide by 2**30.",
    ),
    solve=memory_of_v5p_8,
    tolerance=1e-3,
    mistakes={
        8 * 95: "You took 8 chips. The number in a v5p name counts TensorCores, and a chip has two.",
        95: "That is one chip of the slice.",
    },
    because="The names of v2, v3, v4 and v5p count TensorCores; those of v5e, v6e and Ironwood count chips.",
    wrong=(
        Wrong(8 * 95, "counts TensorCores"),
        Wrong(95, "one chip"),
        Wrong(16, "too small"),
        Wrong("a lot", "one number"),
    ),
)

EXERCISES = (START_1,)
