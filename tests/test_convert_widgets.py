"""The widgets of the conversion lab show what the library says, quickly."""

from __future__ import annotations

import time

import plotly.io
import pytest

from labkit import convert, models, widgets
from labkit.errors import LabError
from tests.conversions import adapted


@pytest.fixture(autouse=True)
def live_renderer(monkeypatch):
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")


def shown(panel) -> str:
    return "".join(o["data"].get("text/html", "") for o in panel.output.outputs)


def test_the_tracker_shows_both_sides_of_every_tensor():
    panel = widgets.tensor_tracker()
    spec = models.get("gemma4-31b")
    table = {row.hf: row for row in convert.rows(spec)}
    assert list(panel.controls["tensor"].options) == list(table)
    for name in (
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.5.self_attn.k_proj.weight",
        "model.norm.weight",
    ):
        panel.set(tensor=name)
        row, found = table[name], convert.trace(spec, name)
        assert (found.steps[0].shape, found.steps[-1].shape) == (row.tunix_shape, row.hf_shape)
        assert all(str(list(step.shape)) in shown(panel) for step in found.steps)
        assert row.tunix in shown(panel) and f"{found.parameters:,} parameters" in shown(panel)
    begun = time.perf_counter()
    panel.set(tensor="model.layers.1.mlp.up_proj.weight")
    assert time.perf_counter() - begun < 1


def test_the_tree_shows_the_bytes_of_each_branch(tmp_path):
    convert.to_hf(adapted("gemma4"), tmp_path / "hf")
    found = convert.inspect(tmp_path / "hf")
    panel = widgets.checkpoint_tree(tmp_path / "hf")
    names = [name for name, _ in panel.controls["branch"].options]
    assert names[0] == "everything" and "model.layers" in names and "model.layers.0.mlp" in names
    panel.set(branch="model.layers.0.mlp")
    data = panel.output.outputs[1]["data"]["application/vnd.plotly.v1+json"]
    assert data["layout"]["title"]["text"] == str(found.branch("model.layers.0.mlp"))
    assert list(data["data"][0]["x"]) == ["gate_proj", "up_proj", "down_proj"]
    assert found.branch("").bytes == found.bytes
    panel.set(branch="model.norm")
    assert "model.norm.weight" in shown(panel)


def test_a_tensor_that_is_not_there_is_said():
    with pytest.raises(LabError, match="Nearest"):
        convert.trace(models.get("gemma4-31b"), "model.layers.5.self_attn.v_proj.weight")
