"""Which published runs may tune a constant, and which only judge it: fixed by a hash, before anything is tuned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

PARTS = 3  # one of three judges


def series(row: Mapping[str, Any]) -> str:
    """The scaling series of a training run: one model, chip and batch per chip is one point, however many chips ran."""
    return "|".join(str(row.get(key)) for key in ("model", "tpu", "per_device_batch"))


def split(name: str) -> Literal["tuning", "validation"]:
    """The part that a series falls in, by the SHA-256 of its name."""
    judged = int(hashlib.sha256(name.encode()).hexdigest(), 16) % PARTS == 0
    return "validation" if judged else "tuning"
