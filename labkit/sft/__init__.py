"""Supervised fine-tuning on Tunix's trainer: recipes, a loss in chunks, exact resuming."""

from labkit.sft.job import examples, fine_tune, prepare
from labkit.sft.losses import Head, Sums, chunked_cross_entropy, hidden_states, plain_cross_entropy, sums
from labkit.sft.metrics import Diverged, StepMetrics
from labkit.sft.recipe import Comparison, Recipe, compare, published
from labkit.sft.run import Score, TrainResult, score, sweep, train

__all__ = [
    "Comparison",
    "Diverged",
    "Head",
    "Recipe",
    "Score",
    "StepMetrics",
    "Sums",
    "TrainResult",
    "chunked_cross_entropy",
    "compare",
    "examples",
    "fine_tune",
    "hidden_states",
    "plain_cross_entropy",
    "prepare",
    "published",
    "score",
    "sums",
    "sweep",
    "train",
]
