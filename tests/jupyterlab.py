"""A real JupyterLab on loopback, and Chromium looking at it, for the tests of widgets."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
# No sandbox: a container's root has none. The others keep the browser off the network and quiet.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'
START_S, RUN_S = 120, 300


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def jupyterlab(root: Path, private: Path) -> Iterator[str]:
    """A JupyterLab over `root`, with all its own files in `private`; gives the address with `{}` for a path."""
    settings = private / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(NO_NEWS)
    port, token = _free_port(), secrets.token_hex(16)
    folders = {f"JUPYTER{kind}_DIR": str(private / kind.strip("_").lower()) for kind in
               ("_CONFIG", "_DATA", "_RUNTIME", "LAB_WORKSPACES")}  # fmt: skip
    env = os.environ | folders | {"JUPYTERLAB_SETTINGS_DIR": str(private / "settings"), "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = str(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
               "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}",
               "--LabApp.extension_manager=readonly"]  # fmt: skip
    log = private / "lab.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}/api/status?token={token}", log)
        yield f"http://127.0.0.1:{port}/lab/tree/{{}}?reset&token={token}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # its kernels too
        process.wait(30)


def notebook(path: Path, *cells: str) -> None:
    """A notebook of code cells."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, path)


class Page:
    """A notebook in the browser. `errors` are JavaScript's, `strangers` the addresses asked for beyond this machine."""

    def __init__(self, chromium: Any, address: str) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.page = chromium.new_context(viewport={"width": 1300, "height": 2400}).new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))
        self.page.goto(address)

    def _note(self, url: str) -> None:
        if not re.match(r"(http|ws)s?://127\.0\.0\.1|data:|blob:|file:", url):
            self.strangers.append(url)

    def run_all(self) -> None:
        """Run every cell, and wait until the kernel is idle."""
        page = self.page
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=1000 * START_S)
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=1000 * START_S)
        page.click(".jp-Notebook .jp-Cell >> nth=0")
        page.click("li.lm-MenuBar-item:has-text('Run')")
        page.click("li.lm-Menu-item[data-command='runmenu:run-all']")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
            ".every(e => /\\[\\d+\\]/.test(e.textContent))",
            timeout=1000 * RUN_S,
        )
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=1000 * RUN_S)

    def cell(self, index: int) -> Any:
        """A code cell, scrolled into view: JupyterLab draws only what is seen."""
        found = self.page.locator(".jp-CodeCell").nth(index)
        found.scroll_into_view_if_needed()
        return found

    def title(self, index: int) -> str:
        """The title of a cell's figure, once it is drawn."""
        self.cell(index).locator(".gtitle").first.wait_for(timeout=1000 * START_S)
        return str(self.cell(index).locator(".gtitle").first.text_content())

    def text(self, index: int) -> str:
        """What a cell's answer says, once it says something."""
        self.cell(index).locator(".jp-OutputArea-output").first.wait_for(timeout=1000 * START_S)
        return str(self.cell(index).locator(".jp-Cell-outputArea").inner_text())

    def drawn(self, index: int) -> int:
        """How many figures a cell shows."""
        return int(self.cell(index).locator(".js-plotly-plot").count())

    def choose(self, index: int, option: str, dropdown: int = 0) -> None:
        """Choose from a list of a cell."""
        self.cell(index).locator("select").nth(dropdown).select_option(label=option)

    def press(self, index: int, key: str, slider: int = 0) -> None:
        """Focus a slider of a cell and press a key."""
        self.cell(index).locator(".noUi-handle").nth(slider).focus()
        self.page.keyboard.press(key)

    def wait_for_title(self, index: int, change_from: str) -> str:
        """The title of a cell's figure after it has become another."""
        self.page.wait_for_function(
            "([i, old]) => { const t = document.querySelectorAll('.jp-CodeCell')[i].querySelector('.gtitle');"
            " return t && t.textContent !== old }",
            arg=[index, change_from],
            timeout=1000 * START_S,
        )
        return self.title(index)

    def wait_for_text(self, index: int, change_from: str) -> str:
        """What a cell's answer says after it has changed."""
        end = time.monotonic() + START_S
        while self.text(index) == change_from:
            if time.monotonic() > end:
                raise TimeoutError(f"Cell {index} still says: {change_from[:200]}")
            time.sleep(0.1)
        return self.text(index)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1)
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")
