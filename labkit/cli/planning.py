"""Commands that plan: `plan`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from labkit.cli import options
from labkit.cli.app import Json, command, show


@command("labkit plan --model gemma4-31b --slice v5p-8 --seq 4096 --batch 8 --json")
def plan(
    model: options.Model,
    slice: options.Slice,
    seq: options.Seq,
    batch: options.Batch,
    objective: Annotated[str, typer.Option(help="train_lora, train_full or serve.")] = "train_lora",
    axes: options.Axes = None,
    dp: Annotated[int | None, typer.Option(help="Keep this size of dp.")] = None,
    fsdp: Annotated[int | None, typer.Option(help="Keep this size of fsdp.")] = None,
    tp: Annotated[int | None, typer.Option(help="Keep this size of tp.")] = None,
    rank: options.Rank = 16,
    targets: options.Targets = "all",
    remat: options.Remat = "decoder",
    accumulation: options.Accumulation = 1,
    loss_chunk: options.LossChunk = 512,
    dtype: Annotated[str, typer.Option(help="Of weights and computation: bfloat16 or float32.")] = "bfloat16",
    on_indivisible: Annotated[str, typer.Option(help="What a mesh does not divide: error or replicate.")] = "error",
    as_json: Json = False,
) -> None:
    """Choose a mesh for a step on a slice: what divides, what fits, what each axis costs, and why not another."""
    from labkit import mesh

    choices: Any = {"on_indivisible": on_indivisible}
    kept = mesh.with_axes(axes, dp=dp, fsdp=fsdp, tp=tp)
    show(
        lambda: mesh.plan(
            model, slice, seq=seq, batch=batch, objective=objective, axes=kept, rank=rank, targets=targets,
            remat=remat, accumulation=accumulation, loss_chunk=loss_chunk, dtype=dtype, **choices,
        ),
        as_json,
    )  # fmt: skip
