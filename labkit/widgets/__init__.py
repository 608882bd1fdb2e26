"""Faces of the library: each widget shows what a call returns, and computes nothing itself."""

from __future__ import annotations

from labkit.widgets.frame import Panel

__all__ = ["Panel"]
