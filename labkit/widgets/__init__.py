"""Faces of the library: each widget shows what a call returns, and computes nothing itself."""

from __future__ import annotations

from labkit.widgets.adapters import adapter_size
from labkit.widgets.frame import Panel
from labkit.widgets.masks import token_mask

__all__ = ["Panel", "adapter_size", "token_mask"]
