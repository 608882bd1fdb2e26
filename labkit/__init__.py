"""labkit: fine-tune, compress, convert and serve large language models on TPUs, and know beforehand.

``import labkit`` is cheap: a submodule is loaded when it is first used, and JAX only when a function needs it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.runtime import Runtime

__version__ = "0.1.0"


def start(scale: str | None = None, *, devices: int | None = None, model: str | None = None) -> Runtime:
    """Set up this process for a lab; see `labkit.runtime.start`."""
    from labkit import runtime

    return runtime.start(scale, devices=devices, model=model)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in __dir__():
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return importlib.import_module(f"labkit.{name}")


def __dir__() -> list[str]:
    modules = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}
    return sorted(modules | {"start", "__version__"})
