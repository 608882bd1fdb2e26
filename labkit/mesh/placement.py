"""Models, optimizer states and batches on a mesh, and a check that they are really where they should be."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit.errors import LabError
from labkit.mesh import rules as dimension_rules
from labkit.models import loading, sharding
from labkit.models.states import Param
from labkit.records import Record

# A MeshPlan; or the mesh axis of logical dimensions ({"kv_heads": None}, see rules.py); or the mesh axes of parameters
# by path or pattern ({"*.k_einsum.w": (None, "fsdp", None)}).
Rules = Any


def load(
    name_or_directory: str | Path,
    mesh: Mesh,
    plan_or_rules: Rules = None,
    *,
    dtype: Any = None,
    on_indivisible: Literal["error", "replicate"] = "error",
) -> loading.Loaded:
    """A model straight from its files to its devices; no host holds more than one tensor beside the result.

    Arguments as in `shard_model`; the errors are its and those of `labkit.models.load`.
    """

    def place(model: nnx.Module) -> Mapping[str, NamedSharding]:
        return sharding.partition(model, mesh, specs_of(model, plan_or_rules), on_indivisible)

    return loading.load(name_or_directory, dtype=dtype, place=place)


def shard_model(
    model: nnx.Module,
    mesh: Mesh,
    plan_or_rules: Rules = None,
    *,
    on_indivisible: Literal["error", "replicate"] = "error",
) -> nnx.Module:
    """Place the parameters of `model` on a mesh, in place; returns it.

    Args:
        model: of Tunix, with or without adapters. One without weights (`labkit.models.abstract`) gets the shardings
            alone, ready to be compiled for.
        mesh: of `make_mesh`.
        plan_or_rules: a `MeshPlan`; or changes of the family's rules, the mesh axis of all dimensions of a name, such
            as `{"kv_heads": None}`; or the mesh axes of single parameters by path or pattern, such as
            `{"*.k_einsum.w": (None, "fsdp", None)}`. None, and whatever it leaves out, is the model's own sharding
            over `fsdp` and `tp`. Adapters follow the weights that they are injected into: place a model first.
        on_indivisible: "replicate" leaves a dimension that does not divide whole on each device, and warns.

    Raises:
        LabError: a dimension that does not divide (naming array, axis and sizes), a rule that meets no parameter.
    """
    wanted = sharding.partition(model, mesh, specs_of(model, plan_or_rules), on_indivisible)
    for path, variable in sharding.variables(model).items():
        variable.set_value(_placed(variable.get_value(), wanted[path]))
    return model


def specs_of(model: nnx.Module, rules: Rules) -> dict[str, tuple[Any, ...]]:
    """The mesh axes of each parameter that a plan or rules speak of, by path."""
    rules = _mapping(rules, list(sharding.variables(model)))
    if rules and all(axis is None or isinstance(axis, str) for axis in rules.values()):
        return _by_dimension(model, rules)
    paths = list(sharding.variables(model))
    found: dict[str, tuple[Any, ...]] = {}
    for pattern, axes in rules.items():
        met = [path for path in paths if path == pattern or fnmatch.fnmatchcase(path, pattern)]
        if not met:
            raise LabError(f"No parameter of the model is {pattern!r}.", hint="Is the plan for another model?")
        found |= dict.fromkeys(met, tuple(axes))
    return found


def _by_dimension(model: nnx.Module, changes: Mapping[str, str | None]) -> dict[str, tuple[Any, ...]]:
    axes = dimension_rules.rules_of(type(model).__name__.lower(), changes)
    found = {}
    for path, variable in sharding.variables(model).items():
        if not isinstance(variable, nnx.LoRAParam):
            param = Param(path, tuple(variable.get_value().shape), str(variable.get_value().dtype), ())
            found[path] = tuple(axes.get(name) for name in dimension_rules.dimensions(param))
    return found


def optimizer(model: nnx.Module, transform: optax.GradientTransformation, mesh: Mesh, wrt: Any = nnx.Param) -> Any:
    """An `nnx.Optimizer` whose states are created sharded: moments like their parameters, counters on every device.

    Optax makes its zeros from nothing, so a plain `jax.jit` of its `init` puts them whole on one device or on all.
    """

    @nnx.jit
    def create(model: nnx.Module) -> nnx.Optimizer:
        made = nnx.Optimizer(model, transform, wrt=wrt)
        state = nnx.state(made)
        nnx.update(made, jax.lax.with_sharding_constraint(state, nnx.get_named_sharding(state, mesh)))
        return made

    return create(model)


def row_axes(mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes that the rows of a batch go over."""
    return tuple(name for name in mesh.axis_names if name in ("dp", "fsdp"))


def data_shard(mesh: Mesh) -> tuple[int, int]:
    """Which part of each batch this process feeds: (index, count), as `labkit.data.pipeline(shard=...)` takes it.

    Processes whose devices hold the same rows feed the same part.
    """
    places = np.indices(mesh.devices.shape)
    rows = np.zeros(mesh.devices.shape, int)
    for name in row_axes(mesh):
        rows = rows * mesh.shape[name] + places[mesh.axis_names.index(name)]
    owner = np.vectorize(lambda device: device.process_index)(mesh.devices)
    blocks = [tuple(sorted(set(rows[owner == process].tolist()))) for process in range(jax.process_count())]
    distinct = sorted(set(blocks))
    if sum(map(len, distinct)) != len(set(itertools.chain(*distinct))):
        raise LabError(
            f"The rows that the processes' devices hold overlap in part: {distinct}.",
            hint="Order the axes so that each process holds whole rows of the mesh.",
        )
    return distinct.index(blocks[jax.process_index()]), len(distinct)


