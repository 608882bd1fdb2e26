"""Commands about this machine: `doctor` and `lab`."""

from __future__ import annotations

from typing import Annotated

import typer

from labkit.cli.app import Json, command, show


@command("labkit doctor --json")
def doctor(as_json: Json = False) -> None:
    """Say what this machine is, what it lacks for which lab, and the one command that mends it."""
    from labkit import doctor as library

    show(library.examine, as_json)


@command("labkit lab 03_lora_sft")
def lab(
    name: Annotated[str, typer.Argument(help="Open this notebook; a part of its name will do.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="JupyterLab's port; 0 is its own choice.")] = 0,
    as_json: Json = False,
) -> None:
    """Open the notebooks in JupyterLab; with --json only say where they are and how they are opened."""
    from labkit import runtime

    found = runtime.notebooks(name, port=port)
    show(lambda: found, as_json)
    if not as_json:
        raise typer.Exit(runtime.open_lab(found))
