"""Commands that compile for slices that are not here: `rehearse`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.cli import options
from labkit.cli.app import Json, command, show
from labkit.errors import LabError


@command("labkit rehearse --model gemma4-31b --slice v5p-8 --seq 2048 --batch 1 --rank 16 --json")
def rehearse(
    model: options.Model,
    slice: options.Slice,
    seq: options.Seq = 2048,
    batch: options.Batch = 1,
    step: Annotated[str, typer.Option(help="lora_sft or full_sft.")] = "lora_sft",
    axes: options.Axes = None,
    rank: options.Rank = 16,
    targets: options.Targets = "all",
    remat: options.Remat = "decoder",
    accumulation: options.Accumulation = 1,
    loss_chunk: options.LossChunk = 512,
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

    given: dict[str, Any] = {"remat": remat, "accumulation": accumulation, "loss_chunk": loss_chunk}
    given |= {"rank": rank, "targets": targets, "qlora": qlora} if step == "lora_sft" else {}
    given |= {"layers": _layers(layers)} if layers else {}
    call = room.extrapolate if extrapolate else room.rehearse
    report = call(
        step, model, slice, axes=axes, use_cache=cache, timeout=timeout, tell=_say, seq=seq, batch=batch, **given
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
