"""The training step as the rehearsal compiles it: the trainer's own update, on a model without weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit import compat, lora, models
from labkit import mesh as meshes
from labkit.data.batch import Batch
from labkit.rehearse.program import Program
from labkit.sft.recipe import Recipe
from labkit.sft.trainer import check_rows, gradient, optimizer, schedule

LORA_FLOPS = 4  # a frozen weight: forward and the gradient of its input, two FLOPs a multiply-add each
FULL_FLOPS = 6  # and the gradient of the weight


def lora_sft(
    mesh: Mesh, *, model: str, seq: int, batch: int, layers: Sequence[int] | None = None, **options: Any
) -> Program:
    """One LoRA update; `options` are fields of `Recipe` (rank, alpha, targets, remat, accumulation, loss_chunk...).

    `layers` cuts the model, as `ModelSpec.cut` does: (6,) are its first six, (2, 1) two local ones and a global one.
    """
    return _program(mesh, Recipe(**_settings(model, seq, batch, options)), layers)


def full_sft(
    mesh: Mesh, *, model: str, seq: int, batch: int, layers: Sequence[int] | None = None, **options: Any
) -> Program:
    """One update of all weights."""
    return _program(mesh, Recipe(**_settings(model, seq, batch, options | {"tuning": "full"})), layers)


def _settings(model: str, seq: int, batch: int, options: dict[str, Any]) -> dict[str, Any]:
    usual = {"dtype": "bfloat16", "remat": "decoder"}
    return usual | options | {"model": model, "seq_len": seq, "batch_size": batch}


def _program(mesh: Mesh, recipe: Recipe, layers: Sequence[int] | None = None) -> Program:
    compat.shard_for_topology()
    model = abstract(recipe, mesh, layers)
    trained = nnx.LoRAParam if recipe.tuning == "lora" else nnx.Param
    tx = optimizer(recipe, schedule(recipe))
    graph, weights, rest = nnx.split(model, trained, ...)
    moments = _sharded_like(jax.eval_shape(tx.init, weights), weights, mesh)

    def step(weights: Any, moments: Any, rest: Any, batch: Batch) -> Any:
        total, grads = gradient(nnx.merge(graph, weights, rest), batch, recipe, trained)
        updates, moments = tx.update(grads, moments, weights)
        norm = optax.global_norm(grads)
        return optax.apply_updates(weights, updates), moments, (total, norm)

    size = sum(math.prod(x.shape) for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    tokens = recipe.batch_size * recipe.seq_len
    flops = tokens * size * (LORA_FLOPS if recipe.tuning == "lora" else FULL_FLOPS)
    return Program(step, (weights, moments, rest, batch_of(recipe, mesh)), (0, 1), tokens, flops)


def abstract(recipe: Recipe, mesh: Mesh, layers: Sequence[int] | None = None) -> nnx.Module:
    """The model of a recipe as shapes with shardings on the mesh: with adapters, and remat set."""
    whole = models.get(recipe.model)
    spec = whole.cut(*layers) if layers else whole
    model = models.abstract(spec, dtype=jnp.dtype(recipe.dtype or "float32"))
    if recipe.tuning == "lora":
        qlora = cast(Any, recipe.qlora)
        model = lora.inject_abstract(model, recipe.rank, recipe.alpha, recipe.targets, qlora=qlora)
    lora.set_remat(model, recipe.remat)
    return meshes.shard_model(model, mesh)


def batch_of(recipe: Recipe, mesh: Mesh) -> Batch:
    """A batch as shapes, its rows over the mesh's row axes."""
    check_rows(mesh, recipe)
    rows = NamedSharding(mesh, P(meshes.row_axes(mesh), None))

    def array(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((recipe.batch_size, recipe.seq_len), dtype, sharding=rows)

    return Batch(
        tokens=array(jnp.int32), loss_mask=array(jnp.bool_), positions=array(jnp.int32), segment_ids=array(jnp.int32)
    )


def _sharded_like(moments: Any, weights: nnx.State, mesh: Mesh) -> Any:
    """Optimizer state as shapes: what has a weight's place in the tree is sharded as that weight, counters are not."""
    shardings = {".".join(map(str, path)): v.get_value().sharding for path, v in nnx.to_flat_state(weights)}
    everywhere = NamedSharding(mesh, P())

    def place(path: Any, leaf: Any) -> Any:
        names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        written = ".".join(names)
        own = [s for name, s in shardings.items() if name in written]
        return _with_sharding(leaf, own[0] if own else everywhere)

    return jax.tree_util.tree_map_with_path(place, moments)


def _with_sharding(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
