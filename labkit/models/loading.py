"""Weights and tokenizer of a model, straight from its safetensors files to where they belong."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from labkit.errors import LabError
from labkit.models import building, checkpoints, hub, reading, sharding
from labkit.models.hf_config import spec_from_config
from labkit.models.spec import ModelSpec


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model with its weights, its Transformers tokenizer, its spec and the directory that all came from."""

    model: nnx.Module
    tokenizer: Any
    spec: ModelSpec
    directory: Path

    def __str__(self) -> str:
        return f"{self.spec} from {self.directory}"


def load(
    name_or_directory: str | os.PathLike[str],
    *,
    mesh: Mesh | None = None,
    dtype: Any = None,
    place: Callable[[nnx.Module], Mapping[str, Sharding]] | None = None,
) -> Loaded:
    """A model by registry name or from a local Hugging Face directory.

    Args:
        name_or_directory: a local directory never touches the network.
        mesh: where the weights go, by the model's own sharding (axes `fsdp` and `tp`); None is one device.
        dtype: of the weights and the computation; None keeps the checkpoint's.
        place: where the weights go instead: given the model without weights, the sharding of each parameter by path.

    Raises:
        LabError: unknown name, gated or failed download, broken or mismatching files (naming tensor and file),
            a dimension that the mesh does not divide.
    """
    directory, known = hub.locate(name_or_directory)
    spec = spec_from_config(directory)
    if known is not None:
        origin = {k: getattr(known, k) for k in ("name", "hub_id", "licence", "gated")}
        spec = dataclasses.replace(spec, **origin)
    tensors = checkpoints.check(directory, spec)
    tokenizer = tokenizer_of(directory)
    model = building.abstract(spec, dtype=dtype or reading.DTYPES[tensors["model.embed_tokens.weight"].dtype])
    shardings = place(model) if place else _shardings(model, mesh)
    return Loaded(reading.fill(model, spec, tensors, shardings), tokenizer, spec, directory)


def tokenizer_of(directory: Path) -> Any:
    """The Transformers tokenizer of a local directory."""
    from transformers import AutoTokenizer

    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise LabError(f"{directory} has no tokenizer.json.", hint="Save the tokenizer beside the weights.")
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def _shardings(model: nnx.Module, mesh: Mesh | None) -> Mapping[str, Sharding]:
    if mesh is not None:
        return sharding.partition(model, mesh)
    return dict.fromkeys(sharding.variables(model), SingleDeviceSharding(jax.local_devices()[0]))
