"""Open whatever a user names as the source of a conversion."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from etils import epath
from flax import nnx

from labkit import models
from labkit.convert import adapters as pairing
from labkit.convert import formats, orbax_files, peft, runs
from labkit.convert.adapters import Adapters
from labkit.convert.folders import PROVENANCE, TOKENIZER
from labkit.convert.sources import Source, of_model, refuse_other_base
from labkit.convert.tensors import of_file, of_rows
from labkit.errors import LabError
from labkit.models import checkpoints, hub
from labkit.models.layout import rows
from labkit.models.loading import Loaded
from labkit.models.spec import ModelSpec

Given: TypeAlias = "str | Path | Loaded | nnx.Module"
_WEIGHTS = ("params", "model_params", "adapters", "")  # names of Orbax items with weights
ADAPTER = ("_lora_a", "_lora_b")


def open_source(
    source: Given,
    *,
    spec: ModelSpec | None = None,
    base: str | Path | None = None,
    allow_other_base: bool = False,
) -> Source:
    """What is at `source`, without loading it.

    Args:
        source: a live model (with `spec`), what `labkit.models.load` gave, a registry name, a Hugging Face or PEFT
            directory, an Orbax checkpoint, or the folder of a `labkit sft` or `labkit run`.
        spec: of a live model.
        base: of adapters that stand alone; None is the one that they name.
        allow_other_base: take adapters that say they were trained on other weights.
    """
    if isinstance(source, Loaded):
        return of_model(source.model, source.spec, source.directory)
    if isinstance(source, nnx.Module):
        if spec is None:
            raise LabError("A live model needs its spec.", hint="Give spec=, or what labkit.models.load returned.")
        return of_model(source, spec)
    kind = formats.kind_of(source)
    if kind == "peft":
        return _peft(Path(source), base, allow_other_base)
    if kind == "orbax":
        return _orbax(str(source), base, allow_other_base)
    return of_directory(source)


def of_directory(name_or_directory: str | Path) -> Source:
    """A Hugging Face directory, or a registry model by name."""
    directory, known = hub.locate(name_or_directory)
    spec = models.spec_from_config(directory)
    if known is not None:
        spec = dataclasses.replace(spec, **{k: getattr(known, k) for k in ("name", "hub_id", "licence", "gated")})
    found = checkpoints.check(directory, spec)
    tensors = {name: of_file(name, found[name]) for name in checkpoints.tensor_shapes(spec)}
    return Source(spec, tensors, files=directory, about=_hashes(directory))


def _peft(directory: Path, base: str | Path | None, allow_other_base: bool) -> Source:
    named = base or peft.read_config(directory).get("base_model_name_or_path")
    if not named:
        raise LabError(f"{directory} names no base model.", hint="Give it: base=, or --base on the command line.")
    under = of_directory(named)
    adapters = peft.read(directory, under.spec)
    pairing.check(adapters.pairs, {pairing.module(row): row for row in pairing.linears(under.spec)})
    if not allow_other_base:
        refuse_other_base(str(directory), adapters, under.tensors)
    return dataclasses.replace(under, adapters=adapters)


def _orbax(path: str, base: str | Path | None, allow_other_base: bool) -> Source:
    items = orbax_files.items(path)
    item = weights_item(items, path)
    run = about(path)
    names = [name for name in orbax_files.leaves(item) if not name.endswith(ADAPTER)]
    low = adapter_leaves(items, item)
    named = base or run.get("base")
    if names:
        under = _orbax_weights(path, item, names, named)
    elif named:
        under = of_directory(named)
    else:
        raise LabError(f"{path} holds adapters alone and names no base.", hint="Give it: base=, --base.")
    if not low:
        return under
    adapters = _orbax_adapters(path, low, run, under.spec)
    if not (names or allow_other_base):
        refuse_other_base(path, adapters, under.tensors)
        assert under.files is not None
        runs.refuse_other_base(path, run, under.files, under.spec)
    return dataclasses.replace(under, adapters=adapters)


def weights_item(items: Mapping[str, epath.Path], path: str) -> epath.Path:
    """The item of a checkpoint that holds the model."""
    for name in _WEIGHTS:
        if name in items:
            return items[name]
    raise LabError(f"{path} has no item of weights, but {', '.join(sorted(items))}.", hint="Give a model's checkpoint.")


def adapter_leaves(items: Mapping[str, epath.Path], item: epath.Path) -> dict[str, epath.Path]:
    """Where each adapter array is, by name."""
    places = [items["adapters"]] if "adapters" in items else [item]
    return {name: place for place in places for name in orbax_files.leaves(place) if name.endswith(ADAPTER)}


def _orbax_weights(path: str, item: epath.Path, names: list[str], named: str | Path | None) -> Source:
    spec, files = spec_of(path, named)
    known = orbax_files.leaves(item)
    shapes = {name: known[name].shape for name in names}
    table = rows(spec, shapes)
    order = list(dict.fromkeys(row.tunix for row in table))
    reader = orbax_files.Reader(item, order, digests=_digests(about(path), item))
    return Source(spec, of_rows(table, {n: known[n].dtype for n in names}, reader), shapes=shapes, files=files)


def spec_of(path: str, named: str | Path | None) -> tuple[ModelSpec, Path]:
    """From the configuration beside the checkpoint, else that of the model named; and the directory that has it."""
    run = about(path)
    for place in _around(path):
        if run.get("model") and (place / PROVENANCE).exists() and (place / "config.json").exists():
            local = local_copy(place)
            return dataclasses.replace(models.spec_from_config(local), name=run["model"]), local
    if not named:
        raise LabError(f"{path} does not say of which model it is.", hint="Give the model: base=, --base.")
    directory, known = hub.locate(named)
    return known or models.spec_from_config(directory), directory


def _orbax_adapters(path: str, leaves: Mapping[str, epath.Path], run: Mapping[str, Any], spec: ModelSpec) -> Adapters:
    if "rank" not in run:
        raise LabError(f"{path} has adapters, but says neither rank nor alpha.", hint="Convert the run's own folder.")
    item = next(iter(leaves.values()))
    arrays = orbax_files.Reader(item, list(leaves), digests=_digests(run, item)).read(leaves)
    return pairing.of_arrays(arrays, spec, run["rank"], run["alpha"], base=run.get("base_fingerprint"))


def about(path: str | Path) -> dict[str, Any]:
    """What labkit wrote beside an Orbax checkpoint: model, base, rank, alpha; empty where it did not make it."""
    for place in _around(path):
        if (place / PROVENANCE).exists():
            found = _json(place / PROVENANCE)
            if found.get("kind") == "orbax":
                kept = {key: found.get(key) for key in ("model", "base_fingerprint", "arrays_xxh3_128")}
                return kept | (found.get("adapter") or {})
        for name in runs.FILES:
            if (place / name).exists():
                return runs.about(_json(place / name))
    return {}


def _around(path: str | Path) -> list[epath.Path]:
    """A folder and those that it is in, as far up as labkit's own go."""
    folder = epath.Path(path)
    return [folder, *list(folder.parents)[:3]]


def _digests(run: Mapping[str, Any], item: epath.Path) -> dict[str, str]:
    """Those that `to_orbax` noted of an item's arrays."""
    return (run.get("arrays_xxh3_128") or {}).get(item.name, {})


def local_copy(folder: epath.Path) -> Path:
    """The configuration and tokenizer of a folder as a local directory, which goes with the process if it is a copy."""
    if not str(folder).startswith(formats.REMOTE):
        return Path(folder)
    target = Path(tempfile.mkdtemp(prefix="labkit."))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for name in ("config.json", "generation_config.json", *TOKENIZER):
        if (folder / name).exists():
            (target / name).write_bytes((folder / name).read_bytes())
    return target


def _json(path: epath.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be read: {error}.", hint="Copy the folder again.") from error
    return found if isinstance(found, dict) else {}


def _hashes(directory: Path) -> dict[str, Any]:
    """Name and the SHA-256 of each file of weights: those that the Hub shows."""
    weights = sorted({info.file for info in checkpoints.read_headers(directory).values()})
    with ThreadPoolExecutor() as pool:
        hashes = dict(zip((path.name for path in weights), pool.map(_sha256, weights), strict=True))
    return {"directory": directory.resolve().name} | hashes


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
