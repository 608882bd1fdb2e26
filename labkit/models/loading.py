"""Weights and tokenizer of a model, through Tunix's own safetensors loader."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging as absl_logging
from flax import nnx
from jax.sharding import Mesh
from tunix.models import safetensors_loader
from tunix.models.gemma3 import params_safetensors as gemma3
from tunix.models.gemma4 import params_safetensors as gemma4
from tunix.models.llama3 import params as llama3
from tunix.models.qwen3 import params as qwen3

from labkit.errors import LabError
from labkit.models import building, checkpoints, hub
from labkit.models.hf_config import spec_from_config
from labkit.models.spec import ModelSpec

_LAYOUTS = {"gemma3": gemma3, "gemma4": gemma4, "llama3": llama3, "qwen3": qwen3}
# How the key patterns of Tunix 0.1.7 begin. Gemma 4's lack plain "model.", which is what Transformers saves.
_TUNIX_PREFIXES = (r"(?:model\.language_model\.)?", r"(?:language_model\.)?model\.", r"model\.")
_ANY_PREFIX = "(?:" + "|".join(prefix.replace(".", r"\.") for prefix in checkpoints.PREFIXES) + ")"
_JAX_DTYPES = {"BF16": jnp.bfloat16, "F16": jnp.float16, "F32": jnp.float32}


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model with its weights, its Transformers tokenizer, its spec and the directory that all came from."""

    model: nnx.Module
    tokenizer: Any
    spec: ModelSpec
    directory: Path

    def __str__(self) -> str:
        return f"{self.spec} from {self.directory}"


def load(name_or_directory: str | os.PathLike[str], *, mesh: Mesh | None = None, dtype: Any = None) -> Loaded:
    """A model by registry name or from a local Hugging Face directory.

    Args:
        name_or_directory: a local directory never touches the network.
        mesh: where the weights go, by the model's own sharding (axes `fsdp` and `tp`); None is one device.
        dtype: of the weights and the computation; None keeps the checkpoint's.

    Raises:
        LabError: unknown name, gated or failed download, broken or mismatching files (naming tensor and file).
    """
    directory, known = hub.locate(name_or_directory)
    spec = spec_from_config(directory)
    if known is not None:
        origin = {k: getattr(known, k) for k in ("name", "hub_id", "licence", "gated")}
        spec = dataclasses.replace(spec, **origin)
    tensors = checkpoints.check(directory, spec)
    tokenizer = _tokenizer(directory)
    model = _read(directory, spec, tensors, mesh, dtype)
    return Loaded(model, tokenizer, spec, directory)


def _tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise LabError(f"{directory} has no tokenizer.json.", hint="Save the tokenizer beside the weights.")
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def _read(
    directory: Path,
    spec: ModelSpec,
    tensors: dict[str, checkpoints.TensorInfo],
    mesh: Mesh | None,
    dtype: Any,
) -> nnx.Module:
    layout = _LAYOUTS[spec.family]
    dtypes = {info.dtype for info in tensors.values()}
    dtype = jnp.dtype(dtype or _JAX_DTYPES[tensors["model.embed_tokens.weight"].dtype])
    config = building.config(spec, dtype=dtype)
    if mesh is not None:
        _check_divides(building.abstract(spec), mesh, spec)
    with _quiet():
        model = safetensors_loader.load_and_create_model(
            file_dir=str(directory),
            model_class=building.model_class(spec),
            config=config,
            key_mapping=lambda cfg: _any_prefix(layout._get_key_and_transform_mapping(cfg)),
            mesh=mesh,
            preprocess_fn=layout._make_preprocess_fn(config) if hasattr(layout, "_make_preprocess_fn") else None,
            dtype=dtype,
            # Tunix's mapped reader takes one dtype for a whole file; the other asks each tensor.
            mode="optimized" if len(dtypes) == 1 else "original",
        )
    _refuse_holes(model, spec, directory)
    return model


def _any_prefix(mapping: dict[str, Any]) -> dict[str, Any]:
    """Tunix's key patterns, made to take every prefix that checkpoints are saved with."""
    renamed = {}
    for pattern, target in mapping.items():
        prefix = next((p for p in _TUNIX_PREFIXES if pattern.startswith(p)), "")
        renamed[(_ANY_PREFIX if prefix else "") + pattern[len(prefix) :]] = target
    return renamed


def _refuse_holes(model: nnx.Module, spec: ModelSpec, directory: Path) -> None:
    """Tunix leaves a parameter that no tensor filled as a shape; say which."""
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        if not isinstance(variable.get_value(), jax.Array):
            name = ".".join(map(str, path))
            raise LabError(
                f"Parameter {name} of {spec.name} was filled by no tensor of {directory}.",
                hint="Check that config.json belongs to these weights.",
            )


def _check_divides(model: nnx.Module, mesh: Mesh, spec: ModelSpec) -> None:
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        for size, axis in zip(variable.get_value().shape, building.sharding_axes(variable), strict=True):
            ways = _ways(axis, mesh)
            if size % ways:
                raise LabError(
                    f"{spec.name}: dimension {size} of {'.'.join(map(str, path))} is not divisible by mesh axis "
                    f"{axis!r} of {ways}.",
                    hint=f"Choose an {axis!r} that divides {size}.",
                )


def _ways(axis: Any, mesh: Mesh) -> int:
    names = [a for a in (axis if isinstance(axis, tuple) else (axis,)) if a is not None]
    ways = 1
    for name in names:
        if name not in mesh.shape:
            raise LabError(
                f"The mesh has axes {tuple(mesh.shape)}, the model is sharded over {name!r}.",
                hint="Make a mesh with axes fsdp and tp.",
            )
        ways *= mesh.shape[name]
    return ways


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tunix warns about every tensor that it skips; `checkpoints.check` has already looked at them."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        yield
    finally:
        absl_logging.set_verbosity(before)
