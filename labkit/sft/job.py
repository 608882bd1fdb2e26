"""From a recipe to a trained model: loads the model and the data that the recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from flax import nnx

from labkit import lora, models
from labkit.data import readers, verilog
from labkit.data.examples import Example
from labkit.data.pipeline import Pipeline, pipeline
from labkit.errors import LabError
from labkit.models.loading import Loaded
from labkit.sft.recipe import Recipe
from labkit.sft.run import TrainResult, train


def fine_tune(recipe: Recipe, *, out: str | Path, tensorboard: bool = False) -> TrainResult:
    """Load what the recipe names, train, and leave checkpoints in `out`; call it again to go on after a kill."""
    model, data = prepare(recipe, models.load(recipe.model, dtype=recipe.dtype))
    return train(model, data, recipe, out=out, tensorboard=tensorboard)


def prepare(recipe: Recipe, loaded: Loaded) -> tuple[nnx.Module, Pipeline]:
    """The model as the recipe trains it (with adapters, remat), and its batches."""
    options: dict[str, Any] = {"packing": recipe.packing, "loss": recipe.loss, "reasoning": recipe.reasoning}
    data = pipeline(
        examples(recipe),
        loaded.tokenizer,
        seq_len=recipe.seq_len,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
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
