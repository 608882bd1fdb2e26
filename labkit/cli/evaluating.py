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


@command("labkit eval --model data/models/tiny-gemma4 --json")
def eval(
    model: Annotated[str, typer.Option(help="A registry name or a directory.")] = "tiny-gemma4",
    problems: Annotated[int, typer.Option(help="How many held-out problems.")] = 414,
    split: Annotated[str, typer.Option(help="test_seen or test_unseen (families that training never has).")] = (
        "test_seen"
    ),
    samples: Annotated[int, typer.Option(help="Answers to each problem; more than one needs a temperature.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of problems and sampling.")] = 0,
    as_json: Json = False,
) -> None:
    """Let a model answer held-out problems, and judge its answers by simulation."""
    start()
    from labkit import evaluate

    show(
        lambda: evaluate.evaluate_named(
            model, problems=problems, split=split, samples=samples, temperature=temperature, seed=seed
        ),
        as_json,
    )
