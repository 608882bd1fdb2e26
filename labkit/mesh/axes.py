"""The sizes of mesh axes as users give them. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from labkit.errors import LabError


def axis_sizes(plan_or_axes: Any) -> dict[str, int]:
    """The size of each mesh axis, in order, of a plan, a mapping, pairs, or a text such as "fsdp=4,tp=2".

    Raises:
        LabError: an axis named twice or of no size, or no axis at all.
    """
    given: Any = getattr(plan_or_axes, "axes", plan_or_axes)
    if isinstance(given, str):
        given = [_pair(part) for part in given.split(",")]
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise LabError(f"Axis {twice[0]!r} is named twice in {plan_or_axes!r}.", hint="Give each axis one size.")
    if not pairs:
        raise LabError("A mesh needs at least one axis.", hint='For example {"fsdp": 4, "tp": 2}.')
    for name, size in pairs:
        if not isinstance(size, int) or size < 1:
            raise LabError(f"Axis {name!r} has size {size!r}.", hint="Give whole numbers of at least 1.")
    return dict(pairs)


def with_axes(axes: Any = None, **sizes: int | None) -> dict[str, int]:
    """The axes of `axes` and those given one by one; a size of None is none.

    Raises:
        LabError: an axis that is given in both ways.
    """
    named = {name: size for name, size in sizes.items() if size is not None}
    found = axis_sizes(axes) if axes else {}
    both = [name for name in named if name in found]
    if both:
        raise LabError(f"Axis {both[0]!r} is named twice.", hint="Give each axis one size.")
    return axis_sizes(found | named) if found or named else {}


def written(sizes: Mapping[str, int]) -> str:
    """Axes in words: "fsdp=4, tp=2"."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _pair(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name.strip() or not size.strip().isdigit():
        raise LabError(f"{text!r} is no mesh axis.", hint="Write axes as fsdp=4,tp=2.")
    return name.strip(), int(size)
