"""Widgets in a real browser: JupyterLab runs a notebook, a key moves a slider, and figure and numbers follow."""

from __future__ import annotations

import importlib.util

import pytest

from tests import jupyterlab

if jupyterlab.CHROMIUM is None:
    pytest.skip("needs Chromium: sudo apt-get install chromium", allow_module_level=True)
for package in ("playwright", "jupyterlab"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install {package}", allow_module_level=True)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

# One cell a widget. What a cell shows is asked for by its place.
CELLS = {
    "adapter_size": "from labkit import widgets\nwidgets.adapter_size()",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("private")
    jupyterlab.notebook(root / "widgets.ipynb", *CELLS.values())
    with jupyterlab.jupyterlab(root, private) as address, jupyterlab.browser() as chromium:
        page = jupyterlab.Page(chromium, address.format("widgets.ipynb"))
        page.run_all()
        yield page


def test_a_key_moves_the_rank_and_the_figure_follows(page):
    cell = list(CELLS).index("adapter_size")
    before = page.title(cell)
    assert "rank 16" in before
    page.press(cell, "ArrowRight")
    after = page.wait_for_title(cell, before)
    assert "rank 32" in after
    count = [int(t.split(": ")[1].split(" ")[0].replace(",", "")) for t in (before, after)]
    assert count[1] == 2 * count[0]


def test_nothing_is_asked_of_other_machines_and_no_script_fails(page):
    assert page.strangers == [] and page.errors == []
