"""What `labkit.mesh` promises of arrays. Runs where JAX has eight simulated devices: see test_mesh_devices.py."""

from __future__ import annotations

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit import lora, mesh, models, sft
from labkit.data.pipeline import Pipeline
from labkit.errors import LabError
from labkit.models import sharding
from labkit.sft import run
from labkit.widgets import who_holds_what
from tests.test_sft import SHAPE, samples
from tests.tiny import make_tiny_gemma4

# Four heads do not divide over tp here either: the global layer of the tiny model has one KV head.
RULES = {"*.k_einsum.w": (None, "fsdp", None)}
RECIPE = sft.Recipe(steps=3, batch_size=8, seq_len=16, save_every=9, warmup=0, learning_rate=1e-3, packing="pad")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_gemma4(tmp_path_factory.mktemp("tiny"), **SHAPE)


@pytest.fixture(scope="module")
def grid():
    return mesh.make_mesh("fsdp=4,tp=2")


@pytest.fixture(scope="module")
def sharded(directory, grid):
    return mesh.load(directory, grid, RULES).model


def values(model):
    return {path: np.asarray(variable[...]) for path, variable in nnx.to_flat_state(nnx.state(model))}


# Meshes


@pytest.mark.parametrize("axes", [{"fsdp": 4, "tp": 2}, [("fsdp", 4), ("tp", 2)], " fsdp=4, tp=2"])
def test_every_form_of_axes_makes_the_same_mesh(axes, grid):
    assert mesh.make_mesh(axes) == grid == mesh.make_mesh(SimpleNamespace(axes={"fsdp": 4, "tp": 2}))
    assert grid.axis_names == ("fsdp", "tp") and set(grid.axis_types) == {AxisType.Auto}
    assert set(mesh.make_mesh(axes, explicit=True).axis_types) == {AxisType.Explicit}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("fsdp=4,tp=4", r"fsdp 4 x tp 4 needs 16 devices, but JAX has started with 8 cpu.*start\(devices=16\)"),
        ("fsdp=2,tp=2", "needs 4 devices"),
        ("tp=4,tp=2", "'tp' is named twice"),
        ([("tp", 4), ("tp", 2)], "'tp' is named twice"),
        ("fsdp=8,tp=0", "size 0"),
        ("fsdp:8", "no mesh axis"),
        ({}, "at least one axis"),
    ],
)
def test_axes_that_make_no_mesh_say_why(axes, message):
    with pytest.raises(LabError, match=message):
        mesh.make_mesh(axes)


def test_some_devices_are_enough_if_they_are_given():
    assert mesh.make_mesh("tp=2", jax.devices()[:2]).size == 2
    with pytest.raises(LabError, match="3 places for 2"):
        mesh.make_mesh("tp=3", jax.devices()[:2])


# Models


def test_loading_by_shards_gives_the_same_values_in_the_right_places(directory, sharded, grid):
    whole = values(models.load(directory).model)
    found = values(sharded)
    assert found.keys() == whole.keys()
    assert all(np.array_equal(found[path], whole[path]) for path in whole)
    kernel = sharded.layers[0].mlp.up_proj.kernel[...]
    assert kernel.sharding.is_equivalent_to(NamedSharding(grid, P("fsdp", "tp")), 2)
    for part in kernel.addressable_shards:
        np.testing.assert_array_equal(part.data, whole[("layers", 0, "mlp", "up_proj", "kernel")][part.index])


def test_weights_do_not_follow_the_file(tmp_path, grid):
    """Nothing of the mapped file becomes a weight's memory."""
    file = make_tiny_gemma4(tmp_path, **SHAPE) / "model.safetensors"
    one, many = models.load(tmp_path).model, mesh.load(tmp_path, grid, RULES).model
    before = values(one)
    with file.open("r+b") as stream:
        stream.write(b"\0" * file.stat().st_size)
    for model in (one, many):
        assert all(np.array_equal(value, before[path]) for path, value in values(model).items())


def test_a_dtype_that_the_file_does_not_have_is_cast(directory, grid):
    half = mesh.load(directory, grid, RULES, dtype=jnp.bfloat16).model
    for path, value in values(models.load(directory).model).items():
        np.testing.assert_array_equal(values(half)[path], value.astype(jnp.bfloat16))


def test_what_does_not_divide_is_an_error_or_is_replicated_visibly(directory, grid):
    with pytest.raises(LabError, match=r"layers\.1\.attn\.k_einsum\.w \(1, 32, 96\) is 1.*'tp' of 2"):
        mesh.load(directory, grid)
    with pytest.warns(UserWarning, match=r"Replicated.*dimension 0 of layers\.1\.attn\.k_einsum\.w"):
        model = mesh.load(directory, grid, on_indivisible="replicate").model
    assert model.layers[1].attn.k_einsum.w[...].sharding.spec == P(None, "fsdp", None)


