"""The folders that `labkit sft` and `labkit run` leave: which base, which adapters, and is the base still the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from labkit.errors import LabError
from labkit.models import building, checkpoints, headers, reading
from labkit.models.fingerprint import FIRST, fingerprint
from labkit.models.layout import Row, rows
from labkit.models.spec import ModelSpec

FILES = ("run.json", "train/run.json")


def about(run: Mapping[str, Any]) -> dict[str, Any]:
    """What a `run.json` says of base and adapters."""
    recipe = run.get("recipe", {})
    kept = {key: recipe[key] for key in ("rank", "alpha", "targets", "dtype", "qlora") if recipe.get(key) is not None}
    return {"base": recipe.get("model"), "identity": run.get("model")} | kept


def refuse_other_base(where: str, run: Mapping[str, Any], directory: Path, spec: ModelSpec) -> None:
    """A `LabError` if the base has other weights now than when the run began. Quantized bases are not compared."""
    wanted = run.get("identity")
    if wanted is None or run.get("qlora") is not None:
        return
    if identity(directory, spec, run.get("dtype")) != wanted:
        raise LabError(
            f"{where} was trained on other weights than {directory} has.",
            hint="Give the base that it was trained on; allow_other_base (--any-base) applies it all the same.",
        )


def identity(directory: Path, spec: ModelSpec, dtype: str | None = None) -> str:
    """The fingerprint that a run has of its starting weights, of a directory: first values of each parameter."""
    infos = checkpoints.check(directory, spec)
    kind = dtype or np.dtype(reading.DTYPES[infos["model.embed_tokens.weight"].dtype]).name
    model = building.abstract(spec, dtype=kind)
    known = ((path, shape, kind, _first_values(parts, infos, kind)) for path, shape, parts in _parameters(model, spec))
    return fingerprint(type(model).__name__, known)


def _first_values(parts: list[Row], infos: Mapping[str, headers.TensorInfo], kind: str) -> np.ndarray:
    """The first values of a parameter as a model of this dtype has them."""
    first: list[Any] = []
    for row in parts:
        first += list(row.tunix_view(reading.mapped(infos[row.hf])).flat[: FIRST - len(first)])
    return np.array(first).astype(reading.DTYPES[_KINDS[kind]])


_KINDS = {np.dtype(value).name: key for key, value in reading.DTYPES.items()}


def _parameters(model: nnx.Module, spec: ModelSpec) -> Iterator[tuple[Any, tuple[int, ...], list[Row]]]:
    """Path, shape and rows of each parameter, in NNX's order."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    shapes = {".".join(map(str, path)): tuple(variable.get_value().shape) for path, variable in flat}
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows(spec, shapes):
        parts[row.tunix].append(row)
    for path, variable in flat:
        found = sorted(parts[".".join(map(str, path))], key=lambda row: row.part or 0)
        yield path, tuple(variable.get_value().shape), found
