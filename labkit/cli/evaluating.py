"""Commands that judge: `eval` and `judge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.app import Json, command, show, start


@command("labkit judge adder.v --testbench adder_tb.v --json")
def judge(
    candidate: Annotated[Path, typer.Argument(help="The Verilog file to judge.")],
    testbench: Annotated[Path, typer.Option(help="Its testbench, of labkit or of verilog-eval.")],
    reference: Annotated[Path | None, typer.Option(help="The reference module, where the testbench needs one.")] = None,
    as_json: Json = False,
) -> None:
    """Compile and simulate one Verilog file in a sandbox, and say whether it is right."""
    from labkit import evaluate

    show(lambda: evaluate.judge_files(candidate, testbench, reference), as_json)
