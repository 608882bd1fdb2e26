"""Hosted notebooks: what the first cell does on Colab, and where checkpoints go so that a new runtime finds them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from labkit.errors import LabError

DISTRIBUTION = "tpu-labkit"
FIRST_CELL = f'''\
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("labkit") is None:  # on Colab: labkit alone comes first, the runtime keeps its JAX
    source = os.environ.get("LABKIT_SOURCE", "{DISTRIBUTION}")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", source], check=True)

import labkit

here = labkit.start()
'''
_KEPT = re.compile(r"(jax|jaxlib|libtpu|torch|numpy|ml-dtypes|jax-cuda.*|nvidia-.*)\Z")


def on_colab() -> bool:
    """Whether this is a Colab runtime."""
    return "google.colab" in sys.modules or importable("google.colab")


def prepare_colab() -> tuple[str, ...]:
    """Install what labkit needs and this runtime lacks, iverilog included; JAX stays as it is.

    Only requirements that are missing or out of range are installed, and pip is told to keep jax, jaxlib, libtpu, torch
    and numpy at the versions that are there. Returns what was installed. A failed install is a `LabError`.
    """
    wanted = missing_requirements()
    if wanted:
        _pip_install(wanted)
    if not shutil.which("iverilog"):
        _run(["apt-get", "install", "-y", "-qq", "iverilog"], "Icarus Verilog")
        wanted = (*wanted, "iverilog")
    return wanted


def missing_requirements() -> tuple[str, ...]:
    """labkit's own requirements that this environment does not meet, as pip takes them."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a checkout: whoever made its environment has seen to them
        return ()
    requirements = [Requirement(line) for line in lines]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return tuple(str(r) for r in needed if not _met(r.name, r.specifier))


def checkpoint_dir(name: str, root: str | os.PathLike[str] | None = None) -> str:
    """Where the checkpoints of `name` go, so that a later run finds them there.

    Args:
        name: of the run, a folder's name.
        root: a folder, `gs://bucket/folder`, or `drive` for the Google Drive of a Colab user, which is mounted.
            Default: the environment variable LABKIT_CHECKPOINTS, else `runs` here.

    Raises `LabError` for `drive` where there is no Colab, and for a folder that cannot be made.
    """
    place = os.fspath(root or os.environ.get("LABKIT_CHECKPOINTS") or "runs")
    if "://" in place:
        return f"{place.rstrip('/')}/{name}"
    folder = (_mount_drive() if place == "drive" else Path(place)) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"The checkpoint folder {folder} cannot be made: {error.strerror}.", hint="Choose another."
        ) from None
    return str(folder)


def _mount_drive() -> Path:
    if not on_colab():
        raise LabError("Checkpoints on 'drive' need Colab.", hint="Here, give a folder or gs://bucket/folder.")
    from google.colab import drive  # type: ignore[import-not-found]

    drive.mount("/content/drive")
    return Path("/content/drive/MyDrive/labkit")


def _met(name: str, specifier: object) -> bool:
    try:
        return specifier.contains(metadata.version(name), prereleases=True)  # type: ignore[attr-defined]
    except metadata.PackageNotFoundError:
        return False


def _kept() -> list[str]:
    found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
    return [f"{name}=={version}" for name, version in sorted(found.items()) if _KEPT.match(name)]


def _pip_install(requirements: tuple[str, ...]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(_kept()) + "\n")
        file.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", file.name]
        _run([*pip, *requirements], "labkit's requirements, with this runtime's JAX kept,")


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise LabError(f"{what} could not be installed: {error}.", hint=f"Run: {' '.join(command)}") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise LabError(f"{what} could not be installed: {last}.", hint=f"Run: {' '.join(command)}")


def importable(module: str) -> bool:
    """Whether a module is there, without importing it (its parents are)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # a parent is missing; a module that was put together by hand
        return False
