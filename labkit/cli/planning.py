"""Commands that plan: `plan`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from labkit.cli.app import Json, command, show


@command("labkit plan --model gemma4-31b --slice v5p-8 --seq 4096 --batch 8 --json")
def plan(
    model: Annotated[str, typer.Option(help="A registry name.")],
    slice: Annotated[str, typer.Option(help="Such as v5p-8, v5e-16 or 2xv5e-16.")],
    seq: Annotated[int, typer.Option(help="Tokens of a row.")],
    batch: Annotated[int, typer.Option(help="Rows of one update on all devices together.")],
    objective: Annotated[str, typer.Option(help="train_lora, train_full or serve.")] = "train_lora",
    axes: Annotated[str | None, typer.Option(help="Sizes to keep, such as tp=4 or fsdp=2,tp=2; else all.")] = None,
    dp: Annotated[int | None, typer.Option(help="Keep this size of dp.")] = None,
    fsdp: Annotated[int | None, typer.Option(help="Keep this size of fsdp.")] = None,
    tp: Annotated[int | None, typer.Option(help="Keep this size of tp.")] = None,
    rank: Annotated[int, typer.Option(help="Of LoRA.")] = 16,
    targets: Annotated[str, typer.Option(help="Of LoRA: all, attention, mlp, roles, or a pattern.")] = "all",
    remat: Annotated[str, typer.Option(help="none, block or decoder.")] = "decoder",
    accumulation: Annotated[int, typer.Option(help="Parts that the batch is computed in.")] = 1,
    loss_chunk: Annotated[int, typer.Option(help="Positions of a row whose logits exist at a time.")] = 512,
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
