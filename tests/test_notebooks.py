"""The builder of notebooks, and what every stored notebook promises."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
STORED = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SOURCES = sorted((ROOT / "notebooks" / "src").glob("[0-9][0-9]_*.py"))
NAMES = [p.stem for p in STORED]

spec = importlib.util.spec_from_file_location("build_notebooks", ROOT / "scripts" / "build_notebooks.py")
assert spec and spec.loader
builder = importlib.util.module_from_spec(spec)
sys.modules["build_notebooks"] = builder
spec.loader.exec_module(builder)

HEADER = """# ---
# jupyter:
#   labkit:
#     time_limit_s: {limit}
# ---
# %% [markdown]
# # A title

# %%
# first-cell
"""
WIDGET = """
# %%
from labkit.widgets.frame import Panel, slider
Panel({"rank": slider("rank", [1, 2, 4], 2)}, lambda rank: [f"rank {rank}"])
# %%
import sys
print("progress", 12.3, "s", file=sys.stderr)
print("a number: 42")
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "first_cell", lambda devices: "x = 1")

    def write(body: str, limit: int = 180) -> Path:
        path = tmp_path / "50_demo.py"
        path.write_text(HEADER.format(limit=limit) + body)
        return path

    return write


def execute(path: Path) -> nbformat.NotebookNode:
    return builder.execute(builder.load(path), path.parent)


# ------------------------------------------------------------------------------------------------- the builder


def test_two_builds_are_equal_byte_by_byte(source):
    path = source(WIDGET)
    first, second = (nbformat.writes(execute(path)) for _ in range(2))
    assert first == second
    assert "rank 2" in first and "a number: 42" in first and "progress 12.3" not in first


def test_the_first_cell_is_filled_in_and_asked_for(source, tmp_path):
    assert builder.load(source(""))["cells"][1].source == "x = 1"
    other = tmp_path / "51_other.py"
    other.write_text(HEADER.format(limit=5).replace("# first-cell", "import os"))
    with pytest.raises(SystemExit, match="first code cell"):
        builder.load(other)


def test_a_source_without_a_time_limit_is_refused(source, tmp_path):
    other = tmp_path / "51_other.py"
    other.write_text("# %%\n# first-cell\n")
    with pytest.raises(SystemExit, match="time_limit_s"):
        builder.load(other)


def test_staleness_is_seen_without_running(source, tmp_path):
    path, target = source("\n# %%\nprint(1)\n"), tmp_path / "50_demo.ipynb"
    assert builder.is_stale(path, target)
    builder.build(path, target)
    assert not builder.is_stale(path, target)
    source("\n# %%\nprint(2)\n")
    assert builder.is_stale(path, target)


def test_a_notebook_that_did_not_run_to_its_end_is_stale(source, tmp_path):
    path, target = source("\n# %%\nprint(1)\n"), tmp_path / "50_demo.ipynb"
    nbformat.write(builder.load(path), target)
    assert builder.is_stale(path, target)


def test_a_failing_notebook_leaves_the_stored_one(source, tmp_path):
    path, target = source("\n# %%\nraise ValueError('no')\n"), tmp_path / "50_demo.ipynb"
    target.write_text("the old one")
    with pytest.raises(Exception, match="no"):
        builder.build(path, target)
    assert target.read_text() == "the old one"


def test_the_time_limit_is_that_of_the_whole_notebook(source):
    path = source("\n# %%\nimport time; time.sleep(2)\n\n# %%\ntime.sleep(30)\n", limit=4)
    with pytest.raises(Exception, match="timed out"):
        execute(path)


def test_a_static_page_names_no_server(source, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "_fetch_web_files", lambda folder: None)  # what npm gives is not tested here
    nbformat.write(execute(source(WIDGET)), tmp_path / "50_demo.ipynb")
    page = builder.render(tmp_path / "50_demo.ipynb", tmp_path / "html").read_text()
    assert "embed-amd.js" in page and "rank 2" in page
    assert "cdnjs" not in page and "jsdelivr" not in page


# ------------------------------------------------------------------------------------------ the stored notebooks


def cells(name: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells


def code(name: str) -> list[str]:
    return [c.source for c in cells(name) if c.cell_type == "code"]


def test_every_source_has_its_notebook():
    assert [p.stem for p in SOURCES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_is_its_source_executed(name):
    assert not builder.is_stale(ROOT / f"notebooks/src/{name}.py", ROOT / f"notebooks/{name}.ipynb")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cell_is_the_only_setup(name):
    from labkit.runtime import FIRST_CELL

    assert re.sub(r"devices=\d+", "", code(name)[0]) == FIRST_CELL.strip()
    assert not any("pip install" in source or "sys.path" in source for source in code(name)[1:])


@pytest.mark.parametrize("name", NAMES)
def test_the_top_says_what_it_is(name):
    top = "\n".join(c.source for c in cells(name)[:3] if c.cell_type == "markdown")
    for words in ("will be able to", "CPU", "Colab TPU", "Cloud TPU", "Needs"):
        assert words in top, words


@pytest.mark.parametrize("name", NAMES)
def test_cells_fit_a_screen_and_functions_live_in_labkit(name):
    for source in code(name)[1:]:
        assert len(source.splitlines()) <= 25, source
        for node in ast.walk(ast.parse(source.replace("%", "#%") if source.startswith("%") else source)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno + 1 <= 10, node.name


@pytest.mark.parametrize("name", NAMES)
def test_prose_comes_before_every_code_cell_and_results_are_asserted(name):
    kinds = [c.cell_type for c in cells(name)]
    assert kinds[0] == "markdown"
    assert not any(a == b == c == "code" for a, b, c in zip(kinds, kinds[1:], kinds[2:], strict=False))
    assert sum("assert " in source for source in code(name)) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_has_a_widget_a_plot_and_its_exercises(name):
    text = "\n".join(code(name))
    assert "widgets." in text and "plots." in text
    assert text.count("exercises.get(") >= (1 if name.startswith("00") else 5)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_this_machine_is_stored(name):
    text = (ROOT / f"notebooks/{name}.ipynb").read_text()
    assert str(ROOT) not in text and "/tmp/" not in text and "Traceback" not in text
    assert len(text) < 1_500_000
