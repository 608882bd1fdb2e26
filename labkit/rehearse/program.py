"""What is rehearsed: a function with abstract arguments, built by a step in the worker process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from labkit.records import Record


@dataclasses.dataclass(frozen=True)
class Program:
    """A function and its arguments as `jax.ShapeDtypeStruct`s with shardings on the slice's mesh.

    `donated` are positions of arguments whose memory the outputs may take over. `tokens` is how many tokens one run
    handles on all chips together, padding included; `model_flops` the FLOPs that the mathematics needs, for MFU.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    tokens: int = 0
    model_flops: float = 0.0


@dataclasses.dataclass(frozen=True)
class Job(Record):
    """A compilation: which step, with which arguments, for which slice and mesh axes.

    `step` names a function `module:function` that makes a `Program` of a mesh and the arguments. `flags` are options
    of the TPU compiler by name, as `jax.jit(...).lower(...).compile(compiler_options=...)` takes them.
    """

    step: str
    arguments: dict[str, Any]
    slice: str
    axes: dict[str, int]
    flags: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        what = ", ".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.step.rpartition(':')[2]} ({what}) on {self.slice}, {axes}"
