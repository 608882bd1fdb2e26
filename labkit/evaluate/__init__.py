"""What a model's answers are worth: generation, the judge in its sandbox, pass@k."""

from labkit.evaluate import controls
from labkit.evaluate.evaluation import evaluate, evaluate_named
from labkit.evaluate.extraction import extract_module
from labkit.evaluate.passk import pass_at_k
from labkit.evaluate.result import Answer, EvalResult, Row
from labkit.evaluate.sampling import Completion, generate
from labkit.evaluate.sandbox import Protections, protections
from labkit.evaluate.verdict import Verdict, judge, judge_files

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
