"""What tells two sets of weights apart without reading all of them: the first values of each parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

FIRST = 64  # values of each parameter that count


def fingerprint(model: str, parameters: Iterable[tuple[Any, tuple[int, ...], Any, np.ndarray]]) -> str:
    """Twelve hex digits after the model's class.

    Args:
        model: the name of the class.
        parameters: of each, in NNX's order: path, shape, dtype, and its first `FIRST` values in any float type.
    """
    digest = hashlib.sha256()
    for path, shape, dtype, values in parameters:
        digest.update(f"{path}{shape}{dtype}".encode())
        digest.update(np.ascontiguousarray(values, np.float32).tobytes())
    return f"{model}-{digest.hexdigest()[:12]}"
