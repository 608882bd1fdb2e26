"""Cross-entropy of a causal language model whose logits never exist all at once."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int
from tunix.utils.sharding_utils import shard

from labkit.data.batch import Batch
from labkit.data.masks import attention_mask
from labkit.errors import LabError


class Sums(NamedTuple):
    """Sums over the counted targets: negative log-likelihood in nats, right guesses, and how many they are."""

    loss: Float[Array, ""]
    correct: Float[Array, ""]
    tokens: Float[Array, ""]


class Head(NamedTuple):
    """What turns a hidden state into logits: `weight` has a row for each token; `softcap` is 0 for none.

    `axes` are the mesh axes of rows and of the vocabulary. Without them a partitioner that finds `weight` split over
    the axis of rows may compute the logits of all rows on each device.
    """

    weight: Float[Array, "V D"]
    softcap: float
    axes: tuple[Any, Any] | None = None


class _Tap(nnx.Module):
    """Stands in for the last norm of a model, and keeps what it gave."""

    def __init__(self, norm: nnx.Module) -> None:
        self.norm = norm
        self.seen = nnx.data(None)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        self.seen = self.norm(x)
        return self.seen


def hidden_states(model: nnx.Module, batch: Batch) -> Float[Array, "B T D"]:
    """The states that the model's last norm gives, for packed rows.

    Tunix's models have no common way to stop before the logits. They are traced and never used, so that the compiler
    drops them: call this inside a jitted function.
    """
    # A copy of the structure, in which the tap may stay; its variables are made here, at this level of tracing, since
    # the remat of Tunix's Gemma 3, Qwen 3 and Llama 3 writes them back.
    graph, state = nnx.split(model)
    local = nnx.merge(graph, jax.tree.map(lambda x: x, state))
    tap = local.final_norm = _Tap(local.final_norm)
    local(batch.tokens, batch.positions, None, attention_mask(batch.segment_ids))
    return tap.seen


def head(model: Any) -> Head:
    """The unembedding of a Tunix model: its own matrix, or the transposed embedding where they are tied."""
    own = getattr(model, "lm_head", None)
    weight = own.w.get_value().T if own is not None else model.embedder.input_embedding.get_value()
    rows, _, columns = model.config.shd_config.act_btf
    return Head(weight, getattr(model.config, "final_logit_softcap", None) or 0.0, (rows, columns))


def sums(model: nnx.Module, batch: Batch, *, chunk: int = 512, train_head: bool = False) -> Sums:
    """Loss, right guesses and count over the counted targets of packed rows.

    Args:
        model: a Tunix model.
        batch: rows `[B, T]`; the target at t is predicted from t - 1.
        chunk: positions of a row whose logits `[B, chunk, V]` exist at a time.
        train_head: whether the unembedding gets a gradient; frozen, it saves one of three products with it.
    """
    hidden = hidden_states(model, batch)
    return chunked_cross_entropy(
        hidden[:, :-1], head(model), batch.tokens[:, 1:], batch.loss_mask[:, 1:], chunk=chunk, train_head=train_head
    )


def chunked_cross_entropy(
    hidden: Float[Array, "B T D"],
    head: Head,
    targets: Int[Array, "B T"],
    counted: Bool[Array, "B T"],
    *,
    chunk: int = 512,
    train_head: bool = True,
) -> Sums:
    """Sums of the cross-entropy of `hidden @ head`, chunk by chunk along T.

    The gradient of a chunk is formed together with its loss, so that the backward pass has no logits to compute
    again: the work is that of the plain loss, the memory that of one chunk.
    """
    if chunk < 1:
        raise LabError(f"A chunk of {chunk} positions.", hint="It must be at least 1.")
    static = train_head, min(chunk, hidden.shape[1]), head.softcap, head.axes
    loss, correct = _summed(*static, hidden, head.weight, targets, counted)
    return Sums(loss, correct, jnp.sum(counted.astype(jnp.float32)))


def logits_of(hidden: Float[Array, "... D"], head: Head) -> Float[Array, "... V"]:
    """Logits in float32."""
    if head.axes:
        rows, columns = head.axes
        hidden = shard(hidden, (rows, *(None,) * (hidden.ndim - 1)))
    logits = jnp.einsum("...d,vd->...v", hidden, head.weight.astype(hidden.dtype), preferred_element_type=jnp.float32)
    if head.axes:
        logits = shard(logits, (rows, *(None,) * (logits.ndim - 2), columns))
    return jnp.tanh(logits / head.softcap) * head.softcap if head.softcap else logits


def plain_cross_entropy(
    hidden: Float[Array, "B T D"], head: Head, targets: Int[Array, "B T"], counted: Bool[Array, "B T"]
) -> Sums:
    """The same sums with all logits at once: what the chunked loss is tested against."""
    loss, correct = _chunk_sums(hidden, head, targets, counted)
    return Sums(loss, correct, jnp.sum(counted.astype(jnp.float32)))


def _chunk_sums(
    hidden: Float[Array, "B C D"],
    head: Head,
    targets: Int[Array, "B C"],
    counted: Bool[Array, "B C"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    logits = logits_of(hidden, head)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - right
    guesses = (jnp.argmax(logits, axis=-1) == targets) & counted
    return jnp.sum(jnp.where(counted, losses, 0.0)), jnp.sum(guesses.astype(jnp.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _summed(
    train_head: bool, chunk: int, softcap: float, axes: Any, hidden: Any, weight: Any, targets: Any, counted: Any
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    def body(total: Any, part: Any) -> tuple[Any, None]:
        loss, correct = _chunk_sums(part[0], Head(weight, softcap, axes), part[1], part[2])
        return (total[0] + loss, total[1] + correct), None

    parts = tuple(_split(x, chunk) for x in (hidden, targets, counted))
    return jax.lax.scan(body, (jnp.float32(0), jnp.float32(0)), parts)[0]


def _forward(
    train_head: bool, chunk: int, softcap: float, axes: Any, hidden: Any, weight: Any, targets: Any, counted: Any
) -> tuple[Any, Any]:
    def body(total: Any, part: Any) -> tuple[Any, Any]:
        def loss_of(h: Any, w: Any) -> Any:
            return _chunk_sums(h, Head(w, softcap, axes), part[1], part[2])

        if train_head:
            loss, pull, correct = jax.vjp(loss_of, part[0], weight, has_aux=True)
            d_hidden, d_part = pull(jnp.float32(1))
            d_weight = total[2] + d_part.astype(jnp.float32)
        else:
            loss, pull, correct = jax.vjp(lambda h: loss_of(h, weight), part[0], has_aux=True)
            (d_hidden,), d_weight = pull(jnp.float32(1)), None
        return (total[0] + loss, total[1] + correct, d_weight), d_hidden

    parts = tuple(_split(x, chunk) for x in (hidden, targets, counted))
    d_weight = jnp.zeros(weight.shape, jnp.float32) if train_head else None
    (loss, correct, d_weight), d_hidden = jax.lax.scan(body, (jnp.float32(0), jnp.float32(0), d_weight), parts)
    kept = (_join(d_hidden, hidden.shape[1]), d_weight, weight)
    return (loss, correct), kept


def _backward(train_head: bool, chunk: int, softcap: float, axes: Any, kept: Any, cotangents: Any) -> tuple[Any, ...]:
    d_hidden, d_weight, weight = kept
    scale = cotangents[0]
    # A frozen head gets a zero gradient that nobody asks for: the compiler drops it.
    d_weight = jnp.zeros_like(weight) if d_weight is None else (scale * d_weight).astype(weight.dtype)
    return (scale * d_hidden).astype(d_hidden.dtype), d_weight, None, None


_summed.defvjp(_forward, _backward)


def _split(x: Any, chunk: int) -> Any:
    """`[B, T, ...]` as `[T / chunk, B, chunk, ...]`, padded with zeros (targets that do not count)."""
    pad = [(0, 0), (0, -x.shape[1] % chunk)] + [(0, 0)] * (x.ndim - 2)
    padded = jnp.pad(x, pad)
    return jnp.moveaxis(padded.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)


def _join(x: Any, length: int) -> Any:
    """The inverse of `_split`."""
    back = jnp.moveaxis(x, 0, 1)
    return back.reshape(back.shape[0], -1, *back.shape[3:])[:, :length]