def test_rules_of_dimensions_change_all_arrays_that_have_one(directory, grid):
    model = mesh.load(directory, grid, {"kv_heads": None, "norm": None}).model
    specs = {path: array.spec for path, array in ((a.path, a) for a in mesh.inspect(model).arrays)}
    assert specs["layers.1.attn.k_einsum.w"] == "P(None, 'fsdp', None)"
    assert specs["layers.0.attn.kv_einsum.w"] == "P(None, None, 'fsdp', None)"
    assert specs["final_norm.scale"] == "P(None,)" and specs["layers.0.mlp.up_proj.kernel"] == "P('fsdp', 'tp')"
    with pytest.raises(LabError, match=r"No dimension is named 'kv_head_s'.*kv_heads"):
        mesh.load(directory, grid, {"kv_head_s": None})


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"*.q_proj.w": ("tp",)}, "No parameter of the model is"),
        (RULES | {"final_norm.scale": ("tp", None)}, "2 entries for 1 dimensions"),
        (RULES | {"final_norm.scale": ("ep",)}, r"axes \('fsdp', 'tp'\).*'ep'"),
        (RULES | {"*.up_proj.kernel": ("tp", "tp")}, "'tp' twice"),
    ],
)
def test_rules_that_make_no_sense_are_refused(directory, grid, rules, message):
    with pytest.raises(LabError, match=message):
        mesh.load(directory, grid, rules)


def test_shard_model_moves_a_loaded_model_and_marks_an_abstract_one(directory, grid, sharded):
    loaded = models.load(directory)
    model = mesh.shard_model(loaded.model, grid, RULES)
    assert mesh.assert_sharded_like(model, sharded).sharded == 26
    abstract = mesh.shard_model(models.abstract(loaded.spec), grid, RULES)
    assert mesh.inspect(abstract).device_bytes == mesh.inspect(sharded).device_bytes


def test_the_check_finds_what_is_replicated_or_on_one_device(directory, grid, sharded):
    alone = mesh.check_sharding(models.load(directory).model, sharded)
    assert len(alone.misplaced) == 28 and {row.found for row in alone.misplaced} == {"on one device"}
    arrays = {path: variable[...] for path, variable in sharding.variables(sharded).items()}
    mesh.assert_sharded_like(arrays, sharded)
    one = "layers.0.mlp.up_proj.kernel"
    arrays[one] = jax.device_put(arrays[one], NamedSharding(grid, P()))
    with pytest.raises(LabError, match=r"1 of 28 arrays.*up_proj\.kernel.*'fsdp', 'tp'.*is replicated"):
        mesh.assert_sharded_like(arrays, sharded)
    with pytest.raises(LabError, match="no array"):
        mesh.assert_sharded_like({})


def test_adapters_and_optimizer_states_are_sharded_like_their_weights(grid, sharded):
    adapted, _ = lora.inject(sharded, 2, 4.0)
    found = mesh.assert_sharded_like(adapted)
    assert found.arrays == 52 and found.sharded == 49
    for _, variable in nnx.to_flat_state(nnx.state(adapted)):
        assert len(variable.get_metadata().get("out_sharding") or ()) <= variable[...].ndim
    transform = optax.adamw(1e-3)
    made = mesh.optimizer(adapted, transform, grid, nnx.LoRAParam)
    assert mesh.assert_sharded_like(made, adapted).sharded == 46
    held = mesh.inspect(made)["mu.layers.0.mlp.up_proj.kernel_lora_b"]
    assert held.copies == 4 and {part.index for part in held.parts} == {((0, 2), (0, 16)), ((0, 2), (16, 32))}
    jitted = nnx.jit(lambda model: nnx.Optimizer(model, transform, wrt=nnx.LoRAParam))(adapted)
    assert len(mesh.check_sharding(jitted, adapted).misplaced) == 46  # the trap


# Who holds what


@pytest.mark.parametrize("spec", [P("fsdp", "tp"), P(("fsdp", "tp")), P(None, "tp"), P("fsdp"), P()])
def test_the_parts_cover_the_array_as_often_as_it_has_copies(grid, spec):
    array = jax.device_put(jnp.arange(16 * 8, dtype=jnp.float32).reshape(16, 8), NamedSharding(grid, spec))
    held = mesh.inspect(array)
    cover = np.zeros(array.shape, int)
    for part in held.parts:
        cover[tuple(slice(*edge) for edge in part.index)] += 1
    assert set(cover.ravel()) == {held.copies} and held.bytes == held.copies * array.nbytes
    assert len(held.parts) == 8 and held == mesh.Holding.from_json(held.to_json())
    real = {shard.device.id: shard.data.nbytes for shard in array.addressable_shards}
    assert {part.device: part.bytes for part in held.parts} == real
    boxes = [trace for trace in mesh.figure(held).data if trace.mode == "lines"]
    assert len(boxes) == len({part.index for part in held.parts})


