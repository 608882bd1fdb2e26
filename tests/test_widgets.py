"""Widgets: each shows what a library call returns, quickly, and also where no kernel runs."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from labkit import plots
from labkit.errors import LabError
from labkit.widgets import frame

ROOM = Path(frame.__file__).parent


@pytest.fixture(autouse=True)
def live_renderer():
    """What a notebook's kernel uses: Plotly's own kind, no picture."""
    import plotly.io

    before = plotly.io.renderers.default
    plotly.io.renderers.default = "plotly_mimetype"
    yield
    plotly.io.renderers.default = before


def kinds(panel: frame.Panel) -> list[set[str]]:
    return [set(output["data"]) for output in panel.output.outputs]


def shown(panel: frame.Panel) -> str:
    return "".join(o["data"].get("text/html", "") for o in panel.output.outputs)


def test_a_panel_follows_its_controls():
    panel = frame.Panel({"rank": frame.slider("Rank", [1, 2, 4], 2)}, lambda rank: [f"rank {rank}"])
    assert "rank 2" in shown(panel)
    panel.set(rank=4)
    assert "rank 4" in shown(panel) and "rank 2" not in shown(panel)


def test_a_figure_is_stored_as_data_and_a_record_as_a_table():
    from labkit.exercises import Outcome

    drawn = plots.figure("t", "x", "y")
    panel = frame.Panel({}, lambda: [drawn, Outcome("correct", "fine")])
    assert kinds(panel) == [{"application/vnd.plotly.v1+json"}, {"text/html", "text/plain"}]


def test_an_error_of_the_user_is_shown_in_place():
    def answer():
        raise LabError("No model <x>.", hint="Choose one.")

    assert "No model &lt;x&gt;." in shown(frame.Panel({}, answer))


def test_every_control_is_labelled():
    for control in (frame.slider("Rank", [1], 1), frame.dropdown("Model", ["a"], "a")):
        assert control.description


@pytest.mark.parametrize("module", sorted(ROOM.glob("*.py")), ids=lambda p: p.stem)
def test_widgets_hold_no_arithmetic(module):
    """No product, quotient, power or difference: numbers come from the library (sums only join strings)."""
    numeric = (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.Sub, ast.Mod, ast.MatMult)
    found = [n for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.BinOp | ast.AugAssign)]
    assert not [ast.unparse(n) for n in found if isinstance(n.op, numeric)]
    assert "FigureWidget(" not in module.read_text()


def seconds(call) -> float:
    best = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        best.append(time.perf_counter() - began)
    return min(best)
