"""What two models say to the same tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from labkit.convert.merging import Merger
from labkit.convert.sources import Source
from labkit.convert.tensors import Tensor
from labkit.models import building
from labkit.models.layout import Row, rows
from labkit.models.sharding import variables

PROBE = (4, 64)  # sequences and tokens
PROMPT = 48  # tokens after which each model goes on by itself, to the probe's length
Change = Callable[[Tensor, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Gap:
    """How far two models' logits are apart, and how often they like the same tokens best."""

    max_difference: float
    mean_difference: float
    argmax_agreement: float
    greedy_agreement: float


def compare(a: nnx.Module, b: nnx.Module, vocabulary: int, seed: int = 0) -> Gap:
    """Logits on tokens drawn from `seed`, and greedy continuations of their first part."""
    tokens = np.random.default_rng(seed).integers(0, vocabulary, PROBE).astype(np.int32)
    (x, said), (y, also) = _answers(a, tokens), _answers(b, tokens)
    return Gap(
        max_difference=float(np.abs(x - y).max()),
        mean_difference=float(np.abs(x - y).mean()),
        argmax_agreement=float((x.argmax(-1) == y.argmax(-1)).mean()),
        greedy_agreement=float((said == also).all(-1).mean()),
    )


def live(source: Source, change: Change | None = None) -> nnx.Module:
    """The Tunix model of a source, its adapters merged; `change` may give each tensor other values."""
    merger = Merger(source.adapters, None)
    model = building.abstract(source.spec, dtype=next(iter(source.tensors.values())).dtype)
    found = variables(model)
    parts: dict[str, list[tuple[Row, np.ndarray]]] = defaultdict(list)
    shapes = {path: tuple(variable.get_value().shape) for path, variable in found.items()}
    for row in rows(source.spec, shapes):
        tensor = source.tensors[row.hf]
        whole = np.concatenate([piece for piece, _ in merger.pieces(tensor)])
        parts[row.tunix].append((row, change(tensor, whole) if change else whole))
    for path, variable in found.items():
        values = [row.to_tunix(whole) for row, whole in sorted(parts.pop(path), key=lambda x: x[0].part or 0)]
        variable.set_value(jnp.asarray(values[0] if len(values) == 1 else np.stack(values)))
    return model


def _answers(
    model: nnx.Module, tokens: Int[np.ndarray, "B T"]
) -> tuple[Float[np.ndarray, "B T V"], Int[np.ndarray, "B T"]]:
    """Logits of the probe, and the probe's prompts with what the model likes best after them."""
    said = tokens.copy()
    for place in range(PROMPT, tokens.shape[1]):
        said[:, place] = np.asarray(logits(model, said)[:, place - 1]).argmax(-1)
    return np.asarray(logits(model, tokens), np.float32), said


@nnx.jit
def logits(model: nnx.Module, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """The model's logits without a cache, each token seeing those before it."""
    batch, length = tokens.shape
    positions = jnp.tile(jnp.arange(length), (batch, 1))
    mask = jnp.tile(jnp.tril(jnp.ones((length, length), bool)), (batch, 1, 1))
    return model(tokens, positions, None, mask)[0]
