"""Are two checkpoints the same, tensor by tensor and in what they say?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from safetensors import safe_open

from labkit import models
from labkit.convert.shards import as_bytes
from labkit.errors import LabError
from labkit.models import checkpoints
from labkit.models.checkpoints import TensorInfo
from labkit.records import Record

PROBE = (4, 64)  # sequences and tokens of the probe
PROMPT = 48  # tokens of the probe after which each model goes on by itself, to the probe's length


@dataclass(frozen=True)
class Verification(Record):
    """Two checkpoints compared.

    `equal` is bit for bit, in one dtype. Differences are of float32 values. `argmax_agreement` is the share of the
    probe's tokens after which both find the same next one likeliest, `greedy_agreement` the share of prompts that both
    continue alike to the end.
    """

    a: str
    b: str
    equal: bool
    tensors: int
    different_tensors: int
    max_abs_difference: float
    worst_tensor: str
    max_logit_difference: float
    mean_logit_difference: float
    argmax_agreement: float
    greedy_agreement: float

    def __str__(self) -> str:
        if self.equal:
            return f"{self.a} and {self.b} are equal, bit for bit ({self.tensors} tensors)"
        return (
            f"{self.a} and {self.b} differ in {self.different_tensors} of {self.tensors} tensors, by up to "
            f"{self.max_abs_difference:.3g} in {self.worst_tensor}; logits by up to {self.max_logit_difference:.3g}, "
            f"{self.argmax_agreement:.1%} of the likeliest tokens and {self.greedy_agreement:.0%} of the greedy "
            "continuations agree"
        )


@dataclass(frozen=True)
class _Gap:
    name: str
    same_bytes: bool
    difference: float


def verify(a: str | Path, b: str | Path, *, seed: int = 0) -> Verification:
    """Compare two model directories of one shape: their tensors one by one, then what the models say.

    The tensors are compared as they are in the files, by name, whatever prefix and shards the files have. The models
    then run in Tunix one after the other, on tokens drawn from `seed`.

    Raises:
        LabError: models of different parameters, or files that cannot be read.
    """
    gaps = list(_gaps(Path(a), Path(b)))
    worst = max(gaps, key=lambda gap: np.nan_to_num(gap.difference, nan=np.inf))
    tokens = np.random.default_rng(seed).integers(0, models.spec_from_config(a).vocab_size, PROBE)
    (x, said), (y, also) = (_answers(side, tokens) for side in (a, b))
    return Verification(
        a=str(a),
        b=str(b),
        equal=all(gap.same_bytes for gap in gaps),
        tensors=len(gaps),
        different_tensors=sum(not gap.same_bytes for gap in gaps),
        max_abs_difference=worst.difference,
        worst_tensor=worst.name,
        max_logit_difference=float(np.abs(x - y).max()),
        mean_logit_difference=float(np.abs(x - y).mean()),
        argmax_agreement=float((x.argmax(-1) == y.argmax(-1)).mean()),
        greedy_agreement=float((said == also).all(-1).mean()),
    )


def _gaps(a: Path, b: Path) -> Iterator[_Gap]:
    """Each tensor of both directories; two at a time are in memory."""
    left, right = (checkpoints.check(side, models.spec_from_config(side)) for side in (a, b))
    for name in sorted(left.keys() | right.keys()):
        shapes = [side[name].shape if name in side else None for side in (left, right)]
        if shapes[0] != shapes[1]:
            raise LabError(f"{name} is {shapes[0]} in {a} and {shapes[1]} in {b}.", hint="Compare models of one shape.")
    with ExitStack() as stack:
        files: dict[Path, Any] = {}
        for name in sorted(left):
            one, two = (_read(files, stack, side[name]) for side in (left, right))
            same = one.dtype == two.dtype and as_bytes(one) == as_bytes(two)
            yield _Gap(name, same, 0.0 if same else _difference(one, two))


def _read(files: dict[Path, Any], stack: ExitStack, info: TensorInfo) -> np.ndarray:
    if info.file not in files:
        files[info.file] = stack.enter_context(safe_open(str(info.file), framework="numpy"))
    return files[info.file].get_tensor(info.name)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(np.float32) - b.astype(np.float32)).max())


def _answers(
    directory: str | Path, tokens: Int[np.ndarray, "B T"]
) -> tuple[Float[np.ndarray, "B T V"], Int[np.ndarray, "B T"]]:
    """Logits of the probe, and the probe's prompts with what the model likes best after them."""
    model = models.load(directory).model
    said = tokens.astype(np.int32)
    for place in range(PROMPT, tokens.shape[1]):
        said[:, place] = _logits(model, said)[:, place - 1].argmax(-1)
    return np.asarray(_logits(model, tokens.astype(np.int32)), np.float32), said


@nnx.jit
def _logits(model: nnx.Module, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    batch, length = tokens.shape
    positions = jnp.tile(jnp.arange(length), (batch, 1))
    mask = jnp.tile(jnp.tril(jnp.ones((length, length), bool)), (batch, 1, 1))
    return model(tokens, positions, None, mask)[0]
