"""Write the exact versions of an environment: its constraints file and the copy that `labkit doctor` compares with.

    .venv/bin/python scripts/pin_versions.py         # constraints/pyXY.txt, and data/tested_versions.json
    .venv/bin/python scripts/pin_versions.py --data  # only data/tested_versions.json, from the constraints

torch is not written: it has a file of its own, constraints/torch.txt, because only a CPU build of it is wanted.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS, TESTED = ROOT / "constraints", ROOT / "data" / "tested_versions.json"
LEFT_OUT = re.compile(r"(tpu-labkit|torch|torchvision|torchaudio|triton|pip|setuptools|wheel|uv|nvidia-.*|cuda-.*)\Z")


def normal(name: str) -> str:
    """A distribution's name as the packaging guide normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Name and version of every distribution of this environment that is pinned, without local version labels."""
    found = {normal(d.metadata["Name"]): d.version.partition("+")[0] for d in metadata.distributions()}
    return {name: found[name] for name in sorted(found) if not LEFT_OUT.match(name)}


def read(path: Path) -> dict[str, str]:
    """Name and version of each line of a constraints file."""
    return dict(line.split("==") for line in path.read_text().split())


def direct() -> set[str]:
    """The distributions that pyproject.toml names itself, those of its extras included."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for lines in lists for line in lines}  # type: ignore[index]


def tested() -> dict[str, dict[str, str]]:
    """By Python version, the tested version of what pyproject.toml names and of what decides a result beside that."""
    wanted = direct() | {"jaxlib", "libtpu"}
    torch = read(CONSTRAINTS / "torch.txt")
    files = {f"3.{path.stem.removeprefix('py3')}": read(path) for path in sorted(CONSTRAINTS.glob("py3*.txt"))}
    return {python: {n: v for n, v in sorted((pins | torch).items()) if n in wanted} for python, pins in files.items()}


def main() -> None:
    """Write the files."""
    if "--data" not in sys.argv[1:]:
        path = CONSTRAINTS / f"py{sys.version_info.major}{sys.version_info.minor}.txt"
        path.write_text("".join(f"{name}=={version}\n" for name, version in installed().items()))
    TESTED.write_text(json.dumps(tested(), indent=1) + "\n")


if __name__ == "__main__":
    main()
