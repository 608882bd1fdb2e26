"""The exercises of the labs: `get("lora_1")`, then `.check(answer)`, `.hint()`, `.solution()`."""

from __future__ import annotations

import importlib

from labkit.errors import LabError, nearest
from labkit.exercises.frame import Choice, Coding, Exercise, Number, Outcome, Thought, Wrong

__all__ = ["LABS", "Choice", "Coding", "Exercise", "Number", "Outcome", "Thought", "Wrong", "get", "names"]

# The first part of an exercise's name -> the module that holds it.
LABS = {"start": "start_here", "mesh": "mesh_setup", "rehearse": "rehearsal", "lora": "lora_sft"}


def get(name: str) -> Exercise:
    """The exercise of that name, such as ``"lora_1"``; an unknown name is a `LabError` that lists the nearest."""
    for exercise in _of_lab(name.partition("_")[0]):
        if exercise.name == name:
            return exercise
    raise LabError(f"There is no exercise {name!r}.", hint=f"Nearest: {nearest(name, names())}.")


def names(lab: str | None = None) -> list[str]:
    """The names of all exercises, or of one lab (``"lora"``), in order."""
    return [e.name for key in LABS if lab in (None, key) for e in _of_lab(key)]


def _of_lab(key: str) -> tuple[Exercise, ...]:
    if key not in LABS:
        return ()
    exercises: tuple[Exercise, ...] = importlib.import_module(f"labkit.exercises.{LABS[key]}").EXERCISES
    return exercises
