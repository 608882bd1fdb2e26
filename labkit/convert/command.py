"""One call for every conversion: what `labkit convert` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from labkit.convert.orbax import to_orbax
from labkit.convert.quantization import Scheme, quantize
from labkit.convert.result import Conversion
from labkit.convert.saving import to_hf, to_peft
from labkit.errors import LabError, nearest

TARGETS = ("hf", "peft", "orbax", "int8", "fp8")


def convert(source: str | Path, out: str | Path, to: str, **options: Any) -> Conversion:
    """Convert a checkpoint of any kind to `to`: "hf", "peft", "orbax", or a quantized directory "int8", "fp8".

    `options` are those of `to_hf`, `to_peft`, `to_orbax` and `quantize`; one that the target has no use for is an
    error, and None means its default.
    """
    if to not in TARGETS:
        raise LabError(f"There is no target {to!r}.", hint=f"Nearest: {nearest(to, TARGETS)}.")
    given = {name: value for name, value in options.items() if value not in (None, False)}
    takes = {"dtype": ("hf",), "max_shard": ("hf", "int8", "fp8")}
    for name, targets in takes.items():
        if name in given and to not in targets:
            raise LabError(f"--to {to} has no use for {name}={given[name]!r}.", hint="Leave it out.")
    if to == "hf":
        return to_hf(source, out, **given)
    if to == "peft":
        return to_peft(source, out, **given)
    if to == "orbax":
        return to_orbax(source, out, **given)
    return quantize(source, out, scheme=cast(Scheme, to), **given).conversion
