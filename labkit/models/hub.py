"""Where a model's files are: a folder, labkit's own data, or the Hugging Face cache."""

from __future__ import annotations

import os
from pathlib import Path

from labkit import resources
from labkit.errors import LabError, nearest
from labkit.models import registry
from labkit.models.spec import ModelSpec

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def locate(name_or_directory: str | os.PathLike[str]) -> tuple[Path, ModelSpec | None]:
    """The directory that holds a model's files, and its registry spec if it was asked for by name.

    A path never touches the network. A registry name is looked for in labkit's data (the tiny models), then in the
    Hugging Face cache, then downloaded.

    Raises:
        LabError: neither a directory nor a name; a gated, missing or failed download (with what to do).
    """
    given = os.fspath(name_or_directory)
    if Path(given).is_dir():
        return Path(given), None
    if given not in registry.names():
        looks_like_path = isinstance(name_or_directory, os.PathLike) or os.sep in given or given.startswith(".")
        what = f"There is no directory {given}." if looks_like_path else f"There is no model or directory {given!r}."
        raise LabError(what, hint=f"Nearest model names: {nearest(given, registry.names())}.")
    spec = registry.get(given)
    if spec.hub_id is None:
        return resources.path("models", spec.name), spec
    return _snapshot(spec, spec.hub_id), spec


def _snapshot(spec: ModelSpec, hub_id: str) -> Path:
    import httpx
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=_FILES, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        pass  # not in the cache: ask the hub
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=_FILES))
    except errors.GatedRepoError as error:
        raise LabError(f"{hub_id} is gated: {spec.licence} licence.", hint=_how_to_unlock(hub_id)) from error
    except errors.RepositoryNotFoundError as error:
        raise LabError(f"{hub_id} was not found, or needs a login.", hint=_how_to_unlock(hub_id)) from error
    except (
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        httpx.HTTPError,
        OSError,
    ) as error:
        raise LabError(
            f"{hub_id} is not in the Hugging Face cache and could not be downloaded ({type(error).__name__}).",
            hint=f"Go online and run `hf download {hub_id}`, unset HF_HUB_OFFLINE, or pass a local directory; "
            "tiny-gemma4 needs no download.",
        ) from error


def _how_to_unlock(hub_id: str) -> str:
    return (
        f"Accept the licence at https://huggingface.co/{hub_id}, make a read token at "
        "https://huggingface.co/settings/tokens, then run `hf auth login` or set HF_TOKEN."
    )
