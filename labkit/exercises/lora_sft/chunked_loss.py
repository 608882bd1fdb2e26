"""LoRA lab, exercise 5: the loss without all logits at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from labkit.exercises.answers import as_number
from labkit.exercises.budgets import Budget, temporary_bytes
from labkit.exercises.frame import Coding, Wrong


def chunked_loss(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> Any:
    """Mean cross-entropy in nats over the tokens that count, with the logits of one chunk at a time."""

    @jax.checkpoint  # the backward pass makes a chunk's logits again, instead of keeping those of all chunks
    def add(total: Any, piece: Any) -> Any:
        h, target, counts = piece
        logits = h @ embedding.T
        right = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        nats = jax.nn.logsumexp(logits, axis=1) - right
        return total + jnp.sum(nats * counts), None

    pieces = [a.reshape(-1, chunk, *a.shape[1:]) for a in (hidden, targets, mask)]
    total, _ = jax.lax.scan(add, 0.0, tuple(pieces))
    return total / mask.sum()


def _loss_plain(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> Any:
    logits = jax.nn.log_softmax(hidden @ embedding.T)
    return -jnp.sum(jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0] * mask) / mask.sum()


def _loss_chunks(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> list[Any]:
    starts = range(0, hidden.shape[0], chunk)
    return [
        _loss_plain(hidden[i : i + chunk], embedding, targets[i : i + chunk], mask[i : i + chunk], 0) for i in starts
    ]


def _loss_mean_of_means(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> Any:
    return jnp.mean(jnp.stack(_loss_chunks(hidden, embedding, targets, mask, chunk)))


def _loss_all_tokens(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> Any:
    return _loss_plain(hidden, embedding, targets, jnp.ones_like(mask), chunk)


def _loss_over_length(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> Any:
    return _loss_plain(hidden, embedding, targets, mask, chunk) * mask.sum() / len(targets)


def _loss_keeps_logits(hidden: Any, embedding: Any, targets: Any, mask: Any, chunk: int) -> Any:
    def add(total: Any, piece: Any) -> Any:
        h, target, counts = piece
        return total + _loss_plain(h, embedding, target, counts, 0) * counts.sum(), None

    pieces = [a.reshape(-1, chunk, *a.shape[1:]) for a in (hidden, targets, mask)]
    return jax.lax.scan(add, 0.0, tuple(pieces))[0] / mask.sum()


_LOSS_SLIPS: tuple[tuple[Callable[..., Any], str], ...] = (
    (
        _loss_mean_of_means,
        "The mean of the chunks' means weighs a chunk with 2 answer tokens like one with 60. Add sums.",
    ),
    (_loss_all_tokens, "The mask is not applied: every token counts in your loss."),
    (_loss_over_length, "You divide by all tokens. Divide by the number of tokens that count."),
)


def _loss_case(tokens: int = 256, vocab: int = 97, width: int = 16) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    counts = jax.random.uniform(keys[3], (tokens,)) < jnp.linspace(0.05, 1.0, tokens)  # few in the first chunks
    hidden, embedding = jax.random.normal(keys[0], (tokens, width)), jax.random.normal(keys[1], (vocab, width))
    targets = jax.random.randint(keys[2], (tokens,), 0, vocab)
    return hidden, embedding, targets, counts.at[0].set(True).astype(jnp.float32)


def _loss_test(answer: Callable[..., Any]) -> str | None:
    case = _loss_case()
    right, slopes = jax.value_and_grad(_loss_plain, argnums=(0, 1))(*case, 64)
    got = as_number(answer(*case, 64))
    if got is None:
        return "The function has to return one number, the mean in nats."
    if abs(got - float(right)) > 1e-4:
        for slip, message in _LOSS_SLIPS:
            if abs(got - float(slip(*case, 64))) < 1e-4:
                return message
        return f"The loss is {got:.4f}, and {float(right):.4f} was expected."
    found = jax.grad(answer, argnums=(0, 1))(*case, 64)
    for what, got_slope, slope in zip(("hidden states", "embedding"), found, slopes, strict=True):
        if not np.allclose(got_slope, slope, atol=1e-5):
            return f"The value is right, its gradient with respect to the {what} is not. Did you use stop_gradient?"
    return None


def _loss_bytes(answer: Callable[..., Any]) -> float:
    t, v, d, chunk = 2048, 8192, 64, 128
    shapes = ((t, d), jnp.float32), ((v, d), jnp.float32), ((t,), jnp.int32), ((t,), jnp.float32)
    step = jax.value_and_grad(lambda *arrays: answer(*arrays, chunk), argnums=(0, 1))
    return temporary_bytes(step, *(ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes))


EXERCISE = Coding(
    name="lora_5",
    title="A loss that never holds all logits",
    minutes=15,
    question="""
    With a vocabulary of 262,144 tokens, the float32 logits of one sample of 4,096 tokens take 4 GiB. Write
    `chunked_loss(hidden, embedding, targets, mask, chunk)`: the mean cross-entropy in nats over the tokens where `mask`
    is 1, with the logits `hidden @ embedding.T` of `chunk` tokens at a time. Shapes: `[T, D]`, `[V, D]`, `[T]`, `[T]`;
    T is a multiple of `chunk`. *Budget: value and gradient (of `hidden` and `embedding`) for 2,048 tokens and a
    vocabulary of 8,192 in 24 MiB of temporaries, as XLA plans them; the logits alone would be 64 MiB.*
    """,
    hints=(
        "`jax.lax.scan` over pieces of shape `(T / chunk, chunk, ...)`, and a running sum as the carry.",
        "Add up sums and divide once, at the end: chunks do not hold equally many answer tokens.",
        "Still over budget? The backward pass keeps every chunk's logits, unless `jax.checkpoint` makes them again.",
    ),
    solution_code=chunked_loss,
    tests=(_loss_test,),
    budgets=(
        Budget(
            "temporaries of value and gradient",
            24 * 2**20,
            "bytes",
            _loss_bytes,
            "Are the logits of all tokens made at once, or kept for the backward pass?",
        ),
    ),
    praise="The value and the gradient of the plain loss, in a fraction of its memory.",
    because="""
    The same slip hides in gradient accumulation: `optax.MultiSteps` takes the mean of the micro-batches' means, so a
    token in a micro-batch with few answers weighs more. `labkit.sft` sums nats and tokens, and divides once.
    """,
    wrong=(
        *(Wrong(slip, message[:30]) for slip, message in _LOSS_SLIPS),
        Wrong(_loss_plain, "over budget"),
        Wrong(_loss_keeps_logits, "over budget"),
        Wrong(lambda *case: jax.lax.stop_gradient(_loss_plain(*case)), "hidden states"),
        Wrong(lambda h, e, *rest: _loss_plain(h, jax.lax.stop_gradient(e), *rest), "embedding"),
        Wrong(lambda *case: 1.0, "was expected"),
    ),
)
