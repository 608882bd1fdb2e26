"""The linears of a live Tunix model. What they are, and what a target means, is in `labkit.models.linears`."""

from __future__ import annotations

from typing import Any

from flax import nnx

from labkit.errors import LabError
from labkit.models.linears import GROUPS, ROLE_OF, ROLES, Linear, missed, select

__all__ = ["GROUPS", "ROLES", "Linear", "linears", "missed", "select"]


def linears(model: nnx.Module) -> tuple[Linear, ...]:
    """Every linear of the layers of a Tunix model (also an abstract one), in order of layer and name."""
    sharing = getattr(model, "kv_cache_sharing_patterns", None)
    found = []
    for path, module in nnx.iter_modules(model):
        if len(path) >= 3 and path[0] == "layers" and path[-1] in ROLE_OF:
            borrowed = sharing is not None and sharing[path[1]] != path[1]
            found.append(_linear(path, module, borrowed))
    if not found:
        raise LabError(f"{type(model).__name__} has no linears that labkit knows.", hint="Use a Gemma, Qwen or Llama.")
    return tuple(sorted(found, key=lambda linear: (linear.layer, linear.path)))


def _linear(path: tuple[Any, ...], module: Any, borrowed: bool) -> Linear:
    role = ROLE_OF[path[-1]]
    is_einsum = hasattr(module, "einsum_str")
    weight = "w" if is_einsum else "kernel"
    shape = tuple(getattr(module, weight).shape)
    contracted: tuple[int, ...] = (0,)
    remaining: tuple[int, ...] = (1,)
    if is_einsum:
        lhs, rhs = module.einsum_str.replace(" ", "").split("->")[0].split(",")
        contracted = tuple(i for i, letter in enumerate(rhs) if letter in lhs)
        remaining = tuple(i for i, letter in enumerate(rhs) if letter not in lhs)
    name = "/".join(map(str, path))
    return Linear(name, role, weight, shape, contracted, remaining, is_einsum, not (borrowed and role == "kv"))
