"""Models as Orbax checkpoints: base, adapters and optimizer as items of their own, saved on one mesh for any other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from flax import nnx
from jax.experimental import multihost_utils

from labkit import lora
from labkit.convert import formats, orbax_files, shards
from labkit.convert.beside import Beside
from labkit.convert.folders import PROVENANCE, new_folder, provenance, to_json
from labkit.convert.loading import load
from labkit.convert.opening import Given, about
from labkit.convert.result import Conversion
from labkit.convert.sources import of_model
from labkit.errors import LabError
from labkit.models.loading import Loaded
from labkit.models.spec import ModelSpec

STATE = "state"  # the folder of Orbax' own below `out`
_CHUNK = 2**26  # bytes of a stored chunk: what a reader has to hold beside the array that it reads


def to_orbax(
    source: Given,
    out: str | Path,
    *,
    spec: ModelSpec | None = None,
    base: str | Path | None = None,
    optimizer: nnx.Optimizer | None = None,
    files: str | Path | None = None,
    allow_nonfinite: bool = False,
    allow_other_base: bool = False,
) -> Conversion:
    """Write a model as an Orbax checkpoint that `from_orbax` restores on any mesh, and `to_hf` reads array by array.

    Of several processes all call it, with one shared `out`. Below `out`: `state/params`, `state/adapters` where there
    are some (unmerged), `state/optimizer`; beside them configuration, tokenizer and provenance, which comes last.

    Args:
        source: as in `to_hf`; a sharded live model stays where it is.
        out: a new folder, or an earlier checkpoint of this model; `gs://bucket/folder` too.
        spec: of a live model.
        base: of adapters that stand alone; None is the one that they name.
        optimizer: whose state is saved too.
        files: directory with configuration and tokenizer; None is the source's.
        allow_nonfinite: write weights that are NaN or infinite.
        allow_other_base: take adapters that say they were trained on other weights.

    Raises:
        LabError: as in `to_hf`.
    """
    begun = time.monotonic()
    loaded, known = _live(source, spec, base, allow_other_base)
    trees = _items(loaded.model, optimizer)
    if not allow_nonfinite:
        _refuse_nonfinite(trees)
    beside = Beside(Path(files) if files is not None else known, Path(out))
    said = _about(loaded) | {"arrays_xxh3_128": _digests(trees)}
    if jax.process_count() == 1 and not str(out).startswith(formats.REMOTE):
        with new_folder(out, "orbax", loaded.spec.name) as folder:
            _save(epath.Path(folder) / STATE, trees)
            _write_beside(epath.Path(folder), beside, loaded, said)
    else:
        _save_shared(epath.Path(out), beside, loaded, said, trees)
    arrays = [x for tree in trees.values() for x in jax.tree.leaves(tree)]
    return Conversion.finished(out, [x.nbytes for x in arrays], begun)


def _live(
    source: Given, spec: ModelSpec | None, base: str | Path | None, allow_other_base: bool
) -> tuple[Loaded, Path | None]:
    """The live model, and the directory with its configuration, if any."""
    if isinstance(source, Loaded):
        return source, source.directory
    if isinstance(source, nnx.Module):
        if spec is None:
            raise LabError("A live model needs its spec.", hint="Give spec=, or what labkit.models.load returned.")
        return Loaded(source, None, spec, Path()), None
    loaded = load(source, base=base, allow_other_base=allow_other_base)
    return loaded, loaded.directory


def _items(model: nnx.Module, optimizer: nnx.Optimizer | None) -> dict[str, Any]:
    adapted = lora.is_injected(model)
    plain = lora.split(model)[0] if adapted else model
    states = {"params": nnx.state(plain, nnx.Param)}
    if adapted:
        states["adapters"] = lora.state(model)
    if optimizer is not None:
        states["optimizer"] = nnx.state(optimizer, nnx.optimizer.OptState)
    return {name: _named(nnx.to_pure_dict(state)) for name, state in states.items()}


def _named(tree: Any) -> Any:
    """Every key as a string, which is what Orbax gives back."""
    return {str(key): _named(value) for key, value in tree.items()} if isinstance(tree, dict) else tree


def _refuse_nonfinite(trees: Mapping[str, Any]) -> None:
    for tree in trees.values():
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if jnp.issubdtype(value.dtype, jnp.floating):
                name = ".".join(str(key.key) for key in path)
                shards.refuse_nonfinite(name, int(jnp.sum(~jnp.isfinite(value))), value.size, value.dtype)


def _about(loaded: Loaded) -> dict[str, Any]:
    if not lora.is_injected(loaded.model):
        return {}
    found = lora.settings(loaded.model)
    adapter = {"rank": found.rank, "alpha": found.alpha, "targets": found.targets}
    local = all(x.is_fully_addressable for x in jax.tree.leaves(nnx.state(loaded.model)))
    adapters = of_model(loaded.model, loaded.spec).adapters if local else None
    return {"adapter": adapter, "base_fingerprint": adapters.base if adapters else None}


def _digests(trees: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By item and name; none of arrays that other processes hold parts of."""
    found: dict[str, dict[str, str]] = {}
    for item, tree in trees.items():
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        named = {".".join(str(key.key) for key in path): value for path, value in flat}
        found[item] = {name: orbax_files.digest(x) for name, x in named.items() if x.is_fully_addressable}
    return found


