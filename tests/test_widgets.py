"""Widgets: each shows what a library call returns, quickly, and also where no kernel runs."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import plotly.io
import pytest

from labkit import plots
from labkit.errors import LabError
from labkit.widgets import frame

ROOM = Path(frame.__file__).parent


@pytest.fixture(autouse=True)
def live_renderer():
    """What a notebook's kernel uses: Plotly's own kind, no picture."""
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


def test_where_no_kernel_runs_the_answer_is_a_page():
    plotly.io.renderers.default = "plotly_mimetype+png"  # what builds the stored notebooks
    panel = frame.Panel(
        {"n": frame.slider("n", (1, 2), 2)}, lambda n: (f"<b>{n} chips</b>", plots.figure("t", "x", "y"))
    )
    bundle = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "<b>2 chips</b>" in bundle["text/html"] and "data:image/png;base64," in bundle["text/html"]


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


# ------------------------------------------------------------------------------------------------ adapter size


def test_adapter_size_shows_what_the_library_says():
    from labkit import lora, widgets

    panel = widgets.adapter_size(["tiny-gemma4", "tiny-gemma4-teacher"], model="tiny-gemma4", rank=8)
    assert f"{lora.size('tiny-gemma4', 8, 'all').bytes:,} bytes" in shown(panel)
    panel.set(rank=64, targets="attention")
    title = panel.output.outputs[1]["data"]["application/vnd.plotly.v1+json"]["layout"]["title"]["text"]
    assert f"{lora.size('tiny-gemma4', 64, 'attention').parameters:,} trained" in title and "rank 64" in title


def test_adapter_size_lists_every_registry_model():
    from labkit import models, widgets

    assert widgets.adapter_size(model="tiny-gemma4").controls["model"].options == models.names()


def test_adapter_size_answers_within_100_ms():
    from labkit import widgets

    panel = widgets.adapter_size(["tiny-gemma4"], model="tiny-gemma4", rank=8)
    ranks = iter((1, 2, 4, 16, 32))
    assert seconds(lambda: panel.set(rank=next(ranks))) < 0.1


# -------------------------------------------------------------------------------------------------- token mask


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    import tiny
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny.make_tiny_gemma4(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def example():
    from labkit.data.examples import Example

    return Example.of("Add <a> & b.", "<think>easy</think>assign y = a + b;", id="one")


def test_token_mask_shades_what_the_library_counts(example, tokenizer):
    from labkit import widgets
    from labkit.data import chat

    panel = widgets.token_mask(example, tokenizer)
    view = chat.mask_view(example, tokenizer)
    for loss in view.counted:
        panel.set(loss=loss)
        assert shown(panel).count("background:") == sum(view.counted[loss])
        assert f"{sum(view.counted[loss])} of {len(view.pieces)} tokens" in shown(panel)
    assert sum(view.counted["answer"]) < sum(view.counted["assistant"]) < sum(view.counted["all"])


def test_token_mask_strips_reasoning_and_escapes(example, tokenizer):
    from labkit import widgets

    panel = widgets.token_mask(example, tokenizer)
    before = shown(panel)
    assert "&lt;" in before and "<a>" not in before
    panel.set(reasoning="strip")
    assert len(shown(panel)) < len(before)
