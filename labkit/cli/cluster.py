"""The command `cluster`: launch files for a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.app import Json, command, show


@command("labkit cluster --slice v5e-16 --lab 03_lora_sft --out out/cluster")
def cluster(
    slice: Annotated[str, typer.Option(help="Such as v5p-8, v5e-16 or 2xv6e-16.")],
    lab: Annotated[str, typer.Option(help="The notebook whose command runs on every host.")] = "03_lora_sft",
    run: Annotated[str | None, typer.Option("--command", help="Run this instead of the lab's command.")] = None,
    axes: Annotated[str | None, typer.Option(help="The mesh, such as fsdp=8,tp=2; default: all on fsdp.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the job and of the TPU.")] = None,
    engine: Annotated[str | None, typer.Option(help="gke, skypilot or gcloud; default: all that have it.")] = None,
    image: Annotated[str | None, typer.Option(help="The container image (GKE).")] = None,
    bucket: Annotated[str | None, typer.Option(help="A Cloud Storage bucket for checkpoints (GKE).")] = None,
    spot: Annotated[bool, typer.Option(help="Capacity that can be taken back.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("out/cluster"),
    as_json: Json = False,
) -> None:
    """Write launch files for a slice: a GKE JobSet, a SkyPilot task, a gcloud queued resource."""
    from labkit.mesh import cluster as library

    given = {"image": image} if image else {}
    show(
        lambda: library.launch(
            slice, lab, command=run, axes=axes, name=name, engine=engine, bucket=bucket, spot=spot, out=out, **given
        ),
        as_json,
    )
