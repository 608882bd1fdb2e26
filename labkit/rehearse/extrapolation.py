"""A deep model from a few shallow ones: what each kind of layer adds to memory and time, times how many there are.

Every quantity of a report is taken as a constant plus a share for each local and each global layer. Three shallow
models (two where all layers are of one kind) decide the three. It holds where the layers are unrolled and alike, as
here; what the compiler only does to a deep model (buffers that it moves, prefetches that it drops) is not seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from labkit import hardware, models
from labkit.errors import LabError
from labkit.models import ModelSpec
from labkit.rehearse.rehearsal import axes_for, rehearse
from labkit.rehearse.report import Report
from labkit.rehearse.timing import Moved

# Local and global layers of the shallow models. Tunix's Gemma 3 has a fixed pattern: there its first layers are taken.
_MIXED = ((1, 1), (2, 1), (1, 2))
_ALIKE = ((2,), (3,))
_FIRST = ((4,), (5,), (6,))
_LINEAR = ("cycles", "compute_seconds", "exposed_seconds", "flops", "hbm_bytes", "model_flops", "hbm_peak",
           "scheduled_peak", "offloads")  # fmt: skip
_Count = tuple[int, int]  # local and global layers
_Mix = Callable[[Iterable[float]], float]


def extrapolate(
    step: str, model: str, slice: str, *, axes: Mapping[str, int] | str | None = None, **options: Any
) -> Report:
    """The report of a whole model from rehearsals of shallow ones; `options` are those of `rehearse`.

    The mesh is that of the whole model. What has no meaning for it is empty: instructions and buffers.

    Raises:
        LabError: as `rehearse`, and where a shallow model does not compile: then the whole one does not either.
    """
    spec = models.get(model)
    shapes = _shapes(spec)
    chosen = axes_for(step, slice, axes, {"model": model, **options})
    shallow = [rehearse(step, model, slice, axes=chosen, layers=list(layers), **options) for layers in shapes]
    for layers, report in zip(shapes, shallow, strict=True):
        if not report.compiles:
            raise LabError(
                f"{model} with {_named(layers)} layers does not run: {report.verdict}.",
                hint="The whole model is larger: change the mesh, the batch or the recipe.",
            )
    return _report(spec, shapes, shallow)


def _shapes(spec: ModelSpec) -> tuple[tuple[int, ...], ...]:
    if len(set(spec.layer_types)) == 1:
        return _ALIKE
    return _FIRST if spec.family == "gemma3" else _MIXED


def _named(layers: Sequence[int]) -> str:
    return "+".join(map(str, layers))


def _counts(kinds: Sequence[str]) -> _Count:
    return kinds.count("local"), kinds.count("global")


def weights(shallow: Sequence[_Count], whole: _Count) -> list[float]:
    """How much each shallow model counts, so that a constant and both kinds of layer come out right.

    Raises:
        LabError: shallow models that do not tell the kinds of the whole apart.
    """
    rows = np.array([(1, *counts) for counts in shallow], float).T
    found, *_ = np.linalg.lstsq(rows, np.array((1, *whole), float), rcond=None)
    if not np.allclose(rows @ found, (1, *whole)):
        raise LabError(f"Layers {whole} do not follow from {list(shallow)}.", hint="Give shallow models that differ.")
    return [float(x) for x in found]


def _report(spec: ModelSpec, shapes: Sequence[Sequence[int]], shallow: Sequence[Report]) -> Report:
    mixed = _mixer(spec, shapes)
    first = shallow[0]
    found: dict[str, Any] = {name: _one(mixed, shallow, name) for name in _LINEAR}
    held = {name: round(mixed(r.bytes_per_chip[name] for r in shallow)) for name in first.bytes_per_chip}
    held["limit"] = first.bytes_per_chip["limit"]
    return dataclasses.replace(
        first,
        job=dataclasses.replace(first.job, arguments={k: v for k, v in first.job.arguments.items() if k != "layers"}),
        bytes_per_chip=held,
        fits=held["total"] <= held["limit"],
        **found,
        **_rates(first, found),
        collectives=_collectives(mixed, shallow),
        cycles_by_kind=_kinds(mixed, shallow),
        top=(),
        largest=(),
        lower_seconds=sum(r.lower_seconds for r in shallow),
        compile_seconds=sum(r.compile_seconds for r in shallow),
        worker_peak_rss_bytes=max(r.worker_peak_rss_bytes for r in shallow),
        replayed=all(r.replayed for r in shallow),
        note=f"extrapolated from {', '.join(_named(layers) for layers in shapes)} layers",
    )


def _mixer(spec: ModelSpec, shapes: Sequence[Sequence[int]]) -> _Mix:
    """What makes of a quantity of the shallow models that of the whole one."""
    share = weights([_counts(spec.cut(*layers).layer_types) for layers in shapes], _counts(spec.layer_types))
    return lambda values: sum(s * value for s, value in zip(share, values, strict=True))


def _one(mixed: _Mix, shallow: Sequence[Report], name: str) -> float | int | None:
    values = [getattr(report, name) for report in shallow]
    if None in values:
        return None
    return round(mixed(values)) if isinstance(values[0], int) else mixed(values)


def _rates(first: Report, found: dict[str, Any]) -> dict[str, Any]:
    if found["compute_seconds"] is None or found["exposed_seconds"] is None:
        return {"step_seconds": None}
    step, of = found["compute_seconds"] + found["exposed_seconds"], hardware.slice(first.slice)
    peak = of.chip.peak_flops["bf16"] * of.chips * step
    return {
        "step_seconds": step,
        "tokens_per_second": first.tokens / step if first.tokens else None,
        "mfu": found["model_flops"] / peak if found["model_flops"] else None,
        "hfu": found["flops"] * of.chips * of.chip.compiler_devices / peak,
    }


def _collectives(mixed: _Mix, shallow: Sequence[Report]) -> tuple[Moved, ...]:
    groups = dict.fromkeys((c.axes, c.kind) for report in shallow for c in report.collectives)
    return tuple(_moved(mixed, shallow, *group) for group in groups)


def _moved(mixed: _Mix, shallow: Sequence[Report], axes: tuple[str, ...], kind: str) -> Moved:
    some = [[c for c in report.collectives if (c.axes, c.kind) == (axes, kind)] for report in shallow]

    def total(name: str) -> float | None:
        values = [[getattr(c, name) for c in found] for found in some]
        return None if any(None in one for one in values) else mixed(map(sum, values))

    count, overlapped, size = (round(total(name) or 0) for name in ("count", "overlapped", "bytes"))
    return Moved(axes, kind, count, overlapped, size, total("seconds"), total("exposed"))


def _kinds(mixed: _Mix, shallow: Sequence[Report]) -> dict[str, int]:
    names = dict.fromkeys(name for report in shallow for name in report.cycles_by_kind)
    found = {name: round(mixed(report.cycles_by_kind.get(name, 0) for report in shallow)) for name in names}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
