"""Commands about checkpoints: `convert`, `inspect` and `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.app import Json, command, show, start

Base = Annotated[str | None, typer.Option(help="The base model of adapters that stand alone, where they name none.")]
AnyBase = Annotated[bool, typer.Option("--any-base", help="Take adapters that were trained on other weights.")]


@command("labkit convert out/run/train out/served --to hf --dtype bfloat16 --json")
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory, checkpoint, run or registry name.")],
    out: Annotated[str, typer.Argument(help="The new folder; gs:// too with --to orbax.")],
    to: Annotated[str, typer.Option(help="hf (merged), peft (adapters alone), orbax, int8 or fp8 (quantized hf).")],
    base: Base = None,
    dtype: Annotated[str | None, typer.Option(help="Of the tensors: float32, bfloat16, float16.")] = None,
    max_shard: Annotated[str | None, typer.Option(help="Size of a file, such as 5GB.")] = None,
    allow_nonfinite: Annotated[bool, typer.Option("--allow-nonfinite", help="Write NaN and infinity too.")] = False,
    any_base: AnyBase = False,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint between Hugging Face, PEFT and Orbax; the folder appears when all of it is verified."""
    start()
    from labkit.convert import command as library

    show(
        lambda: library.convert(
            source,
            out,
            to,
            base=base,
            dtype=dtype,
            max_shard=max_shard,
            allow_nonfinite=allow_nonfinite,
            allow_other_base=any_base,
        ),
        as_json,
    )


@command("labkit inspect data/models/tiny-gemma4 --json")
def inspect(
    path: Annotated[str, typer.Argument(help="A safetensors, PEFT, Orbax or GGUF checkpoint.")],
    as_json: Json = False,
) -> None:
    """Say what is in a checkpoint from its headers alone: names, shapes, dtypes, bytes."""
    from labkit.convert.inspection import inspect as library

    show(lambda: library(path), as_json)


@command("labkit verify data/models/tiny-gemma4-sft out/served --json")
def verify(
    a: Annotated[str, typer.Argument(help="A checkpoint of any kind, or a registry name.")],
    b: Annotated[str, typer.Argument(help="The other one.")],
    base: Base = None,
    report: Annotated[Path | None, typer.Option(help="Also write one page of HTML.")] = None,
    any_base: AnyBase = False,
    as_json: Json = False,
) -> None:
    """Compare two checkpoints tensor by tensor, and what the two models say."""
    start()
    from labkit import convert as library

    def compare() -> library.Verification:
        found = library.verify(a, b, base=base, allow_other_base=any_base)
        if report is not None:
            found.write_report(report)
        return found

    show(compare, as_json)
