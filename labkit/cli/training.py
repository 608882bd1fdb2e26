"""Commands that train: `run` and `sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from labkit.cli.app import Json, command, show, start
from labkit.errors import LabError

Set = Annotated[list[str] | None, typer.Option("--set", help="Override a recipe's key, such as --set rank=8.")]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="A recipe as a TOML file.")]


@command("labkit run --out out/run")
def run(
    out: Annotated[Path, typer.Option(help="The run's own folder; the same command again goes on.")] = Path("out/run"),
    model: Annotated[str, typer.Option(help="The base: a registry name or a directory.")] = "tiny-gemma4",
    problems: Annotated[int, typer.Option(help="Held-out problems of the families that training has.")] = 414,
    unseen: Annotated[int, typer.Option(help="Problems of families that training never has.")] = 136,
    seed: Annotated[int, typer.Option(help="Of problems and training data.")] = 0,
    recipe: RecipeFile = None,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Evaluate a base model, fine-tune it with LoRA, evaluate it again, and write a report."""
    start()
    from labkit import pipeline, sft

    given = sft.Recipe.from_toml(recipe) if recipe else pipeline.RECIPE
    chosen = given.replace(**{"model": model, "seed": seed} | _overrides(changes))
    show(
        lambda: pipeline.run(out=out, model=model, recipe=chosen, problems=problems, unseen=unseen, seed=seed), as_json
    )


@command("labkit sft --recipe my.toml --set learning_rate=1e-3 --out out/sft")
def sft(
    out: Annotated[Path, typer.Option(help="The run's own folder; the same command again goes on.")],
    recipe: RecipeFile = None,
    changes: Set = None,
    tensorboard: Annotated[bool, typer.Option(help="Also write TensorBoard events.")] = False,
    axes: Annotated[str | None, typer.Option(help="Train on a mesh of all devices, such as fsdp=4,tp=2.")] = None,
    on_indivisible: Annotated[str, typer.Option(help="What a mesh does not divide: error or replicate.")] = "error",
    devices: Annotated[int | None, typer.Option(help="So many simulated CPU devices.")] = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a model by a recipe, from its last checkpoint if there is one; of several hosts run it on each."""
    if axes:
        from labkit import mesh

        mesh.initialize()
    start(devices)
    from labkit import sft as library

    given = library.Recipe.from_toml(recipe) if recipe else library.Recipe()
    chosen = given.replace(**_overrides(changes))
    show(
        lambda: library.fine_tune(
            chosen, out=out, axes=axes, on_indivisible=_choice(on_indivisible), tensorboard=tensorboard
        ),
        as_json,
    )


def _choice(on_indivisible: str) -> Literal["error", "replicate"]:
    if on_indivisible not in ("error", "replicate"):
        raise LabError(f"--on-indivisible is {on_indivisible!r}.", hint="Choices: error, replicate.")
    return cast(Literal["error", "replicate"], on_indivisible)


def _overrides(changes: list[str] | None) -> dict[str, Any]:
    """`key=value` pairs; a value is read as TOML, and as text where it is none."""
    import tomllib

    found = {}
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not equals:
            raise LabError(f"--set {change} is no pair.", hint="Write --set key=value.")
        try:
            found[key.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = value
    return found
