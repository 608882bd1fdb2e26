"""Mesh lab, exercise 3: axes that fit with the least traffic."""

from __future__ import annotations

from typing import Any

from labkit import mesh
from labkit.exercises.budgets import Budget
from labkit.exercises.frame import Coding, Wrong

JOB: dict[str, Any] = {"seq": 4096, "batch": 16}
MODEL, SLICE = "gemma4-31b", "v5e-16"


def axes() -> dict[str, int]:
    """What the planner finds when it may choose."""
    return dict(mesh.plan(MODEL, SLICE, **JOB).axes)


def _plan(answer: dict[str, int]) -> Any:
    return mesh.plan(MODEL, SLICE, axes=answer, **JOB)


def _runs(answer: Any) -> str | None:
    if not isinstance(answer, dict):
        return f"The answer is a dictionary such as {{'fsdp': 4, 'tp': 4}}, not {type(answer).__name__}."
    found = _plan(answer)
    if not found.possible:
        return found.reasons[0]
    return None if found.fits else f"It divides, but it does not fit: {found.verdict}."


def _seconds(answer: dict[str, int]) -> float:
    return float(_plan(answer).seconds)


EXERCISE = Coding(
    name="mesh_3",
    title="It has to fit, with the least traffic",
    minutes=10,
    question="""
    Gemma 4 31B, LoRA of rank 16 on all linears, 16 rows of 4,096 tokens, on a `v5e-16`. Choose `axes`, a dictionary
    with sizes for `dp`, `fsdp` and `tp` whose product is 16, such that it divides, fits, and its collectives take at
    most a tenth more than those of the best mesh. `meshes.plan(...)` with `axes=` tells you what becomes of a choice.
    """,
    hints=(
        "Copies of the weights do not fit on 16 GB chips, so `dp` has to stay 1.",
        "`tp` moves activations twice a layer and pass, `fsdp` moves weights. Which are larger here?",
        "Try `fsdp` as large as the rows allow.",
    ),
    solution_code=axes,
    value=True,
    tests=(_runs,),
    budgets=(
        Budget(
            what="collectives of a step",
            limit=round(1.1 * _seconds(axes()), 3),
            unit="seconds",
            measure=_seconds,
            advice="Another split of the 16 chips between fsdp and tp moves less.",
        ),
    ),
    praise="It fits, and no mesh moves much less.",
    because="""
    The planner tries every way to write 16 as `dp * fsdp * tp`, throws out what does not divide or fit, and takes what
    moves least. There is no rule of thumb in it: with longer rows or fewer of them the answer changes.
    """,
    wrong=(
        Wrong({"dp": 16, "fsdp": 1, "tp": 1}, "does not fit"),
        Wrong({"dp": 1, "fsdp": 2, "tp": 8}, "k_einsum"),
        Wrong({"fsdp": 3, "tp": 5}, "do not make"),
        Wrong("fsdp=16", "is a dictionary"),
    ),
)
