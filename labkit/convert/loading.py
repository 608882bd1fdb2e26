"""Live models from any checkpoint: Hugging Face, PEFT over a base, Orbax saved on any mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from etils import epath
from flax import nnx
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from labkit import lora, models
from labkit.convert import adapters as pairing
from labkit.convert import formats, opening, orbax_files, runs
from labkit.convert.peft import from_peft, read_config
from labkit.errors import LabError
from labkit.models import building, sharding
from labkit.models.loading import Loaded, tokenizer_of
from labkit.models.spec import ModelSpec

Place = Callable[[nnx.Module], Mapping[str, Sharding]]


def load(
    path: str | Path,
    *,
    base: str | Path | None = None,
    mesh: Mesh | None = None,
    dtype: Any = None,
    allow_other_base: bool = False,
) -> Loaded:
    """A live model from a Hugging Face or PEFT directory, an Orbax checkpoint, a run's folder, or a registry name.

    Adapters are on the model unmerged. `base` is for adapters that stand alone; None is the one that they name.
    """
    kind = formats.kind_of(path)
    if kind == "orbax":
        return from_orbax(path, base=base, mesh=mesh, dtype=dtype, allow_other_base=allow_other_base)
    if kind != "peft":
        return models.load(path, mesh=mesh, dtype=dtype)
    named = base or read_config(path).get("base_model_name_or_path")
    if not named:
        raise LabError(f"{path} names no base model.", hint="Give it: base=, or --base on the command line.")
    under = models.load(named, mesh=mesh, dtype=dtype)
    model, _ = from_peft(path, under.model, under.spec, allow_other_base=allow_other_base)
    return dataclasses.replace(under, model=model)


def from_orbax(
    path: str | Path,
    *,
    base: str | Path | None = None,
    mesh: Mesh | None = None,
    dtype: Any = None,
    place: Place | None = None,
    allow_other_base: bool = False,
) -> Loaded:
    """The model of an Orbax checkpoint, its adapters unmerged; each device reads its own part alone.

    The mesh on which it was saved does not matter.

    Args:
        path: what `to_orbax` wrote, a run's folder, a step's folder, or one item of arrays; `gs://` too.
        base: of which model it is, where the checkpoint does not say.
        mesh: where the weights go, by the model's own sharding; None is one device.
        dtype: of the weights; None keeps the checkpoint's.
        place: where the weights go instead: given the model without weights, the sharding of each parameter by path.
        allow_other_base: put a run's adapters on a base that has other weights now.

    Raises:
        LabError: no complete checkpoint, arrays that are not those of the model, no word of which model it is.
    """
    items = orbax_files.items(str(path))
    item = opening.weights_item(items, str(path))
    known = orbax_files.leaves(item)
    weights = {name: leaf for name, leaf in known.items() if not name.endswith(opening.ADAPTER)}
    run = opening.about(str(path))
    if weights:
        spec, files = opening.spec_of(str(path), base or run.get("base"))
        loaded = _loaded(_restored(item, weights, spec, dtype, place or _by(mesh)), spec, files)
    else:
        loaded = models.load(_named(path, base or run.get("base")), mesh=mesh, dtype=dtype, place=place)
        if not allow_other_base:
            runs.refuse_other_base(str(path), run, loaded.directory, loaded.spec)
    low = opening.adapter_leaves(items, item)
    return dataclasses.replace(loaded, model=_adapted(loaded.model, run, low, str(path))) if low else loaded


def restore_optimizer(path: str | Path, optimizer: nnx.Optimizer) -> None:
    """Put the optimizer state of an Orbax checkpoint into `optimizer`, in the shardings that it has now."""
    items = orbax_files.items(str(path))
    item = items.get("optimizer") or items.get("optimizer_state")
    if item is None:
        raise LabError(f"{path} holds no optimizer state.", hint="Save it with to_orbax(..., optimizer=...).")
    state = nnx.state(optimizer, nnx.optimizer.OptState)
    wanted = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), nnx.to_pure_dict(state)
    )
    nnx.replace_by_pure_dict(state, orbax_files.restore(item, wanted))
    nnx.update(optimizer, state)


def _named(path: Any, base: str | Path | None) -> str | Path:
    if base is None:
        raise LabError(f"{path} holds adapters alone and names no base.", hint="Give it: base=, --base.")
    return base


def _loaded(model: nnx.Module, spec: ModelSpec, files: Path | None) -> Loaded:
    has = files is not None and any((files / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    return Loaded(model, tokenizer_of(files) if has and files else None, spec, files or Path())


def _restored(
    item: epath.Path, leaves: Mapping[str, orbax_files.Leaf], spec: ModelSpec, dtype: Any, place: Place
) -> nnx.Module:
    """The model of the spec with the weights of an item, in the dtype that each has there or in the one given."""
    model = building.abstract(spec, dtype=dtype or next(iter(leaves.values())).dtype)
    places = place(model)
    _check(item, leaves, {path: tuple(x.get_value().shape) for path, x in sharding.variables(model).items()}, spec.name)
    wanted = orbax_files.tree(
        leaves.values(),
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype, sharding=places[leaf.name]),
    )
    found = orbax_files.restore(item, wanted)
    for path, variable in sharding.variables(model).items():
        variable.set_value(orbax_files.at(found, leaves[path].keys))
    return model


def _by(mesh: Mesh | None) -> Place:
    """By the model's own sharding on a mesh, or all on one device."""
    if mesh is not None:
        return lambda model: sharding.partition(model, mesh)
    here = SingleDeviceSharding(jax.local_devices()[0])
    return lambda model: dict.fromkeys(sharding.variables(model), here)


def _check(
    item: epath.Path, leaves: Mapping[str, orbax_files.Leaf], shapes: Mapping[str, tuple[int, ...]], whose: str
) -> None:
    """The item has to hold exactly the model's parameters."""
    for name in [*shapes, *leaves]:
        there = leaves[name].shape if name in leaves else "missing"
        if there != shapes.get(name):
            raise LabError(
                f"{name} of {item} is {there}; {whose} has {shapes.get(name, 'none of that name')}.",
                hint="Is the checkpoint of this model?",
            )


def _adapted(model: nnx.Module, run: Mapping[str, Any], low: Mapping[str, epath.Path], path: str) -> nnx.Module:
    """The model with the adapters of a checkpoint, each in the sharding that it has on this model."""
    if "rank" not in run:
        raise LabError(f"{path} has adapters, but says neither rank nor alpha.", hint="Load the run's own folder.")
    adapted, _ = lora.inject(model, run["rank"], float(run["alpha"]), run.get("targets") or "all")
    state = lora.state(adapted)
    item = next(iter(low.values()))
    known = {name: leaf for name, leaf in orbax_files.leaves(item).items() if name in low}
    now = pairing.flat(state)
    _check(item, known, {name: tuple(value.shape) for name, value in now.items()}, path)
    wanted = orbax_files.tree(
        known.values(),
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, now[leaf.name].dtype, sharding=now[leaf.name].sharding),
    )
    found = orbax_files.restore(item, wanted)
    flat = [
        (keys, variable.replace(orbax_files.at(found, known[".".join(map(str, keys))].keys)))
        for keys, variable in nnx.to_flat_state(state)
    ]
    nnx.update(adapted, nnx.from_flat_state(flat))
    return adapted
