"""What a conversion starts from: a model's tensors, ready to be read, its adapters, and the files beside them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from labkit import lora
from labkit.convert import adapters as pairing
from labkit.convert.adapters import Adapters
from labkit.convert.tensors import Tensor, of_rows
from labkit.errors import LabError
from labkit.models.layout import rows
from labkit.models.spec import ModelSpec

_SAMPLES = 4  # places of each tensor that a fingerprint looks at
_VALUES = 256  # values at each of them


@dataclass(frozen=True)
class Source:
    """A model as its Hugging Face tensors, by name and in order; nothing of it need be in memory.

    `shapes` are those of its Tunix parameters, where it has some; `files` the directory with its configuration and
    tokenizer, if any; `about` what is to be said of it in a result's `provenance.json`.
    """

    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    adapters: Adapters | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    files: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def of_model(model: nnx.Module, spec: ModelSpec, files: Path | None = None) -> Source:
    """A live Tunix model of the spec; its adapters stay apart.

    Raises:
        LabError: parameters that are not those of the spec, or of which other processes hold parts.
    """
    adapted = lora.is_injected(model)
    plain = lora.split(model)[0] if adapted else model
    values = pairing.flat(nnx.state(plain, nnx.Param))
    for name, value in values.items():
        if not value.is_fully_addressable:
            raise LabError(
                f"Other processes hold parts of {name}.",
                hint="Save an Orbax checkpoint on all of them (to_orbax), and convert that on one.",
            )
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    tensors = of_rows(rows(spec, shapes), {name: value.dtype for name, value in values.items()}, values.__getitem__)
    adapters = dataclasses.replace(pairing.of_model(model, spec), base=fingerprint(tensors)) if adapted else None
    return Source(spec, tensors, adapters, shapes, files)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 of names, shapes and a few values of each tensor, the same in float32 and bfloat16.

    It tells two trainings apart, and does not prove that two models are equal.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.shape}".encode())
        for sample in _samples(tensor):
            digest.update(np.asarray(sample.astype(jnp.bfloat16)).tobytes())
    return digest.hexdigest()


def _samples(tensor: Tensor) -> list[jax.Array]:
    """The first values of rows spread over a matrix, of a vector its first values: the same however it is read."""
    if len(tensor.shape) == 1:
        return [tensor.rows(0, min(_VALUES, tensor.shape[0]))]
    return [_row(tensor, at)[:_VALUES] for at in sorted({tensor.shape[0] * i // _SAMPLES for i in range(_SAMPLES)})]


def _row(tensor: Tensor, at: int) -> jax.Array:
    start = at - at % tensor.block
    return tensor.rows(start, start + tensor.block)[at - start].reshape(-1)


def refuse_other_base(where: str, adapters: Adapters, base: Mapping[str, Tensor]) -> None:
    """A `LabError` for adapters that say that they were trained on other weights than these."""
    if adapters.base is not None and adapters.base != fingerprint(base):
        raise LabError(
            f"{where} was trained on other weights than this base model has.",
            hint="Give the base that it was trained on; allow_other_base (--any-base) applies it all the same.",
        )
