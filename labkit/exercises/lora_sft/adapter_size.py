"""LoRA lab, exercise 1: the parameters of one adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.exercises.answers import as_number
from labkit.exercises.frame import Coding, Wrong


def adapter_parameters(embed: int, kv_heads: int, head_dim: int, rank: int, fused: bool) -> int:
    """Parameters of the LoRA pair on Gemma's key/value projection; `fused` when K and V are one `kv_einsum`."""
    a = embed * rank  # one A, read by K and by V
    b = rank * (2 if fused else 1) * kv_heads * head_dim
    return a + b


def _adapter_two_pairs(embed: int, kv_heads: int, head_dim: int, rank: int, fused: bool) -> int:
    return (2 if fused else 1) * rank * (embed + kv_heads * head_dim)


def _adapter_always_fused(embed: int, kv_heads: int, head_dim: int, rank: int, fused: bool) -> int:
    return rank * (embed + 2 * kv_heads * head_dim)


def _adapter_full_matrix(embed: int, kv_heads: int, head_dim: int, rank: int, fused: bool) -> int:
    return (2 if fused else 1) * embed * kv_heads * head_dim


def _adapter_test(answer: Callable[..., Any]) -> str | None:
    cases = [(5376, 16, 256, 64, True), (5376, 4, 512, 64, False), (192, 2, 48, 16, True), (192, 1, 96, 1, False)]
    for case in cases:
        value, right = as_number(answer(*case)), adapter_parameters(*case)
        if value is None:
            return "The function has to return one number."
        if value == right:
            continue
        if value == _adapter_two_pairs(*case):
            return "You count two A matrices for the fused projection. K and V read the same A; only B is doubled."
        if value == _adapter_always_fused(*case):
            return "A K=V layer (fused=False) has one head block in B, not two: V is a copy of K there."
        if value == _adapter_full_matrix(*case):
            return "This is the size of the frozen weight. The adapter is A (embed x rank) and B (rank x outputs)."
        return f"For (embed, kv_heads, head_dim, rank, fused) = {case} you have {value:,.0f}. Count A and B one by one."
    return None


EXERCISE = Coding(
    name="lora_1",
    title="How many parameters has one adapter?",
    minutes=6,
    question="""
    Gemma keeps keys and values in one weight, `kv_einsum`, of shape `(2, kv_heads, embed, head_dim)`. LoRA puts beside
    it `A` of shape `(embed, rank)` and `B` of shape `(rank, 2, kv_heads, head_dim)`. In a K=V layer there is only
    `k_einsum`, and no 2. Write `adapter_parameters(embed, kv_heads, head_dim, rank, fused)`, the number of trained
    parameters of the pair.
    """,
    hints=(
        "Write down the shapes of A and B, and multiply each one out.",
        "K and V share A. So the fused pair is smaller than two separate ones by exactly one A.",
    ),
    solution_code=adapter_parameters,
    tests=(_adapter_test,),
    praise="Right, for local and for K=V layers.",
    because="""
    On Gemma 4 31B at rank 64 that is 868,352 for each of the 50 local layers and 475,136 for each of the 10 global
    ones. Tools that store K and V apart (PEFT, vLLM) need A twice: the same adapter is larger in their files.
    """,
    wrong=(
        Wrong(_adapter_two_pairs, "K and V read the same A"),
        Wrong(_adapter_always_fused, "V is a copy of K"),
        Wrong(_adapter_full_matrix, "size of the frozen weight"),
        Wrong(lambda *shape: sum(shape), "Count A and B"),
    ),
)
