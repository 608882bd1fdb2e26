"""Rehearsal lab, exercise 3: a cross-entropy whose logits never exist all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from labkit.exercises.budgets import Budget, temporary_bytes
from labkit.exercises.frame import Coding, Wrong

TOKENS, WIDTH, VOCABULARY = 2048, 64, 8192
LOGITS = TOKENS * VOCABULARY * 4


def loss(x: Float[Array, "t d"], w: Float[Array, "d v"], labels: Int[Array, " t"]) -> Float[Array, ""]:
    """Mean cross-entropy of the logits x @ w, a part of the tokens at a time, computed again in the backward pass."""

    @jax.checkpoint
    def part(total: Array, some: tuple[Array, Array]) -> tuple[Array, None]:
        rows, wanted = some
        logits = rows @ w
        picked = jnp.take_along_axis(logits, wanted[:, None], axis=1)[:, 0]
        return total + jnp.sum(jax.nn.logsumexp(logits, axis=1) - picked), None

    parts = 16
    split = (x.reshape(parts, -1, x.shape[1]), labels.reshape(parts, -1))
    total, _ = jax.lax.scan(part, jnp.zeros(()), split)
    return total / len(labels)


def _whole(x: Array, w: Array, labels: Array) -> Array:
    logits = x @ w
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0])


def _one_hot(x: Array, w: Array, labels: Array) -> Array:
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(x @ w) * jax.nn.one_hot(labels, w.shape[1]), axis=1))


def _summed(x: Array, w: Array, labels: Array) -> Array:
    return loss(x, w, labels) * len(labels)


def _kept(x: Array, w: Array, labels: Array) -> Array:
    """In parts, but every part's logits are kept for the backward pass."""
    parts = zip(jnp.split(x, 16), jnp.split(labels, 16), strict=True)
    return jnp.mean(jnp.stack([_whole(rows, w, wanted) for rows, wanted in parts]))


def _test(answer: Callable[..., Any]) -> str | None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((64, 8), (8, 32)))
    labels = jnp.asarray(rng.integers(0, 32, 64))
    value, slope = jax.value_and_grad(answer)(x, w, labels)
    right, wanted = jax.value_and_grad(_whole)(x, w, labels)
    if np.allclose(value, right * len(labels), rtol=1e-4):
        return "The loss is the mean over the tokens, not their sum."
    if not np.allclose(value, right, rtol=1e-4):
        return f"The loss of a small example is {float(right):.4f}, not {float(value):.4f}."
    return None if np.allclose(slope, wanted, atol=1e-5) else "The loss is right, its gradient is not."


def _temporaries(answer: Callable[..., Any]) -> float:
    def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    shapes = (array(TOKENS, WIDTH), array(WIDTH, VOCABULARY), array(TOKENS, dtype=jnp.int32))
    return temporary_bytes(jax.grad(answer), *shapes)


EXERCISE = Coding(
    name="rehearse_3",
    title="Logits that never exist all at once",
    minutes=15,
    question=f"""
    Write `loss(x, w, labels)`: the mean cross-entropy of the logits `x @ w`, for `x` of {TOKENS:,} x {WIDTH}, `w` of
    {WIDTH} x {VOCABULARY:,} and {TOKENS:,} labels. All logits together take {LOGITS // 2**20} MiB. The gradient with
    respect to `x` may use temporaries of at most a quarter of that.
    """,
    hints=(
        "Handle a part of the rows at a time: `jax.lax.scan` over `x.reshape(parts, -1, d)`.",
        "By default the backward pass keeps every part's logits. `jax.checkpoint` computes them again instead.",
    ),
    solution_code=loss,
    tests=(_test,),
    budgets=(
        Budget(
            what="temporaries of the gradient",
            limit=LOGITS / 4,
            unit="bytes",
            measure=_temporaries,
            advice="All logits, or all of their parts, are alive at once: who keeps them for the backward pass?",
        ),
    ),
    praise="The same loss and gradient, in a fraction of the memory.",
    because="""
    The price is one more product with the vocabulary, in the backward pass. Gemma's vocabulary has 262,144 entries: the
    logits of one row of 4,096 tokens are 4 GiB in float32, and a one-hot of the labels is as much again.
    """,
    wrong=(
        Wrong(_one_hot, "over budget"),
        Wrong(_whole, "over budget"),
        Wrong(_kept, "over budget"),
        Wrong(_summed, "not their sum"),
    ),
)