def _placed(value: Any, target: NamedSharding) -> Any:
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=target)
    if target.is_fully_addressable or not value.is_fully_addressable:
        return jax.device_put(value, target)
    # Each process has the whole value and hands its devices their parts of it.
    return jax.make_array_from_callback(value.shape, target, lambda index: np.asarray(value[index]))


@dataclass(frozen=True)
class Misplaced(Record):
    """An array that is not where it should be. `expected` and `found` are mesh axes by dimension, in words."""

    path: str
    shape: tuple[int, ...]
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path} {self.shape} should be {self.expected}, but is {self.found}"


@dataclass(frozen=True)
class Placement(Record):
    """Where the arrays of a tree are, against where they should be."""

    arrays: int
    sharded: int
    misplaced: tuple[Misplaced, ...]

    def __str__(self) -> str:
        return ". ".join(
            [f"{self.arrays} arrays, {self.sharded} sharded, {len(self.misplaced)} misplaced", *self.worst]
        )

    @property
    def worst(self) -> list[str]:
        """The first few that are misplaced, in words."""
        more = len(self.misplaced) - 4
        return [*map(str, self.misplaced[:4]), *([f"and {more} more"] if more > 0 else [])]


def check_sharding(tree: Any, plan_or_rules: Rules = None) -> Placement:
    """Compare where the arrays of a model, an optimizer or any tree are with a plan, rules, or a sharded model.

    An array of an optimizer state belongs to the parameter that its path ends with. What the plan does not name is
    expected as its own metadata says; scalars may be anywhere.
    """
    rules = _expected_of(plan_or_rules)
    arrays = {path: (value, own) for path, value, own in _leaves(tree) if value.ndim}
    rows = [_misplaced(path, value, _axes_for(path, rules, own)) for path, (value, own) in arrays.items()]
    split = sum(not value.sharding.is_fully_replicated for value, _ in arrays.values())
    return Placement(len(arrays), split, tuple(row for row in rows if row is not None))


def assert_sharded_like(tree: Any, plan_or_rules: Rules = None) -> Placement:
    """A `LabError` that names the arrays of `tree` that ended up replicated, on one device, or sharded otherwise.

    Args as in `check_sharding`, whose record it returns when all is well.
    """
    found = check_sharding(tree, plan_or_rules)
    if not found.arrays:
        raise LabError("There is no array in this tree.", hint="Give a model, an optimizer or a state.")
    if found.misplaced:
        raise LabError(
            f"{len(found.misplaced)} of {found.arrays} arrays are not sharded as planned: {'; '.join(found.worst)}.",
            hint="Place the model by shard_model, and make optimizer states by mesh.optimizer.",
        )
    return found


def _expected_of(plan_or_rules: Rules) -> Mapping[str, Sequence[Any]]:
    if isinstance(plan_or_rules, nnx.Module):
        return {path: sharding.axes_of(v) for path, v in sharding.variables(plan_or_rules).items()}
    return _mapping(plan_or_rules)


def _mapping(plan_or_rules: Rules, paths: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Rules as they are; of a plan its specs, those of adapters only for adapters among the paths (None: all)."""
    if not hasattr(plan_or_rules, "specs"):
        return plan_or_rules or {}
    adapters = {k: v for k, v in plan_or_rules.adapter_specs.items() if paths is None or k in paths}
    return plan_or_rules.specs | adapters


def _leaves(tree: Any) -> list[tuple[str, jax.Array, tuple[Any, ...] | None]]:
    """Path, array and the axes of its metadata (None without any) of each leaf."""
    if isinstance(tree, nnx.Module | nnx.Optimizer):
        tree = nnx.state(tree)
    found = []
    flat = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, nnx.Variable))[0]
    for path, leaf in flat:
        own = None
        if isinstance(leaf, nnx.Variable):
            own = sharding.axes_of(leaf) if leaf.get_metadata().get("out_sharding") is not None else None
            leaf = leaf.get_value()
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            found.append((jax.tree_util.keystr(path, simple=True, separator="."), leaf, own))
    return found


def _axes_for(path: str, rules: Mapping[str, Sequence[Any]], own: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    for pattern, axes in rules.items():
        if path == pattern or path.endswith("." + pattern) or fnmatch.fnmatchcase(path, pattern):
            return tuple(axes)
    return own


def _misplaced(path: str, value: Any, axes: tuple[Any, ...] | None) -> Misplaced | None:
    if axes is None:
        return None
    wanted = "replicated" if not any(axes) else str(P(*axes))
    real = value.sharding
    if not isinstance(real, NamedSharding):
        fault = "on one device" if real is None or len(real.device_set) == 1 else str(real)
        return Misplaced(path, value.shape, wanted, fault)
    known = all(name in real.mesh.shape for name in jax.tree.leaves(axes))
    if known and real.is_equivalent_to(NamedSharding(real.mesh, P(*axes)), value.ndim):
        return None
    found = "replicated" if real.is_fully_replicated else str(real.spec)
    return Misplaced(path, value.shape, wanted, found)
