"""From a Tunix model to a Hugging Face directory that Transformers, vLLM and labkit load."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from labkit import lora
from labkit.convert import shards
from labkit.convert.config import generation_config, hf_config, token_ids
from labkit.convert.folders import new_folder, write_json, write_provenance
from labkit.convert.memory import peak_rss
from labkit.errors import LabError
from labkit.models.layout import Row, rows
from labkit.models.spec import ModelSpec
from labkit.records import Record

_TOKENIZER = (
    "tokenizer.json tokenizer.model tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json "
    "merges.txt chat_template.jinja chat_template.json"
).split()


@dataclass(frozen=True)
class Conversion(Record):
    """What a conversion wrote. `verified`: the files were read again and every tensor is what was meant."""

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
    source: str | Path | None = None,
    tokenizer: Any = None,
    dtype: str | None = None,
    max_shard: str = "5GB",
    provenance: dict[str, Any] | None = None,
    allow_nonfinite: bool = False,
) -> Conversion:
    """Write `model` as a Hugging Face directory; adapters are merged in float32 and rounded once.

    One tensor at a time is brought to the host, transformed and written. The files are read back and compared before
    the folder gets its name.

    Args:
        model: a Tunix model of the spec, with or without adapters; it stays as it is.
        spec: its shapes, which also go into `config.json`.
        out: a new folder, or an earlier version of the same thing, which is replaced when the new one is complete.
        source: the directory that the model was loaded from: tokenizer, generation config, and what else its
            `config.json` says are taken over.
        tokenizer: a Transformers tokenizer to save instead of the source's.
        dtype: of the tensors written ("float32", "bfloat16", "float16"); None keeps the model's.
        max_shard: size of a file, as huggingface_hub writes it.
        provenance: what else `provenance.json` shall say, such as the recipe.
        allow_nonfinite: write weights that are NaN or infinite.

    Raises:
        LabError: a folder of something else, a model that is not of the spec, weights that are not finite (by name),
            a disk that is full.
    """
    begun = time.monotonic()
    origin = _Source(Path(source) if source is not None else None, Path(out))
    plain = lora.merge(model) if lora.is_injected(model) else model
    parameters = tunix_parameters(plain)
    table = {row.hf: row for row in rows(spec, {name: tuple(value.shape) for name, value in parameters.items()})}
    plan = [_planned(row, parameters, dtype) for row in table.values()]
    produce = functools.partial(_tensor, table, parameters, dtype, allow_nonfinite)
    with new_folder(out, "model", spec.name) as folder:
        digests = shards.write(folder, "model", plan, produce, max_shard)
        shards.check(folder, digests)
        _write_beside(folder, spec, plan[0].dtype.name, origin, tokenizer)
        about = {"source": origin.about(), "adapter": _adapter(model), "tensors_sha256": shards.digest(digests)}
        write_provenance(folder, "model", spec.name, about | (provenance or {}))
    size = sum(tensor.nbytes for tensor in plan)
    return Conversion(str(out), len(plan), size, time.monotonic() - begun, peak_rss(), verified=True)


def tunix_parameters(model: nnx.Module) -> dict[str, jax.Array]:
    """Every parameter of a Tunix model by its path joined with dots."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): variable.get_value() for path, variable in state}


def refuse_nonfinite(name: str, value: np.ndarray) -> None:
    """A `LabError` with the tensor's name if it holds NaN or infinity."""
    bad = shards.count_nonfinite(value)
    if bad:
        raise LabError(
            f"{name} has {bad:,} of {value.size:,} values that are not finite as {value.dtype.name}.",
            hint="Find the step that made them; allow_nonfinite=True writes them all the same.",
        )


@dataclass(frozen=True)
class _Source:
    """The directory that a model came from, if any."""

    directory: Path | None
    out: Path

    def __post_init__(self) -> None:
        if self.directory is None:
            return
        if not self.directory.is_dir():
            raise LabError(f"The source {self.directory} is no directory.", hint="Give the model's own directory.")
        if self.directory.resolve() == self.out.resolve():
            raise LabError(f"{self.out} is the source itself.", hint="Choose another folder for the result.")

    def files(self, names: list[str]) -> list[Path]:
        found = [self.directory / name for name in names] if self.directory is not None else []
        return [path for path in found if path.is_file()]

    def config(self) -> dict[str, Any]:
        files = self.files(["config.json"])
        return json.loads(files[0].read_text(encoding="utf-8")) if files else {}

    def tokenizer(self) -> Any:
        """The directory's tokenizer; None where it has none."""
        if not self.files(["tokenizer.json", "tokenizer.model"]):
            return None
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.directory, local_files_only=True)

    def about(self) -> dict[str, Any] | None:
        """Name and the SHA-256 of each file of weights, for the provenance."""
        if self.directory is None:
            return None
        weights = sorted(self.directory.glob("*.safetensors"))
        with ThreadPoolExecutor() as pool:
            return {"directory": self.directory.resolve().name} | dict(
                zip((path.name for path in weights), pool.map(_sha256, weights), strict=True)
            )


def _planned(row: Row, parameters: dict[str, jax.Array], dtype: str | None) -> shards.Planned:
    kept = np.dtype(parameters[row.tunix].dtype)
    return shards.Planned(row.hf, row.hf_shape, shards.dtype_of(dtype or kept.name))


def _tensor(
    table: dict[str, Row], parameters: dict[str, jax.Array], dtype: str | None, allow_nonfinite: bool, name: str
) -> np.ndarray:
    row = table[name]
    value = row.to_hf(parameters[row.tunix])
    if dtype is not None:
        value = value.astype(shards.dtype_of(dtype), copy=False)
    if not allow_nonfinite:
        refuse_nonfinite(name, value)
    return value


def _write_beside(folder: Path, spec: ModelSpec, dtype: str, origin: _Source, tokenizer: Any) -> None:
    """Configuration, generation config and tokenizer."""
    config = hf_config(spec, dtype, origin.config())
    given = origin.files(["generation_config.json"])
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        config = token_ids(tokenizer) | config
    else:
        given += origin.files(_TOKENIZER)
        tokenizer = origin.tokenizer()
    for path in given:
        shutil.copyfile(path, folder / path.name)
    if tokenizer is not None and not origin.files(["generation_config.json"]):
        write_json(folder / "generation_config.json", generation_config(tokenizer))
    write_json(folder / "config.json", config)


def _adapter(model: nnx.Module) -> dict[str, Any] | None:
    return dataclasses.asdict(lora.settings(model)) if lora.is_injected(model) else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
