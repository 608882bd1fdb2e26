"""Build the notebooks from their sources: notebooks/src/NN_name.py is executed into notebooks/NN_name.ipynb.

    python scripts/build_notebooks.py                   # rebuild what is stale
    python scripts/build_notebooks.py --force 03        # rebuild the notebooks whose name contains "03"
    python scripts/build_notebooks.py --check           # exit 1 if a stored notebook is not its source's, executed
    python scripts/build_notebooks.py --html --shots    # pages for the web, and pictures of them, under build/html

Two builds of a deterministic notebook are equal byte by byte: cell ids come from position and source, widget ids are
renumbered, and times, Python's version and progress lines are not stored.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from queue import Empty
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parent.parent
SOURCES, NOTEBOOKS, HTML = ROOT / "notebooks" / "src", ROOT / "notebooks", ROOT / "build" / "html"
FIRST_CELL_MARK = "# first-cell"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}
PAGE_STYLE = (  # what JupyterLab's own style sheet adds to widgets and to code within Markdown
    ".jupyter-widgets {font-family: var(--jp-ui-font-family)}"
    ".jp-RenderedMarkdown pre {font-family: var(--jp-code-font-family); font-size: var(--jp-code-font-size)}"
)
WEB_FILES = {
    "require.js": ("requirejs", "require.js"),
    "embed-amd.js": ("@jupyter-widgets/html-manager", "dist/embed-amd.js"),
}  # name beside the page -> npm package and the file in it


class Client(NotebookClient):
    """A client that sees every reply.

    A comm message that a cell sends can swallow the wake-up of the next reply, and the stock client then waits for
    ever (nbclient issue 312). Polling in slices of a quarter of a second finds the reply.
    """

    async def async_start_new_kernel_client(self) -> Any:
        """The kernel client, its shell channel polled in slices."""
        client = await super().async_start_new_kernel_client()
        wait_for = client.shell_channel.get_msg

        async def get_msg(timeout: float | None = None) -> Any:
            end = float("inf") if timeout is None else time.monotonic() + timeout
            while True:
                try:
                    return await wait_for(timeout=max(0.0, min(0.25, end - time.monotonic())))
                except Empty:
                    if time.monotonic() >= end:
                        raise

        client.shell_channel.get_msg = get_msg
        return client


def load(source: Path) -> nbformat.NotebookNode:
    """The notebook of a percent-format file, not executed: first cell filled in, metadata and ids fixed."""
    notebook = jupytext.read(source, fmt="py:percent")
    labkit = notebook.metadata.get("labkit")
    if not labkit or "time_limit_s" not in labkit:
        sys.exit(f"{source}: its header lacks labkit: time_limit_s, the seconds that the whole notebook may take.")
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": PYTHON, "language_info": {"name": "python"}, "labkit": labkit}
    )
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if first.source.strip() != FIRST_CELL_MARK:
        sys.exit(f"{source}: the first code cell has to be the line {FIRST_CELL_MARK!r}, which is filled in.")
    first.source = first_cell(labkit.get("devices"))
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"c{i:03d}-" + hashlib.sha256(cell.source.encode()).hexdigest()[:8]
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def first_cell(devices: int | None) -> str:
    """The one set-up cell of every notebook; a header's `devices` are simulated ones."""
    from labkit.runtime import FIRST_CELL

    cell = FIRST_CELL.strip()
    return cell.replace("labkit.start()", f"labkit.start(devices={devices})") if devices else cell


def execute(notebook: nbformat.NotebookNode, folder: Path = NOTEBOOKS) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in a fresh kernel within its own time limit."""
    end = time.monotonic() + float(notebook.metadata["labkit"]["time_limit_s"])
    client = Client(
        notebook,
        timeout_func=lambda _: max(1, int(end - time.monotonic())),
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=kernel_environment())
    return stable(notebook)


def kernel_environment() -> dict[str, str]:
    """CPU only; figures stored both live and as a picture; this checkout's labkit."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    fixed = {"PLOTLY_RENDERER": "plotly_mimetype+png", "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TPU_SKIP_MDS_QUERY": "1", **fixed}


