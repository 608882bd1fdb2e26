"""LoRA lab, exercise 2: a target pattern that leaves no layer out."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from labkit import lora
from labkit.exercises.frame import Coding, Wrong

PUBLISHED = ".*q_einsum|.*kv_einsum|.*attn_vec_einsum|.*gate_proj|.*down_proj|.*up_proj"  # arXiv:2605.25645
# Modules of the model that are no linear of a layer, and that a greedy pattern would match as well.
_OTHERS = ("embedder", "final_norm", "layers/0", "layers/0/attn", "layers/0/attn/_query_norm", "layers/0/mlp")


def target_pattern() -> str:
    """All linears of attention and MLP: every projection of Gemma ends with `_einsum` or `_proj`."""
    return r"layers/\d+/(attn/.*_einsum|mlp/.*_proj)"


def _coverage(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return f"The answer is a string, not {type(pattern).__name__}."
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        return f"This is no regular expression: {error}."
    known = lora.linears_of("gemma4-31b")
    left = [linear for linear in known if not wanted.fullmatch(linear.path)]
    greedy = [path for path in _OTHERS if wanted.fullmatch(path)]
    if len(left) == len(known):
        return f"No linear matches. A regular expression for the whole path is asked for, as of {known[0].path!r}."
    if left:
        names = Counter(linear.path.split("/")[-1] for linear in left)
        listed = ", ".join(f"{count} {name}" for name, count in names.items())
        return f"{len(left)} of {len(known)} linears get no adapter: {listed}. First: {left[0].path!r}."
    if greedy:
        return f"All linears match, but so does {greedy[0]!r}, which is no linear."
    return None


EXERCISE = Coding(
    name="lora_2",
    title="A pattern that leaves no layer out",
    minutes=8,
    question="""
    Write `pattern`, one regular expression that matches the whole path of every attention and MLP linear in all 60
    layers of Gemma 4 31B, and nothing else (no norm, no embedder). The published one misses some. The paths look like
    `layers/7/attn/q_einsum`. The check knows all shapes of the model, and tells which linears are left out.
    """,
    hints=(
        "See what the model has: `{x.path.split('/')[-1] for x in lora.linears_of('gemma4-31b')}`.",
        "The ten global layers have no `kv_einsum`. Which name do they have instead?",
        "All attention linears end with `_einsum`, all MLP linears with `_proj`.",
    ),
    solution_code=target_pattern,
    value=True,
    tests=(_coverage,),
    praise="All 360 linears of the 60 layers, and nothing else.",
    because="""
    A role says it without a pattern: `targets="all"`. A pattern that misses layers in silence costs quality, and
    nobody notices; `lora.inject` therefore reports what it left out, and `strict=True` makes that an error.
    """,
    wrong=(
        Wrong(PUBLISHED, "10 k_einsum"),
        Wrong(".*", "which is no linear"),
        Wrong(".*_einsum", "gate_proj"),
        Wrong("q_einsum", "whole path"),
        Wrong("all", "regular expression"),
        Wrong("(", "no regular expression"),
        Wrong(["q_einsum"], "is a string"),
        Wrong(r"layers/\d/(attn/.*_einsum|mlp/.*_proj)", "layers/10/"),
    ),
)
