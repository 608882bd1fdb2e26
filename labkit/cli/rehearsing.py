"""Commands that compile for slices that are not here: `rehearse`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.cli.app import Json, command, show
from labkit.errors import LabError


@command("labkit rehearse --model gemma4-31b --slice v5p-8 --seq 2048 --batch 1 --rank 16 --json")
def rehearse(
    model: Annotated[str, typer.Option(help="A registry name.")],
    slice: Annotated[str, typer.Option(help="Such as v5p-8 or v5e-16.")],
    seq: Annotated[int, typer.Option(help="Tokens of a row.")] = 2048,
    batch: Annotated[int, typer.Option(help="Rows of one update on all devices together.")] = 1,
    step: Annotated[str, typer.Option(help="lora_sft or full_sft.")] = "lora_sft",
    axes: Annotated[str | None, typer.Option(help="Mesh axes, such as fsdp=2,tp=4; else the planner's.")] = None,
    rank: Annotated[int, typer.Option(help="Of LoRA.")] = 16,
    targets: Annotated[str, typer.Option(help="Of LoRA: all, attention, mlp, roles, or a pattern.")] = "all",
    remat: Annotated[str, typer.Option(help="none, block or decoder.")] = "decoder",
    accumulation: Annotated[int, typer.Option(help="Parts that the batch is computed in.")] = 1,
    loss_chunk: Annotated[int, typer.Option(help="Positions of a row whose logits exist at a time.")] = 512,
    qlora: Annotated[str | None, typer.Option(help="nf4 stores the base in four bits.")] = None,
    layers: Annotated[str | None, typer.Option(help="6: the first six; 2+1: local and global ones.")] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Compile a few layers, and reckon the whole model from them.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Answer with a stored rehearsal of the same job.")] = True,
    fix: Annotated[bool, typer.Option("--fix", help="If it does not fit, look for the cheapest change.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the predicted step as a Chrome/Perfetto trace.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until a compile is given up.")] = 3600,
    as_json: Json = False,
) -> None:
    """Compile a training step with the real TPU compiler, here: does it fit, what does it cost, what does it move."""
    from labkit import rehearse as room

    options: dict[str, Any] = {"remat": remat, "accumulation": accumulation, "loss_chunk": loss_chunk}
    options |= {"rank": rank, "targets": targets, "qlora": qlora} if step == "lora_sft" else {}
    options |= {"layers": _layers(layers)} if layers else {}
    call = room.extrapolate if extrapolate else room.rehearse
    report = call(
        step, model, slice, axes=axes, use_cache=cache, timeout=timeout, tell=_say, seq=seq, batch=batch, **options
    )
    if trace is not None:
        room.write_trace(report, trace)
    if fix and not report.compiles:
        mended = room.fix(report, use_cache=cache, tell=_say)
        show(lambda: mended, as_json)
        raise typer.Exit(0 if mended.found else 1)
    show(lambda: report, as_json)
    if not report.compiles:
        print(f"labkit: {report.verdict}", file=sys.stderr)
        raise typer.Exit(1)


def _layers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split("+")]
    except ValueError as error:
        raise LabError(f"--layers {text} is no count of layers.", hint="Give 6, or 2+1.") from error


def _say(stage: str) -> None:
    print(stage, file=sys.stderr, flush=True)