def test_a_tree_is_summed_by_device(sharded):
    held = mesh.inspect(sharded)
    real = {device.id: 0 for device in jax.devices()}
    for leaf in jax.tree.leaves(nnx.state(sharded)):
        for shard in leaf.addressable_shards:
            real[shard.device.id] += shard.data.nbytes
    assert held.device_bytes == real
    assert "up_proj" in held._repr_html_() and "28 arrays on 8 devices" in str(held)
    assert "10:12" not in held["layers.0.mlp.up_proj.kernel"]._repr_html_()
    with pytest.raises(LabError, match="no array 'nothing'"):
        held["nothing"]
    with pytest.raises(LabError, match="no JAX array"):
        mesh.inspect([1, 2])


def test_a_figure_of_one_dimension_and_of_a_scalar(grid):
    vector = jax.device_put(jnp.zeros(8), NamedSharding(grid, P("tp")))
    drawn = mesh.figure(mesh.inspect(vector))
    assert "in 2 parts, 4 copies of each" in drawn.layout.title.text
    scalar = mesh.inspect(jax.device_put(1.0, NamedSharding(grid, P())))
    assert "whole on each of 8 devices" in mesh.figure(scalar).layout.title.text


def test_the_widget_shows_what_inspect_says_and_reads_errors_aloud(grid):
    array = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    panel = who_holds_what(array, grid, axes=("fsdp", None))
    assert "in 4 parts, 2 copies of each" in str(panel.output.outputs)
    panel.set(axis_1="tp")
    assert "in 8 parts" in str(panel.output.outputs)
    panel.set(axis_0="tp")
    assert "uses axis" in str(panel.output.outputs) and "twice" in str(panel.output.outputs)
    assert mesh.inspect_as(array, grid, (("fsdp", "tp"), None)).copies == 1
    with pytest.raises(LabError, match=r"Dimension 0 of the array \(6, 8\) is 6, which mesh axis 'fsdp' of 4"):
        mesh.inspect_as(jax.ShapeDtypeStruct((6, 8), jnp.float32), grid, ("fsdp", None))


# Training


def train(model, out, made=None, recipe=RECIPE):
    shard = (0, 1) if made is None else mesh.data_shard(made)
    data = Pipeline(samples(24), seq_len=16, batch_size=8, packing="pad", shard=shard)
    return sft.train(model, data, recipe, out=out, mesh=made)


def test_lora_sft_on_the_mesh_has_the_losses_of_one_device(directory, grid, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(run, "SftTrainer", lambda *a, **k: kept.append(run_trainer(*a, **k)) or kept[-1])
    run_trainer = sft.trainer.SftTrainer
    alone = train(lora.inject(models.load(directory).model, 2, 4.0)[0], tmp_path / "alone")
    adapted, _ = lora.inject(mesh.load(directory, grid, RULES).model, 2, 4.0)
    many = train(adapted, tmp_path / "many", grid)
    one, eight = ([row.loss for row in result.curve()] for result in (alone, many))
    np.testing.assert_allclose(eight, one, rtol=2e-5)
    assert one[0] != one[-1]
    assert [row.useful for row in many.curve()] == [row.useful for row in alone.curve()]
    assert mesh.assert_sharded_like(adapted).sharded == 49
    assert mesh.assert_sharded_like(kept[-1].optimizer, adapted).sharded == 46
    assert kept[-1]._jitted_train_step_fn.func.jitted_fn._cache_size() == 1
    again = train(adapted, tmp_path / "many", grid)
    assert again.resumed_from == RECIPE.steps and again.last_loss == many.last_loss


def test_a_mesh_that_the_batch_or_tunix_cannot_use_is_refused(sharded, tmp_path):
    for made, message in (
        (mesh.make_mesh("fsdp=8,tp=1", explicit=True), "auto axes"),
        (mesh.make_mesh({"dp": 4, "fsdp": 2}), r"batch of 4 rows.*dp x fsdp of 8"),
    ):
        with pytest.raises(LabError, match=message):
            train(sharded, tmp_path, made, RECIPE.replace(batch_size=4))


def test_rows_go_over_dp_and_fsdp():
    made = mesh.make_mesh({"dp": 2, "tp": 2, "fsdp": 2})
    assert mesh.row_axes(made) == ("dp", "fsdp") and mesh.data_shard(made) == (0, 1)
    assert math.prod(made.shape[name] for name in mesh.row_axes(made)) == 4
