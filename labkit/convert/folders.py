"""Output folders that appear only when they are complete, and say what made them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import labkit
from labkit.errors import LabError

PROVENANCE = "provenance.json"
TOKENIZER = (
    "tokenizer.json tokenizer.model tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json "
    "merges.txt chat_template.jinja chat_template.json"
).split()
_LIBRARIES = ("jax", "google-tunix", "qwix", "orbax-checkpoint", "safetensors", "transformers")


@contextmanager
def new_folder(out: str | Path, kind: str, model: str) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes it when the block ends well; nothing is left if it does not.

    Args:
        out: a new or empty folder, or an earlier version of the same thing, which is replaced at the end.
        kind: what is made ("model" or "adapter").
        model: name of the model; together with `kind` it tells what is an earlier version.

    Raises:
        LabError: `out` holds something else, or could not be written.
    """
    target = Path(out)
    refuse_foreign(target, kind, model)
    folder = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        folder.chmod(0o755)
        yield folder
        _put_in_place(folder, target)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise LabError(
            f"{target} could not be written: {error.strerror or error}{where}.",
            hint="Free some space, or choose another folder.",
        ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def refuse_foreign(target: Path, kind: str, model: str) -> None:
    """A `LabError` when `target` exists and is neither empty nor an earlier version of the same thing."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    made = read_provenance(target)
    if (made.get("kind"), made.get("model")) != (kind, model):
        raise LabError(
            f"{target} is there already and is no earlier {kind} of {model}.",
            hint="Choose another folder, or remove it first.",
        )


def read_provenance(folder: Path) -> dict[str, Any]:
    """What `provenance.json` of a folder says; empty where there is none."""
    try:
        found = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_provenance(folder: Path, kind: str, model: str, about: dict[str, Any]) -> None:
    """Say in the folder what made it: kind, model, versions of the libraries, and whatever `about` adds."""
    write_json(folder / PROVENANCE, provenance(kind, model, about))


def provenance(kind: str, model: str, about: dict[str, Any]) -> dict[str, Any]:
    """What `write_provenance` writes."""
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES} | {"labkit": labkit.__version__}
    return {"kind": kind, "model": model} | about | {"versions": versions}


def write_json(path: Path, value: Any) -> None:
    """One JSON file, readable."""
    path.write_text(to_json(value), encoding="utf-8")


def to_json(value: Any) -> str:
    """JSON text, readable."""
    return json.dumps(value, indent=1) + "\n"


def _put_in_place(folder: Path, target: Path) -> None:
    """A folder cannot replace a full one in a single step: the earlier version steps aside first."""
    if not target.exists():
        os.replace(folder, target)
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
    os.replace(target, aside)
    try:
        os.replace(folder, target)
    except OSError:
        os.replace(aside, target)
        raise
    shutil.rmtree(aside)
