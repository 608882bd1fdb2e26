"""What counts as an answer: Python, NumPy and JAX values alike, and how an untouched stub is known."""

from __future__ import annotations

import dis
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import numpy as np


def is_unattempted(answer: Any) -> bool:
    """Whether nothing was filled in: None, `...`, an empty string, or a function whose body does nothing."""
    if answer is None or answer is ... or (isinstance(answer, str) and not answer.strip()):
        return True
    return isinstance(answer, FunctionType) and _does_nothing(answer)


def _does_nothing(function: FunctionType) -> bool:
    """Whether the body is only a docstring, `...`, `pass`, `return None`, `return ...`, or says it is not written."""
    steps = [i for i in dis.get_instructions(function) if i.opname not in ("RESUME", "NOP", "CACHE", "COPY_FREE_VARS")]
    if any(i.argval == "NotImplementedError" for i in steps) and any(i.opname == "RAISE_VARARGS" for i in steps):
        return len(steps) <= 6
    trivial = all(i.opname in ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST") for i in steps)
    return trivial and all(i.argval in (None, ...) for i in steps if "CONST" in i.opname)


def as_number(answer: Any) -> float | None:
    """A Python, NumPy or JAX number, also a one-element array or a string such as "1,024", as float; else None."""
    if isinstance(answer, bool | np.bool_):
        return None
    if isinstance(answer, str):
        answer = answer.replace(",", "").replace("_", "").strip()
    try:
        array = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return float(array.reshape(())) if array.size == 1 else None


def as_choices(answer: Any) -> set[str]:
    """The letters of "ac", "A, c", ["C", "A"] or {"a"}, in lower case."""
    parts = [letter for letter in answer if letter.isalnum()] if isinstance(answer, str) else answer
    if not isinstance(parts, Iterable):
        return {str(parts).lower()}
    return {str(part).strip().lower() for part in parts}


def as_list(answer: Any) -> Any:
    """Arrays (NumPy, JAX), tuples and generators as nested Python lists; anything else as it is."""
    if hasattr(answer, "tolist"):
        return answer.tolist()
    if isinstance(answer, str | bytes | dict) or not isinstance(answer, Iterable):
        return answer
    return [as_list(item) for item in answer]
