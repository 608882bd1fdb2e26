"""One side of the tests of Orbax across meshes; each runs in a process of its own, with the devices that it is given.

python -m tests.convert_on_mesh save|restore WORK DEVICES AXES [PORT RANK]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import labkit
from labkit import convert, lora, mesh, models
from labkit.models import sharding
from tests.conversions import spec_of
from tests.tiny import random_tensors

RULES = {"layers.2.attn.k_einsum.w": (None, "fsdp", None)}  # its one KV head does not divide over tp


def place(axes: str):
    """The shardings of a model on a mesh of all devices, or on the one device."""
    if axes == "one":
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return lambda model: dict.fromkeys(sharding.variables(model), here)
    grid = mesh.make_mesh(axes)
    return lambda model: sharding.partition(model, grid, RULES)


def optimizer_of(model: nnx.Module) -> nnx.Optimizer:
    """AdamW on the adapters."""
    return nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.LoRAParam)


def fill(state: nnx.State, seed: int) -> None:
    """The same values on every mesh: they depend on place and shape alone."""
    for number, (_, variable) in enumerate(sorted(nnx.to_flat_state(state), key=lambda item: str(item[0]))):
        old = variable.get_value()
        new = np.random.default_rng([seed, number]).normal(size=old.shape).astype(old.dtype)
        variable.set_value(jax.make_array_from_callback(old.shape, old.sharding, lambda index, new=new: new[index]))


def whole(value: jax.Array) -> np.ndarray:
    """All of an array, also of one that other processes hold parts of."""
    if value.is_fully_addressable:
        return np.asarray(value)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def sums(model: nnx.Module, optimizer: nnx.Optimizer) -> dict[str, str]:
    """A digest of each array's bytes."""
    import hashlib

    states = {"params": nnx.state(model), "optimizer": nnx.state(optimizer, nnx.optimizer.OptState)}
    return {
        f"{kind}.{'.'.join(map(str, path))}": hashlib.sha256(whole(variable.get_value()).tobytes()).hexdigest()
        for kind, state in states.items()
        for path, variable in nnx.to_flat_state(state)
    }


def main() -> None:
    """Save or restore, and print what the arrays are."""
    verb, work, devices, axes, *rest = sys.argv[1:]
    if rest:
        mesh.initialize(f"127.0.0.1:{rest[0]}", 2, int(rest[1]), timeout=200)
    labkit.start(devices=int(devices))
    out = Path(work) / "checkpoint"
    if verb == "save":
        spec = spec_of("gemma4")
        model = made(models.abstract(spec), place(axes))
        model, _ = lora.inject(model, 3, 6.0)
        fill(lora.state(model), 1)
        optimizer = optimizer_of(model)
        states = nnx.state(optimizer, nnx.optimizer.OptState)
        nnx.update(optimizer, jax.tree.map(lambda x: x + jnp.asarray(3, x.dtype), states))
        convert.to_orbax(model, out, spec=spec, optimizer=optimizer, files=Path(work) / "source")
    else:
        loaded = convert.from_orbax(out, place=place(axes))
        model, optimizer = loaded.model, optimizer_of(loaded.model)
        convert.restore_optimizer(out, optimizer)
    kernel = model.layers[0].mlp.up_proj.kernel.get_value()
    shards = {tuple(shard.data.shape) for shard in kernel.addressable_shards}
    print(json.dumps({"sums": sums(model, optimizer), "shards": sorted(shards), "devices": jax.device_count()}))


def made(model: nnx.Module, where) -> nnx.Module:
    """The model with random weights on its mesh."""
    places = where(model)
    for number, (path, variable) in enumerate(sorted(sharding.variables(model).items())):
        old = variable.get_value()
        new = random_tensors({"x": old.shape}, number)["x"]
        variable.set_value(jax.make_array_from_callback(old.shape, places[path], lambda index, new=new: new[index]))
    return model


if __name__ == "__main__":
    main()
