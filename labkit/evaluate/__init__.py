"""What a model's answers are worth: generation, the judge in its sandbox, pass@k.

Judging needs no JAX; `generate`, `evaluate` and what goes with them load it on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from labkit.evaluate import controls
from labkit.evaluate.extraction import extract_module
from labkit.evaluate.passk import pass_at_k
from labkit.evaluate.result import Answer, EvalResult, Row
from labkit.evaluate.sandbox import Protections, protections
from labkit.evaluate.verdict import Verdict, judge, judge_files

if TYPE_CHECKING:
    from labkit.evaluate.evaluation import evaluate, evaluate_named
    from labkit.evaluate.sampling import Completion, generate

_LAZY = {
    "evaluate": "evaluation",
    "evaluate_named": "evaluation",
    "Completion": "sampling",
    "generate": "sampling",
}

__all__ = [
    "Answer",
    "Completion",
    "EvalResult",
    "Protections",
    "Row",
    "Verdict",
    "controls",
    "evaluate",
    "evaluate_named",
    "extract_module",
    "generate",
    "judge",
    "judge_files",
    "pass_at_k",
    "protections",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"labkit.evaluate.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'labkit.evaluate' has no attribute {name!r}")