def _save(folder: epath.Path, trees: Mapping[str, Any]) -> None:
    """Orbax's own atomic write, and a comparison of what is there then with what was meant."""
    args = {
        name: ocp.args.PyTreeSave(tree, save_args=jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK), tree))
        for name, tree in trees.items()
    }
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.Composite(**args), force=True)
    for name, tree in trees.items():
        _compare(folder / name, tree)


def _compare(item: epath.Path, tree: Any) -> None:
    leaves = orbax_files.leaves(item)
    meant = {leaf.name: orbax_files.at(tree, leaf.keys) for leaf in leaves.values()}
    if len(meant) != len(jax.tree.leaves(tree)):
        raise LabError(f"{item} holds {len(meant)} arrays of {len(jax.tree.leaves(tree))}.", hint="Check the disk.")
    reader = orbax_files.Reader(item, list(meant), places={name: value.sharding for name, value in meant.items()})
    for name, value in meant.items():
        if not bool(_same(reader(name), value)):
            raise LabError(f"{name} of {item} is not what was written.", hint="Check the disk.")


@jax.jit
def _same(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.array_equal(a, b, equal_nan=jnp.issubdtype(a.dtype, jnp.floating))


def _write_beside(folder: epath.Path, beside: Beside, loaded: Loaded, said: dict[str, Any]) -> None:
    """Configuration and tokenizer, then the provenance: a folder without it was never finished."""
    dtype = jax.tree.leaves(nnx.state(loaded.model, nnx.Param))[0].dtype.name
    with tempfile.TemporaryDirectory() as made:
        beside.write(Path(made), loaded.spec, dtype, None if beside.directory else loaded.tokenizer)
        for path in Path(made).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / PROVENANCE).write_text(to_json(provenance("orbax", loaded.spec.name, said)))


def _save_shared(
    out: epath.Path, beside: Beside, loaded: Loaded, said: dict[str, Any], trees: Mapping[str, Any]
) -> None:
    """Where a folder cannot be renamed, or several processes write: the old one goes first, provenance last."""
    error = _clear(out, loaded.spec.name) if jax.process_index() == 0 else None
    if jax.process_count() > 1 and bool(multihost_utils.broadcast_one_to_all(jnp.int32(error is not None))):
        raise error or LabError(f"Process 0 could not take {out}.", hint="Its own message says why.")
    if error is not None:
        raise error
    _save(out / STATE, trees)
    if jax.process_index() == 0:
        _write_beside(out, beside, loaded, said)
    multihost_utils.sync_global_devices("labkit.convert.to_orbax")


def _clear(out: epath.Path, model: str) -> LabError | None:
    """Take an earlier checkpoint of the model away; the error where something else is there."""
    if not out.exists() or not any(out.iterdir()):
        return None
    if about(str(out)).get("model") != model:
        return LabError(
            f"{out} is there already and is no earlier checkpoint of {model}.", hint="Choose another folder."
        )
    (out / PROVENANCE).unlink()
    out.rmtree()
    return None
