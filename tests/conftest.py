"""Tests whose other side is not installed are skipped, and say so. The environment is set in ../conftest.py."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the parity tests, and say why, where their other side is not installed."""
    missing = [name for name in ("torch", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"parity needs {' and '.join(missing)}: make torch"
        for item in items:
            if item.get_closest_marker("parity"):
                item.add_marker(pytest.mark.skip(reason=reason))
