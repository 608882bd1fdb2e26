"""Rehearsal lab, exercise 2: read a compiler's refusal."""

from __future__ import annotations

from labkit.exercises.frame import Number, Wrong
from labkit.rehearse.failures import diagnose

# libtpu 0.0.42.1, of LoRA on Gemma 4 31B with rank 64 on four v5e chips.
MESSAGE = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (19.22G) exceeds available HBM (15.75G)."
)


def too_many() -> float:
    """GiB a chip that are too many."""
    found = diagnose(MESSAGE)
    assert found is not None
    return found.over / 2**30


EXERCISE = Number(
    name="rehearse_2",
    title="By how much does it not fit?",
    minutes=3,
    question=f"""
    A compile for four v5e chips ends with

    `{MESSAGE}`

    How many GiB **a chip** have to go?
    """,
    hints=("Both numbers of the message are of one chip, and G means GiB.", "What is needed, less what is there."),
    solve=too_many,
    tolerance=0.005,
    because="""
    A 16 GB chip has 15.75 GiB for a program: the compiler keeps the rest. The message says "temporaries" and means all
    that the program needs, its arguments included.
    """,
    mistakes={
        4 * too_many(): "The message speaks of one chip, not of all four.",
        19.22 - 16: "The chip's nominal 16 GB are not what a program may use: the message says what is available.",
        19.22: "That is what it needs. How much of it is too much?",
    },
    wrong=(Wrong(13.88, "one chip"), Wrong(3.22, "nominal"), Wrong(19.22, "too much"), Wrong(1, "too small")),
)
