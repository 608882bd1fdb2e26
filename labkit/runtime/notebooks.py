"""Where the course's notebooks are, and JupyterLab on them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import labkit
from labkit.errors import LabError, nearest
from labkit.records import Record
from labkit.runtime.hosted import importable


@dataclass(frozen=True)
class Notebooks(Record):
    """The notebooks of this checkout, and the command that opens them (or the one that was asked for)."""

    folder: str
    names: tuple[str, ...]
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.names)} notebooks in {self.folder}: {', '.join(self.names)}"


def notebooks(name: str = "", *, port: int = 0) -> Notebooks:
    """Find the notebooks, and the command that opens the one whose name contains `name`, on `port` (0: a free one).

    Raises `LabError` where there is no checkout, no such notebook, or no JupyterLab.
    """
    folder = Path(labkit.__file__).resolve().parent.parent / "notebooks"
    names = tuple(sorted(file.stem for file in folder.glob("*.ipynb")))
    if not names:
        raise LabError("The notebooks are not in the installed package.", hint="Clone the repository; then make lab.")
    found = [n for n in names if name in n]
    if not found:
        raise LabError(f"There is no notebook {name!r}.", hint=f"Nearest: {nearest(name, names)}.")
    if not importable("jupyterlab"):
        raise LabError("JupyterLab is not installed.", hint="Run: make env")
    target = folder / f"{found[0]}.ipynb" if name else folder
    options = (f"--ServerApp.port={port}",) if port else ()
    return Notebooks(str(folder), names, (sys.executable, "-m", "jupyterlab", str(target), *options))


def open_lab(found: Notebooks) -> int:
    """Run JupyterLab until the user ends it. Returns its exit code."""
    return subprocess.run(found.command).returncode
