"""Repairs of libraries, each with the version that needs it and why. Nothing else in labkit patches a library."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import math
import sys
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import pxla
from jaxtyping import Array, Float, Int
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3
from tunix.utils import sharding_utils

_ROPE: contextvars.ContextVar[Any] = contextvars.ContextVar("labkit_rope")


class RopeScaling(NamedTuple):
    """Llama 3.1's frequency scaling, in the names of its `config.json`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: float


@dataclasses.dataclass(slots=True, frozen=True)
class Llama3Config(llama3.ModelConfig):
    """Tunix's Llama 3 config with the frequency scaling that Llama 3.1 and 3.2 were trained with."""

    rope_scaling: RopeScaling | None = None


def repair_rope(family: ModuleType) -> None:
    """Make Tunix's Llama 3 or Qwen 3 module rotate by its config.

    google-tunix 0.1.7: `Attention.block` of both calls `apply_rope` without `rope_theta`, so every model rotates with
    theta 1,000,000, and the frequency scaling of Llama 3.1 is missing. Logits of a model with another theta are off
    by several units (tests/test_models.py). The block's config is handed to `apply_rope` through a context variable.
    Calling it again is free.
    """
    if family.apply_rope is _apply_rope:
        return
    block = family.Attention.block

    @functools.wraps(block)
    def block_with_rope(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _ROPE.set(self.config)
        try:
            return block(self, *args, **kwargs)
        finally:
            _ROPE.reset(token)

    family.Attention.block = block_with_rope
    setattr(family, "apply_rope", _apply_rope)  # noqa: B010 - a module attribute that mypy cannot know


def allow_quantized_einsum() -> None:
    """Let Gemma 4's `Einsum` multiply by a weight that Qwix has quantized.

    google-tunix 0.1.7: it casts its weight with the function `jnp.astype`, which takes arrays only; Qwix's quantized
    weights have the method, and the other families' layers use no cast. QLoRA fails without this.
    Calling it again is free.
    """
    plain = gemma4.Einsum.__call__
    if getattr(plain, "takes_quantized", False):
        return

    @functools.wraps(plain)
    def call(self: Any, x: Any) -> Array:
        if isinstance(self.w.value, jax.Array):
            return plain(self, x)
        product = jnp.einsum(self.einsum_str, jnp.astype(x, self.dtype), self.w)
        return product if self.w_scale is None else product * self.w_scale

    call.takes_quantized = True  # type: ignore[attr-defined]
    gemma4.Einsum.__call__ = call


def shard_for_topology() -> None:
    """Make Tunix's models constrain their activations where the devices are those of a topology to compile for.

    google-tunix 0.1.7: `sharding_utils.shard` does nothing when JAX runs on a CPU, as it does in a rehearsal, and the
    model modules import it by name. The program compiled would not be the one that runs. For a worker process only.
    """
    original = sharding_utils.shard

    def shard(x: Array, names: tuple[str | None, ...], eager: bool = False) -> Array:
        mesh = pxla.thread_resources.env.physical_mesh
        spec = jax.sharding.PartitionSpec(*names)
        return x if mesh.empty else jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))

    for module in [sharding_utils, *sys.modules.values()]:
        if getattr(module, "shard", None) is original:
            setattr(module, "shard", shard)  # noqa: B010 - a module attribute that mypy cannot know


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Rotation per position, [head_dim / 2], float32: theta**(-2i/d), stretched at long wavelengths by `scaling`.

    Wavelengths over original / low_freq_factor are divided by `factor`, those under original / high_freq_factor are
    kept, between them it interpolates (Llama 3.1 reference code; Transformers' rope type "llama3").
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
    frequencies = 1.0 / np.float32(theta) ** exponents
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    keep = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0)
    return (frequencies * (keep + (1 - keep) / scaling.factor)).astype(np.float32)


def _apply_rope(
    inputs: Float[Array, "B T N H"],
    positions: Int[Array, "B T"],
    head_dim: int,
    rope_theta: float | None = None,
) -> Float[Array, "B T N H"]:
    config = _ROPE.get()
    frequencies = rope_frequencies(head_dim, rope_theta or config.rope_theta, getattr(config, "rope_scaling", None))
    angles = positions[..., None, None] * jnp.asarray(frequencies)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(inputs, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(inputs.dtype)
