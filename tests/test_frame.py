"""The frame: imports point down, importing is cheap, and the files that list dependencies agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import labkit

ROOT = Path(__file__).resolve().parents[1]
# Floors of the house, lowest first; modules of one floor are listed in the order in which they may use each other.
FLOORS = [
    "errors records resources progress plots hardware compat runtime",
    "models data mesh rehearse",
    "lora",
    "convert evaluate",
    "sft",
    "doctor",
    "pipeline exercises widgets",
    "cli",
]
ORDER = {name: i for i, floor in enumerate(FLOORS) for name in floor.split()}
FIXED = {"jupyterlab", "jax", "flax", "optax", "google-tunix", "qwix", "orbax-checkpoint", "grain", "ipywidgets",
         "plotly", "nbval"}  # fmt: skip


def room(path: Path) -> str:
    return path.relative_to(ROOT / "labkit").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms of labkit that a file imports, wherever in it, but for type checking alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module == "labkit":
            found |= {alias.name for alias in node.names}
        elif node.module.startswith("labkit."):
            found.add(node.module.split(".")[1])
    return found & set(ORDER)


FILES = [p for p in sorted((ROOT / "labkit").rglob("*.py")) if p.parent != ROOT / "labkit" or p.stem != "__init__"]


def test_every_room_has_a_floor():
    assert {room(p) for p in FILES if "_data" not in p.parts} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "labkit")))
def test_imports_point_down(path):
    above = {name for name in imports(path) if ORDER[name] > ORDER[room(path)]}
    assert not above


def test_importing_is_cheap_and_brings_no_jax():
    code = "import sys, labkit, labkit.errors, labkit.hardware, labkit.models; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_no_public_function_has_the_name_of_a_submodule():
    functions = {name for name, value in vars(labkit).items() if callable(value) and not name.startswith("_")}
    assert functions == {"start"} | ({"Any"} & functions)
    assert "runtime" in dir(labkit) and "start" not in ORDER


def test_an_unknown_submodule_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        labkit.nonsense  # noqa: B018


def requirements(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=\[;! ]", line)[0].lower().replace("_", "-") for line in lines}


def test_conda_and_pip_list_the_fixed_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    everything = requirements(project["dependencies"] + project["optional-dependencies"]["dev"])
    assert everything >= FIXED
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    listed = requirements([entry for entry in conda if isinstance(entry, str)] + pip)
    assert listed >= FIXED


@pytest.mark.parametrize("name", ["py311.txt", "py312.txt"])
def test_constraints_are_names_and_versions(name):
    lines = (ROOT / "constraints" / name).read_text().split("\n")
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+|#.*|", line) for line in lines)


def test_the_example_of_the_readme_runs():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code and len(code[1].split("\n")) <= 8
    done = subprocess.run([sys.executable, "-c", code[1]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "rank" in done.stdout, done.stderr[-500:]
