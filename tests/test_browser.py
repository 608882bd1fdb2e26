"""Widgets in a real browser: JupyterLab runs a notebook, a key moves a slider, and figure and numbers follow."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests import jupyterlab

if jupyterlab.CHROMIUM is None:
    pytest.skip("needs Chromium: sudo apt-get install chromium", allow_module_level=True)
for package in ("playwright", "jupyterlab"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install {package}", allow_module_level=True)
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

# One cell a widget. What a cell shows is asked for by its place.
CELLS = {
    "start": "import labkit\nlabkit.start(devices=8)\nfrom labkit import mesh, widgets",
    "adapter_size": "widgets.adapter_size()",
    "mesh_explorer": "widgets.mesh_explorer(model='gemma4-31b', slice_name='v5p-8')",
    "who_holds_what": "import jax\nx = jax.ShapeDtypeStruct((8, 128), 'bfloat16')\n"
    "widgets.who_holds_what(x, mesh.make_mesh({'fsdp': 4, 'tp': 2}), axes=('fsdp', 'tp'))",
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


def test_a_key_moves_the_rows_and_the_plan_follows(page):
    cell = list(CELLS).index("mesh_explorer")
    before = page.text(cell)
    page.press(cell, "ArrowRight")  # the first slider: tokens a row
    after = page.wait_for_text(cell, before)
    (was,), (now,) = ([t for t in text.split("\n") if "GiB" in t][:1] for text in (before, after))
    assert was != now and "Why not otherwise" in after
    assert page.drawn(cell) >= 3  # torus, memory, collectives


def test_another_axis_moves_the_parts(page):
    cell = list(CELLS).index("who_holds_what")
    before = page.text(cell)
    page.choose(cell, "whole")
    assert page.wait_for_text(cell, before) != before
    assert page.drawn(cell) == 1


def test_where_no_kernel_runs_a_widget_is_a_picture(page, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / "01_mesh_setup.ipynb", as_version=4)
    notebook.metadata.pop("widgets")  # as on GitHub
    for output in (o for cell in notebook.cells for o in cell.get("outputs", [])):
        output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    (tmp_path / "page.html").write_text(HTMLExporter(mathjax_url="").from_notebook_node(notebook)[0])
    tab = page.page.context.browser.new_page()
    tab.goto((tmp_path / "page.html").as_uri(), wait_until="domcontentloaded")
    explorer = tab.locator(".jp-Cell", has_text="widgets.mesh_explorer(")
    assert "Why not otherwise" in explorer.inner_text()
    assert explorer.locator("img").count() >= 3
    assert all(explorer.locator("img").nth(i).evaluate("e => e.naturalWidth") > 300 for i in range(3))


def test_nothing_is_asked_of_other_machines_and_no_script_fails(page):
    assert page.strangers == [] and page.errors == []
