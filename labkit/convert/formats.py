"""Which kind of checkpoint a path is, by the names of its files. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from labkit.errors import LabError

Kind = Literal["hf", "safetensors", "peft", "orbax", "gguf"]
REMOTE = ("gs://", "memory://")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_ORBAX = ("_METADATA", "_CHECKPOINT_METADATA", "checkpoints", "train", "state")


def kind_of(path: str | Path) -> Kind:
    """What is at a path; a registry name and anything unknown count as "hf", whose reader says what is wrong.

    Raises:
        LabError: a pickled file, which is never read.
    """
    if str(path).startswith(REMOTE):
        return "orbax"
    place = Path(path)
    if place.is_file():
        return _file(place)
    if (place / "adapter_config.json").is_file():
        return "peft"
    if any(place.glob("*.safetensors")) or any(place.glob("*.safetensors.index.json")):
        return "hf"
    if any((place / name).exists() for name in _ORBAX) or _has_orbax_child(place):
        return "orbax"
    if any(place.glob("*.gguf")):
        return "gguf"
    return "hf"


def _file(path: Path) -> Kind:
    if path.suffix == ".gguf":
        return "gguf"
    if path.suffix in PICKLES:
        raise LabError(
            f"{path} is pickled: reading it would run whatever code is in it, so labkit never does.",
            hint="Get the checkpoint as safetensors, or save it so with the program that trusts it.",
        )
    return "safetensors"


def _has_orbax_child(place: Path) -> bool:
    """A folder of steps, or a step whose own metadata is missing."""
    return place.is_dir() and any((child / name).exists() for child in place.iterdir() for name in _ORBAX[:2])
