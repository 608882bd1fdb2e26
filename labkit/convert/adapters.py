"""LoRA adapters between Qwix's axes and PEFT's matrices.

PEFT's A is `[r, in]` and B `[out, r]`; Qwix keeps an einsum's axes apart, A `(in..., r)` and B `(r, out...)`. Which
axes are `in` and `out` is what the layout table says. Tunix's fused projections have one A and a slice of B for each
part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import einops
import numpy as np
from flax import nnx
from jaxtyping import Float

from labkit import lora
from labkit.errors import LabError
from labkit.models.layout import Row, rows
from labkit.models.spec import ModelSpec


@dataclass(frozen=True)
class Pair:
    """A and B of one linear, as PEFT has them."""

    a: Float[np.ndarray, "r in"]
    b: Float[np.ndarray, "out r"]


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model: what to add to each linear is `scale` * B A.

    `pairs` goes by the linear's Hugging Face name without ".weight". In layers whose values are their keys only
    `k_proj` is there. `base` is the fingerprint of the weights that they were trained on, where it is known.
    """

    rank: int
    alpha: float
    pairs: Mapping[str, Pair]
    rslora: bool = False
    base: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """The factor of B A: alpha / r, in rsLoRA (arXiv:2312.03732) alpha / sqrt(r)."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def of_model(model: nnx.Module, spec: ModelSpec) -> Adapters:
    """The adapters of a live model."""
    settings = lora.settings(model)
    return of_arrays(flat(lora.state(model)), spec, settings.rank, settings.alpha)


def of_arrays(arrays: Mapping[str, Any], spec: ModelSpec, rank: int, alpha: float, **about: Any) -> Adapters:
    """The adapters in Qwix's arrays, by path with `_lora_a` or `_lora_b` at its end.

    Raises:
        LabError: an array without its other half, of another rank, or of no linear of the spec.
    """
    table = linears(spec)
    known = {f"{row.tunix}_lora_{side}" for row in table for side in "ab"}
    for name in arrays:
        if name not in known or not {f"{name[:-1]}a", f"{name[:-1]}b"} <= set(arrays):
            raise LabError(f"{name} is no adapter of a linear of {spec.name}, or lacks its other half.")
    found = [row for row in table if f"{row.tunix}_lora_a" in arrays]
    return Adapters(rank, alpha, {module(row): _pair(row, arrays, rank) for row in found}, **about)


def linears(spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]] | None = None) -> list[Row]:
    """The rows of the layers' linears."""
    return [row for row in rows(spec, shapes) if len(row.hf_groups) == 2 and row.hf.startswith("model.layers.")]


def module(row: Row) -> str:
    """The name of a linear in Transformers."""
    return row.hf.removesuffix(".weight")


def flat(state: nnx.State) -> dict[str, Any]:
    """The arrays of a state by path, joined with dots."""
    return {".".join(map(str, path)): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def axes(row: Row) -> tuple[str, str, str, str]:
    """Axes of the output and of the input as einops words: in Tunix's order, and as Hugging Face joins them."""
    outputs, inputs = row.hf_groups
    apart = [" ".join(axis for axis in row.tunix_axes if axis in side) for side in (outputs, inputs)]
    return apart[0], apart[1], f"({' '.join(outputs)})", f"({' '.join(inputs)})"


def _pair(row: Row, arrays: Mapping[str, Any], rank: int) -> Pair:
    """PEFT's A and B of Qwix's."""
    a, b = (np.asarray(arrays[f"{row.tunix}_lora_{side}"]) for side in "ab")
    outputs, inputs, out, into = axes(row)
    for name, value, size in (("a", a, _size(row, inputs)), ("b", b, _size(row, outputs) * _parts(row))):
        if value.size != size * rank or rank not in (value.shape[-1], value.shape[0]):
            raise LabError(f"{row.tunix}_lora_{name} is {value.shape}, which does not fit {row.tunix} at rank {rank}.")
    b = b if row.part is None else b[:, row.part]
    a = a.reshape([*(row.sizes[axis] for axis in inputs.split()), rank])
    b = b.reshape([rank, *(row.sizes[axis] for axis in outputs.split())])
    return Pair(
        np.ascontiguousarray(einops.rearrange(a, f"{inputs} r -> r {into}")),
        np.ascontiguousarray(einops.rearrange(b, f"r {outputs} -> {out} r")),
    )


def _size(row: Row, names: str) -> int:
    return math.prod(row.sizes[axis] for axis in names.split())


def _parts(row: Row) -> int:
    return 1 if row.part is None else row.tunix_shape[0]


Parts = dict[int, tuple[Row, Pair]]  # by number of the part; 0 where Tunix does not fuse


def by_parameter(pairs: Mapping[str, Pair], table: Mapping[str, Row]) -> dict[str, Parts]:
    """The pairs of each Tunix parameter; a `LabError` for one of no linear or shape of the table."""
    check(pairs, table)
    fused: dict[str, Parts] = defaultdict(dict)
    for name, pair in pairs.items():
        fused[table[name].tunix][table[name].part or 0] = (table[name], pair)
    return fused


def check(pairs: Mapping[str, Pair], table: Mapping[str, Row]) -> None:
    """A `LabError` for a pair of no linear or shape of the table."""
    for name, pair in pairs.items():
        if name not in table:
            raise LabError(f"The adapter has {name}, which is no linear of the model.", hint="Is it of another model?")
        shape = (pair.b.shape[0], pair.a.shape[1])
        if shape != table[name].hf_shape:
            raise LabError(f"The adapter of {name} is for {shape}, the model has {table[name].hf_shape}.")


def distinct(parts: Parts) -> list[np.ndarray]:
    """The different A among the parts of one parameter."""
    found: list[np.ndarray] = []
    for _, pair in parts.values():
        if not any(np.array_equal(pair.a, other) for other in found):
            found.append(pair.a)
    return found


def tunix_a(parts: Parts, rank: int) -> np.ndarray:
    """Qwix's A: the different A of the parts one after another, then zeros up to `rank`."""
    row, _ = next(iter(parts.values()))
    _, inputs, _, into = axes(row)
    stacked = np.concatenate(distinct(parts))
    padded = np.pad(stacked, ((0, rank - len(stacked)), (0, 0)))
    return einops.rearrange(padded, f"r {into} -> {inputs} r", **_sizes(row, inputs))


def tunix_b(parts: Parts, rank: int) -> np.ndarray:
    """Qwix's B: each part's B in the place of its A, zeros elsewhere and for parts without adapter."""
    row, _ = next(iter(parts.values()))
    outputs, _, out, _ = axes(row)
    known = distinct(parts)
    wide = np.zeros((_parts(row), row.hf_shape[0], rank), known[0].dtype)
    for number, (_, pair) in parts.items():
        place = next(i for i, a in enumerate(known) if np.array_equal(a, pair.a)) * len(pair.a)
        wide[number, :, place : place + len(pair.a)] = pair.b
    return einops.rearrange(wide, f"part {out} r -> r part {outputs}", **_sizes(row, outputs))


def _sizes(row: Row, names: str) -> dict[str, int]:
    return {axis: row.sizes[axis] for axis in names.split()}