def stable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The executed notebook without what differs between two runs of the same code."""
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]  # progress: it holds times
    widgets = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    text = nbformat.writes(notebook)
    for number, model in enumerate(widgets):  # in the order in which the cells made them
        text = text.replace(model, f"{number:032x}")
    return nbformat.reads(text, as_version=4)


def is_stale(source: Path, target: Path) -> bool:
    """Whether `target` is missing, made from another source, or not executed to its end."""
    if not target.exists():
        return True
    stored = nbformat.read(target, as_version=4)
    ran = all(c.execution_count for c in stored.cells if c.cell_type == "code" and c.source.strip())
    return _identity(load(source)) != _identity(stored) or not ran


def _identity(notebook: nbformat.NotebookNode) -> list[tuple[Any, ...]]:
    cells = [(c.cell_type, c.source, tuple(c.metadata.get("tags", ())), c["id"]) for c in notebook.cells]
    return [(notebook.metadata.get("labkit"),), *cells]


def build(source: Path, target: Path) -> None:
    """Execute `source` and replace `target` when all of it ran."""
    began = time.monotonic()
    notebook = execute(load(source))
    nbformat.validate(notebook)
    fresh = target.with_suffix(".ipynb.new")
    nbformat.write(notebook, fresh)
    os.replace(fresh, target)
    print(f"{target.name}: {time.monotonic() - began:.0f} s, {target.stat().st_size / 1024:.0f} KiB")


def render(notebook: Path, folder: Path, theme: str = "light") -> Path:
    """A static page of a stored notebook that shows its widgets without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    _fetch_web_files(folder)
    exporter = HTMLExporter(
        theme=theme,
        require_js_url="require.js",
        widget_renderer_url="embed-amd.js",
        jupyter_widgets_base_url="",
        mathjax_url="",
        mermaid_js_url="",
        mermaid_layout_elk_js_url="",
    )
    page, _ = exporter.from_filename(str(notebook))
    target = folder / f"{notebook.stem}{'' if theme == 'light' else '-' + theme}.html"
    target.write_text(page.replace("</head>", f"<style>{PAGE_STYLE}</style></head>", 1), encoding="utf-8")
    return target


def _fetch_web_files(folder: Path) -> None:
    """Put the two scripts that draw stored widgets beside the pages, from npm."""
    for name, (package, member) in WEB_FILES.items():
        if (folder / name).exists():
            continue
        if not shutil.which("npm"):
            sys.exit("Static pages need npm once, for the scripts that draw stored widgets: install nodejs and npm.")
        with tempfile.TemporaryDirectory() as temporary:
            subprocess.run(["npm", "pack", "--silent", package], cwd=temporary, check=True, capture_output=True)
            with tarfile.open(next(Path(temporary).glob("*.tgz"))) as archive:
                script = archive.extractfile(f"package/{member}")
                assert script is not None
                (folder / name).write_bytes(script.read())


def shoot(page: Path, height: int = 1800) -> list[Path]:
    """Pictures of a page, 1280 px wide, cut into pieces of `height` that a person can look at."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        sys.exit("Pictures need Chromium: apt-get install chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1280, "height": height})
        view.goto(page.as_uri())
        view.wait_for_timeout(3000)  # widgets are drawn by scripts after the page is loaded
        total = view.evaluate("document.documentElement.scrollHeight")
        pictures = []
        for number, top in enumerate(range(0, total, height)):
            pictures.append(page.with_name(f"{page.stem}-{number:02d}.png"))
            area = {"x": 0, "y": top, "width": 1280, "height": min(height, total - top)}
            view.screenshot(path=pictures[-1], clip=area, full_page=True)
        browser.close()
    return pictures


def main() -> None:
    """Build, check, or render the notebooks whose name contains the given word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("name", nargs="?", default="", help="only notebooks whose name contains this")
    parser.add_argument("--check", action="store_true", help="exit 1 if a stored notebook is stale; runs nothing")
    parser.add_argument("--force", action="store_true", help="rebuild also what is not stale")
    parser.add_argument("--html", action="store_true", help="render the stored notebooks as pages under build/html")
    parser.add_argument("--shots", action="store_true", help="with --html: also pictures of the pages")
    parser.add_argument("--dark", action="store_true", help="with --html: JupyterLab's dark theme")
    options = parser.parse_args()
    pairs = [(s, NOTEBOOKS / f"{s.stem}.ipynb") for s in sorted(SOURCES.glob("*.py")) if options.name in s.stem]
    if options.html or options.shots:
        for _, target in pairs:
            page = render(target, HTML, "dark" if options.dark else "light")
            print(page, *(shoot(page) if options.shots else ()), sep="\n")
        return
    stale = [(s, t) for s, t in pairs if options.force or is_stale(s, t)]
    if options.check and stale:
        sys.exit("Stale: " + ", ".join(t.name for _, t in stale) + ". Rebuild with: make notebooks")
    for source, target in stale:
        build(source, target)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
