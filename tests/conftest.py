"""Tests whose other side is not installed are skipped, and say so. The environment is set in ../conftest.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SERVE = Path(__file__).resolve().parents[1] / ".venv-serve" / "bin" / "python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests whose other side is not installed, and say why."""
    missing = [name for name in ("torch", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"parity needs {' and '.join(missing)}: make torch"
        for item in items:
            if item.get_closest_marker("parity"):
                item.add_marker(pytest.mark.skip(reason=reason))
    if not (SERVE.parents[1] / ".labkit-stamp").is_file():
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(pytest.mark.skip(reason="vllm needs its own environment: make serve-env"))
