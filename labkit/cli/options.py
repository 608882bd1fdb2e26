"""Options that several commands share: one name, one help text."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Option(help="A registry name.")]
Slice = Annotated[str, typer.Option(help="Such as v5p-8, v5e-16 or 2xv5e-16.")]
Seq = Annotated[int, typer.Option(help="Tokens of a row.")]
Batch = Annotated[int, typer.Option(help="Rows of one update on all devices together.")]
Axes = Annotated[str | None, typer.Option(help="Mesh axes to keep, such as tp=4 or fsdp=2,tp=2; else the planner's.")]
Rank = Annotated[int, typer.Option(help="Of LoRA.")]
Targets = Annotated[str, typer.Option(help="Of LoRA: all, attention, mlp, roles, or a pattern.")]
Remat = Annotated[str, typer.Option(help="none, block or decoder.")]
Accumulation = Annotated[int, typer.Option(help="Parts that the batch is computed in.")]
LossChunk = Annotated[int, typer.Option(help="Positions of a row whose logits exist at a time.")]
