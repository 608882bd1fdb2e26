"""From a Tunix model to a Hugging Face directory that Transformers, vLLM and labkit load."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from flax import nnx
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.numpy import save_file

from labkit import lora
from labkit.convert.layout import Row, rows
from labkit.errors import LabError
from labkit.models.spec import ModelSpec
from labkit.records import Record

_BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@dataclass(frozen=True)
class Conversion(Record):
    """What a conversion wrote. `verified` says whether the written files were read again and compared."""

    out: str
    tensors: int
    bytes: int
    seconds: float
    peak_rss_bytes: int
    verified: bool

    def __str__(self) -> str:
        checked = "verified" if self.verified else "not verified"
        return f"{self.out}: {self.tensors} tensors, {self.bytes / 2**20:.1f} MiB in {self.seconds:.1f} s, {checked}"


def to_hf(
    model: nnx.Module,
    spec: ModelSpec,
    out: str | Path,
    *,
    source: str | Path,
    dtype: str | None = None,
    max_shard: str = "5GB",
    provenance: dict[str, Any] | None = None,
    allow_nonfinite: bool = False,
) -> Conversion:
    """Write `model` as a Hugging Face directory; adapters are merged in float32 and rounded once.

    Args:
        model: a Tunix model of the spec, with or without adapters; it stays as it is.
        spec: its shapes.
        out: the new directory. It appears when it is complete; one that exists is refused.
        source: the directory that the model was loaded from: its configuration and tokenizer are taken over.
        dtype: of the tensors written; None keeps the model's.
        max_shard: size of a file, as huggingface_hub writes it.
        provenance: what else `provenance.json` shall say, such as the recipe.
        allow_nonfinite: write weights that are NaN or infinite.

    Raises:
        LabError: a folder that exists, weights that are not finite (by name), a full disk.
    """
    begun = time.monotonic()
    plain = lora.merge(model) if lora.is_injected(model) else model
    parameters = tunix_parameters(plain)
    table = rows(spec, {name: tuple(value.shape) for name, value in parameters.items()})
    tensors = {row.hf: _tensor(row, parameters, dtype, allow_nonfinite) for row in table}
    with new_folder(out) as folder:
        _write_tensors(tensors, folder, max_shard)
        _write_config(Path(source), folder, next(iter(tensors.values())).dtype.name)
        for name in _BESIDE:
            if (Path(source) / name).is_file():
                shutil.copyfile(Path(source) / name, folder / name)
        about = {"source": str(Path(source).name), "tensors_sha256": _digest(tensors), "versions": _versions()}
        (folder / "provenance.json").write_text(json.dumps(about | (provenance or {}), indent=1) + "\n")
    return Conversion(
        out=str(out),
        tensors=len(tensors),
        bytes=sum(t.nbytes for t in tensors.values()),
        seconds=time.monotonic() - begun,
        peak_rss_bytes=peak_rss(),
        verified=_reads_back(tensors, Path(out)),
    )


def tunix_parameters(model: nnx.Module) -> dict[str, jax.Array]:
    """Every parameter of a Tunix model by its path joined with dots."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): variable.get_value() for path, variable in state}


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes it when the block ends well; nothing is left if it does not."""
    target = Path(out)
    if target.exists() and any(target.iterdir()):
        raise LabError(f"{target} is there already.", hint="Choose another folder, or remove it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield folder
        folder.chmod(0o755)
        if target.exists():
            target.rmdir()
        os.replace(folder, target)
    except OSError as error:
        raise LabError(f"{target} could not be written: {error.strerror}.", hint="Free some space.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def peak_rss() -> int:
    """The most memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _tensor(row: Row, parameters: dict[str, jax.Array], dtype: str | None, allow_nonfinite: bool) -> np.ndarray:
    value = row.to_hf(parameters[row.tunix])
    if value.shape != row.hf_shape:
        raise LabError(f"{row.hf} would have the shape {value.shape}, expected {row.hf_shape}.")
    if not allow_nonfinite and not np.isfinite(value.astype(np.float32)).all():
        raise LabError(
            f"{row.hf} has values that are not finite.", hint="Find the step that made them; do not ship it."
        )
    if dtype is None:
        return value
    if dtype not in _DTYPES:
        raise LabError(f"There is no dtype {dtype!r} to write.", hint=f"Choices: {', '.join(_DTYPES)}.")
    return value.astype(_DTYPES[dtype])


def _write_tensors(tensors: dict[str, np.ndarray], folder: Path, max_shard: str) -> None:
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda t: t.nbytes,
        get_storage_id=lambda t: None,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard,
    )
    for file, names in split.filename_to_tensors.items():
        save_file({name: tensors[name] for name in names}, str(folder / file), metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _write_config(source: Path, folder: Path, dtype: str) -> None:
    """The source's configuration with the dtype that was written, and what generation needs to stop."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = dtype
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    given = source / "generation_config.json"
    if given.is_file():
        shutil.copyfile(given, folder / given.name)


def _reads_back(tensors: dict[str, np.ndarray], out: Path) -> bool:
    from safetensors import safe_open

    seen = 0
    for file in sorted(out.glob("*.safetensors")):
        with safe_open(str(file), framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 - safetensors gives no iterator
                if not np.array_equal(opened.get_tensor(name).view(np.uint8), tensors[name].view(np.uint8)):
                    raise LabError(f"{name} of {file} is not what was written.", hint="Check the disk.")
                seen += 1
    return seen == len(tensors)


def _digest(tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("jax", "google-tunix", "qwix", "safetensors")}
