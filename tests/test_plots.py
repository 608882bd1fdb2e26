"""The look of figures: colours that everybody can tell apart, on white and on dark, in few bytes."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from labkit import plots
from labkit.errors import LabError

# Machado, Oliveira, Fernandes 2009, severity 1.0: what a dichromat sees, in linear RGB.
VISION = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    t = TO_XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(c)) + 0.05 for c in (a, b))
    return high / low


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", [plots.MEMORY, plots.AXES], ids=["memory", "axes"])
def test_colours_of_one_figure_differ_for_every_kind_of_vision(palette, vision):
    seen = [cielab(np.asarray(VISION[vision]) @ linear(c)) for c in palette.values()]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 20


@pytest.mark.parametrize("background", ["#ffffff", "#111111"])
def test_colours_and_text_show_on_white_and_on_dark(background):
    for c in [*plots.MEMORY.values(), *plots.AXES.values(), *plots.SERIES]:
        assert contrast(c, background) > 2.2, c
    assert contrast(plots._TEXT, background) > 4.2


def test_a_known_name_has_its_colour_wherever_it_stands():
    drawn = plots.bars("t", ["a"], {"gradients": [1.0], "weights": [2.0]}, x="x", y="GiB", stacked=True)
    assert [t.marker.color for t in drawn.data] == [plots.MEMORY["gradients"], plots.MEMORY["weights"]]
    assert plots.color("KV cache") == plots.MEMORY["kv_cache"]
    assert plots.color("fsdp", 5) == plots.AXES["fsdp"]


def test_a_stored_figure_is_small():
    x = np.linspace(0, 1, 500)
    drawn = plots.lines("t", {"a": (x, x), "b": (x, x**2)}, x="step", y="loss (nats)")
    assert len(json.dumps(json.loads(drawn.to_json()))) < 14_000


def test_bars_carry_their_intervals_and_limit():
    intervals = {"after": [(0.4, 0.7), (0.5, 0.65)]}
    drawn = plots.bars("t", ["a", "b"], {"after": [0.5, 0.6]}, x="x", y="pass@1", intervals=intervals, limit=0.9)
    error = drawn.data[0].error_y
    np.testing.assert_allclose(error.array, [0.2, 0.05], atol=1e-6)
    np.testing.assert_allclose(error.arrayminus, [0.1, 0.1], atol=1e-6)
    assert drawn.layout.shapes[0].y0 == 0.9


def test_interval_band_takes_the_colour_of_its_curve():
    drawn = plots.lines("t", {"a": ([0, 1], [0, 1]), "b": ([0, 1], [2, 3])}, x="x", y="y")
    plots.with_interval(drawn, "b", [0, 1], [1, 2], [3, 4])
    assert drawn.data[-1].fill == "tonexty" and drawn.data[-1].fillcolor.startswith("rgba(213,94,0")
    with pytest.raises(LabError, match="2 x values"):
        plots.with_interval(drawn, "b", [0, 1], [1], [3, 4])


def test_a_figure_without_a_finding_is_refused():
    with pytest.raises(LabError, match="title"):
        plots.figure(" ", "x", "y")


def test_horizontal_bars_read_from_the_top():
    drawn = plots.bars("t", ["first", "second"], {"weights": [1, 2]}, x="GiB", y="model", horizontal=True, limit=3)
    assert drawn.data[0].orientation == "h" and drawn.layout.yaxis.autorange == "reversed"
    assert drawn.layout.shapes[0].x0 == 3


def test_a_long_legend_stands_at_the_right():
    few = plots.bars("t", ["a"], {"weights": [1], "adapters": [1]}, x="x", y="y")
    many = plots.bars("t", ["a"], {kind: [1] for kind in plots.MEMORY}, x="x", y="y", stacked=True)
    assert few.layout.legend.orientation == "h" and many.layout.legend.orientation == "v"
