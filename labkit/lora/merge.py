"""From a model with adapters back to one without: folded into the weights, or taken off."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from jaxtyping import Array, Float

from labkit.lora.inject import settings, state
from labkit.lora.linears import Linear, linears

_QWIX_MARKS = ("qwix_path", "qwix_rngs", "disable_quant_stats_update")


def merge(model: nnx.Module) -> nnx.Module:
    """A plain Tunix model with W + (alpha / rank) A B, summed in float32 and rounded once to the weights' dtype.

    Weights in nf4 are made floats again first. The model given stays as it is.
    """
    return _without_adapters(model, settings(model).scale)


def split(model: nnx.Module) -> tuple[nnx.Module, nnx.State]:
    """The model as before the injection (with nf4's rounding, if it had any), and its adapters."""
    return _without_adapters(model, None), state(model)


def delta(linear: Linear, a: Float[Array, ...], b: Float[Array, ...], scale: float) -> Float[Array, ...]:
    """scale * A B in float32, in the shape of the linear's weight."""
    shape = [linear.shape[i] for i in (*linear.contracted, *linear.remaining)]
    rank = a.shape[-1]
    product = scale * (a.astype(jnp.float32).reshape(-1, rank) @ b.astype(jnp.float32).reshape(rank, -1))
    order = [*linear.contracted, *linear.remaining]
    return product.reshape(shape).transpose([order.index(axis) for axis in range(len(order))])


def _without_adapters(model: nnx.Module, scale: float | None) -> nnx.Module:
    known = {linear.path: linear for linear in linears(model)}
    plain = nnx.clone(model)
    plain.__class__ = plain._unquantized_type
    for path, module in nnx.iter_modules(plain):
        linear = known.get("/".join(map(str, path)))
        if linear is not None and hasattr(module, f"{linear.weight}_lora_a"):
            setattr(module, linear.weight, _weight(module, linear, scale))
            _drop(module, f"{linear.weight}_lora_a", f"{linear.weight}_lora_b", f"{linear.weight}_lora_einsum_str")
        _drop(module, *_QWIX_MARKS)
    _drop(plain, "lora_settings")
    return plain


def _weight(module: Any, linear: Linear, scale: float | None) -> nnx.Param:
    boxed = getattr(module, linear.weight)
    a, b = (getattr(module, f"{linear.weight}_lora_{x}").get_value() for x in "ab")
    if isinstance(boxed, nnx.Param):
        value, metadata = boxed.get_value(), boxed.get_metadata()
    else:
        value, metadata = qwix.dequantize(jax.tree.map(jnp.asarray, nnx.pure(boxed.array))), {}
    if scale is not None:
        value = (value.astype(jnp.float32) + delta(linear, a, b, scale)).astype(value.dtype)
    return nnx.Param(value, **metadata)


def _drop(module: Any, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
