"""Where the files of `data/` are: the checkout's folder, or the copy inside an installed wheel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.errors import LabError

_PACKAGE = Path(__file__).resolve().parent


def data_dir() -> Path:
    """The folder that holds `hardware.json`, `models/` and the rest."""
    for folder in (_PACKAGE.parent / "data", _PACKAGE / "_data"):
        if (folder / "hardware.json").is_file():
            return folder
    raise LabError(
        "labkit's data folder is missing: neither data/ of a checkout nor labkit/_data of a wheel was found.",
        hint="Reinstall tpu-labkit, or run from a complete checkout.",
    )


def path(*parts: str) -> Path:
    """The path of one file or folder of `data/`; a `LabError` if it does not exist."""
    found = data_dir().joinpath(*parts)
    if not found.exists():
        raise LabError(
            f"data/{'/'.join(parts)} does not exist.",
            hint="It ships with labkit: reinstall, or check the checkout.",
        )
    return found


def load_json(*parts: str) -> Any:
    """The parsed content of a JSON file of `data/`."""
    return json.loads(path(*parts).read_text(encoding="utf-8"))
