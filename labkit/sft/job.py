"""From a recipe to a trained model: loads the model and the data that the recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from flax import nnx
from jax.sharding import Mesh

from labkit import lora, models
from labkit import mesh as meshes
from labkit.data import readers, verilog
from labkit.data.examples import Example
from labkit.data.pipeline import Pipeline, pipeline
from labkit.errors import LabError
from labkit.models.loading import Loaded
from labkit.sft.recipe import Recipe
from labkit.sft.run import TrainResult, train


def fine_tune(
    recipe: Recipe,
    *,
    out: str | Path,
    axes: meshes.Axes | None = None,
    on_indivisible: Literal["error", "replicate"] = "error",
    tensorboard: bool = False,
) -> TrainResult:
    """Load what the recipe names, train, and leave checkpoints in `out`; call it again to go on after a kill.

    With `axes` (a plan, or "fsdp=4,tp=2") on a mesh of all devices; `on_indivisible` as in `labkit.mesh.shard_model`.
    """
    if axes is None:
        mesh, loaded = None, models.load(recipe.model, dtype=recipe.dtype)
    else:
        mesh = meshes.make_mesh(axes)
        plan = axes if hasattr(axes, "specs") else None
        loaded = meshes.load(recipe.model, mesh, plan, dtype=recipe.dtype, on_indivisible=on_indivisible)
    model, data = prepare(recipe, loaded, mesh)
    return train(model, data, recipe, out=out, mesh=mesh, tensorboard=tensorboard)


def prepare(recipe: Recipe, loaded: Loaded, mesh: Mesh | None = None) -> tuple[nnx.Module, Pipeline]:
    """The model as the recipe trains it (with adapters, remat), and its batches: of a mesh, this process' rows."""
    options: dict[str, Any] = {"packing": recipe.packing, "loss": recipe.loss, "reasoning": recipe.reasoning}
    data = pipeline(
        examples(recipe),
        loaded.tokenizer,
        seq_len=recipe.seq_len,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        shard=(0, 1) if mesh is None else meshes.data_shard(mesh),
        **options,
    )
    model = loaded.model
    if recipe.tuning == "lora":
        qlora = cast(Any, recipe.qlora)
        model, _ = lora.inject(model, recipe.rank, recipe.alpha, recipe.targets, qlora=qlora, seed=recipe.seed)
    lora.set_remat(model, recipe.remat)
    return model, data


def examples(recipe: Recipe) -> list[Example]:
    """The recipe's training data: the built-in task, or a JSONL file of conversations."""
    if recipe.data == "verilog":
        return verilog.examples(verilog.drafts("train", recipe.samples, recipe.seed))
    if not Path(recipe.data).is_file():
        raise LabError(f"Recipe data is {recipe.data!r}, which is no file.", hint='Give a JSONL file, or "verilog".')
    found, _ = readers.read_jsonl(recipe.data, limit=recipe.samples)
    if not found:
        raise LabError(f"{recipe.data} has no usable line.", hint="Each line needs messages, or prompt and completion.")
    return list(found)
