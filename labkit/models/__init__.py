"""Models by name: specs without JAX, and on demand the Tunix model with its tokenizer.

`get`, `names`, `spec_from_config` and `abstract_state` need only the standard library.
`config`, `abstract`, `partition` and `load` import JAX and Tunix when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from labkit.models.hf_config import spec_from_config
from labkit.models.registry import get, names
from labkit.models.spec import ModelSpec
from labkit.models.states import Param, abstract_state

if TYPE_CHECKING:
    from labkit.models.building import abstract, config
    from labkit.models.loading import Loaded, load
    from labkit.models.sharding import partition

_LAZY = {
    "abstract": "building",
    "config": "building",
    "load": "loading",
    "Loaded": "loading",
    "partition": "sharding",
}

__all__ = [
    "Loaded",
    "ModelSpec",
    "Param",
    "abstract",
    "abstract_state",
    "config",
    "get",
    "load",
    "names",
    "partition",
    "spec_from_config",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"labkit.models.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'labkit.models' has no attribute {name!r}")
