"""Between Tunix's layout and Hugging Face's, by one table, with nothing lost.

`to_hf` writes a model (its adapters merged) as a directory that Transformers, vLLM and labkit load, `to_peft` its
adapters alone, `to_orbax` all of it as an Orbax checkpoint; `from_hf`, `from_peft` and `from_orbax` are the ways back,
`load` takes any of them. `verify` compares two checkpoints, `inspect` says what is in one without loading it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.convert.command import convert
    from labkit.convert.documentation import LayoutTable, Trace, table, trace
    from labkit.convert.inspection import Inspection, inspect
    from labkit.convert.loading import from_orbax, load, restore_optimizer
    from labkit.convert.merging import MergedLinear, MergeReport
    from labkit.convert.orbax import to_orbax
    from labkit.convert.peft import from_peft
    from labkit.convert.quantization import Quantization, quantize
    from labkit.convert.result import Conversion
    from labkit.convert.saving import to_hf, to_peft
    from labkit.convert.verification import Verification, verify
    from labkit.models.layout import TABLES, Row, Rule, rows
    from labkit.models.loading import load as from_hf

_HOMES = {
    "command": "convert",
    "documentation": "LayoutTable Trace table trace",
    "inspection": "Inspection inspect",
    "loading": "from_orbax load restore_optimizer",
    "merging": "MergeReport MergedLinear",
    "orbax": "to_orbax",
    "peft": "from_peft",
    "quantization": "Quantization quantize",
    "result": "Conversion",
    "saving": "to_hf to_peft",
    "verification": "Verification verify",
}
_LAZY = {name: f"labkit.convert.{home}" for home, names in _HOMES.items() for name in names.split()}
_LAZY |= dict.fromkeys(("TABLES", "Row", "Rule", "rows"), "labkit.models.layout")

__all__ = [
    "TABLES",
    "Conversion",
    "Inspection",
    "LayoutTable",
    "MergeReport",
    "MergedLinear",
    "Quantization",
    "Row",
    "Rule",
    "Trace",
    "Verification",
    "convert",
    "from_hf",
    "from_orbax",
    "from_peft",
    "inspect",
    "load",
    "quantize",
    "restore_optimizer",
    "rows",
    "table",
    "to_hf",
    "to_orbax",
    "to_peft",
    "trace",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "from_hf":
        return importlib.import_module("labkit.models.loading").load
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'labkit.convert' has no attribute {name!r}")
