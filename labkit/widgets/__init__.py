"""Faces of the library: each widget shows what a call returns, and computes nothing itself.

`adapter_size`, `checkpoint_tree`, `mesh_explorer`, `tensor_tracker`, `token_mask` and `who_holds_what` are widgets;
`Panel` is what they are made of. Each loads what it shows on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.widgets.adapters import adapter_size
    from labkit.widgets.frame import Panel
    from labkit.widgets.holders import who_holds_what
    from labkit.widgets.masks import token_mask
    from labkit.widgets.mesh import mesh_explorer
    from labkit.widgets.tensors import checkpoint_tree, tensor_tracker

__all__ = [
    "Panel",
    "adapter_size",
    "checkpoint_tree",
    "mesh_explorer",
    "tensor_tracker",
    "token_mask",
    "who_holds_what",
]

_HOMES = {
    "Panel": "frame",
    "adapter_size": "adapters",
    "checkpoint_tree": "tensors",
    "mesh_explorer": "mesh",
    "tensor_tracker": "tensors",
    "token_mask": "masks",
    "who_holds_what": "holders",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.widgets' has no attribute {name!r}")
    return getattr(importlib.import_module(f"labkit.widgets.{_HOMES[name]}"), name)
