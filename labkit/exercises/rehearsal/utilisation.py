"""Rehearsal lab, exercise 1: what share of the peak a step reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.exercises.answers import as_number
from labkit.exercises.frame import Coding, Wrong


def mfu(model_flops: float, seconds: float, chips: int, peak: float) -> float:
    """Model FLOPs utilisation: the FLOPs that the mathematics needs, over what the chips could have done meanwhile."""
    return model_flops / (seconds * chips * peak)


def _one_chip(model_flops: float, seconds: float, chips: int, peak: float) -> float:
    return model_flops / (seconds * peak)


def _per_second(model_flops: float, seconds: float, chips: int, peak: float) -> float:
    return model_flops / seconds


def _test(answer: Callable[..., Any]) -> str | None:
    for given in ((4e14, 1.0, 4, 459e12), (1e12, 0.02, 1, 197e12)):
        value, right = as_number(answer(*given)), mfu(*given)
        if value is None:
            return "The function has to return one number."
        if abs(value - right) <= 1e-6 * right:
            continue
        if given[2] > 1 and abs(value - _one_chip(*given)) <= 1e-6 * value:
            return "`peak` is of one chip, and the FLOPs are of all chips together."
        if value > 1:
            return "A share of the peak is at most 1: divide by what the chips could have done in that time."
        return f"{value:.4g} is not the share of the peak for {given}."
    return None


EXERCISE = Coding(
    name="rehearse_1",
    title="What share of the peak is that?",
    minutes=5,
    question="""
    A step needs `model_flops` FLOPs in all, takes `seconds`, and runs on `chips` chips of `peak` FLOP/s each. Write
    `mfu(model_flops, seconds, chips, peak)`, the model FLOPs utilisation, as a share between 0 and 1.
    """,
    hints=("What could all chips together have done in that time?", "`seconds * chips * peak` FLOPs."),
    solution_code=mfu,
    tests=(_test,),
    praise="That is the figure that papers print.",
    because="""
    FLOPs that remat computes again do not count here: they are work, but nobody asked for them. With them it is HFU,
    hardware FLOPs utilisation (PaLM, Chowdhery et al. 2022, appendix B, names both).
    """,
    wrong=(
        Wrong(_one_chip, "of one chip"),
        Wrong(_per_second, "at most 1"),
        Wrong(lambda *given: "high", "one number"),
    ),
)
