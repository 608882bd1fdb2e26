"""Rehearse a step: compile what would run on a slice, for that slice, on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit import mesh as meshes
from labkit.errors import LabError, nearest
from labkit.records import Record
from labkit.rehearse import cache, costs, liveness, reading
from labkit.rehearse.compiling import Tell, compile_in_worker, pickled
from labkit.rehearse.program import Job
from labkit.rehearse.report import Report

# Steps by name: what makes the program, and the planner's objective that chooses its axes where none are given.
STEPS: dict[str, tuple[str, str]] = {
    "lora_sft": ("labkit.sft.steps:lora_sft", "train_lora"),
    "full_sft": ("labkit.sft.steps:full_sft", "train_full"),
    "matmul": ("labkit.rehearse.products:matmul", ""),
}
_MOMENTS = 2000  # of a stored schedule
_PLANNED = ("rank", "targets", "remat", "accumulation", "loss_chunk", "dtype")  # what the planner also wants to know


def rehearse(
    step: str | Callable[..., Any],
    model: str | None = None,
    slice: str = "",
    *,
    plan: meshes.MeshPlan | None = None,
    axes: Mapping[str, int] | str | None = None,
    recipe: Record | None = None,
    flags: Mapping[str, str] | None = None,
    use_cache: bool = True,
    timeout: float = 3600,
    memory: int | None = None,
    tell: Tell = lambda stage: None,
    **arguments: Any,
) -> Report:
    """Compile a step for a slice with the real TPU compiler, in a process of its own, and read what it made.

    Args:
        step: a name of `STEPS`, or a function `(mesh, **arguments) -> Program`.
        model: a registry name, for steps that take one.
        slice: such as "v5p-8"; default: the plan's.
        plan: a mesh plan, whose axes are taken.
        axes: mesh axes, such as {"fsdp": 2, "tp": 4}; default: the planner's choice for a named step.
        recipe: fields for the step, such as `labkit.sft.Recipe`.
        flags: options of the TPU compiler, by name.
        use_cache: answer with a stored rehearsal of the same job where there is one, and store this one.
        timeout: seconds until the compile is given up.
        memory: bytes of memory that the compile may take; default: what is free.
        tell: called with each stage of the work.
        arguments: of the step: `seq`, `batch`, `rank`, `remat`, ...

    Raises:
        LabError: an unknown step or slice, a mesh that does not divide, no libtpu and nothing stored, too slow or big.
    """
    function = None if isinstance(step, str) else step
    job = _job(step, slice, plan, axes, _arguments(model, recipe, arguments), dict(flags or {}))
    name = cache.key(job)
    stored = cache.find(name) if use_cache else None
    if stored:
        return stored
    report, schedule = compile_in_worker(
        job, lambda outcome, folder: _read(job, outcome, folder), step=function, timeout=timeout, memory=memory,
        tell=tell,
    )  # fmt: skip
    cache.keep(name, report, schedule)
    return report


def _job(
    step: str | Callable[..., Any],
    slice: str,
    plan: meshes.MeshPlan | None,
    axes: Mapping[str, int] | str | None,
    given: dict[str, Any],
    flags: dict[str, str],
) -> Job:
    path, chosen = _name(step), slice or (plan.slice if plan else "")
    if not chosen:
        raise LabError("No slice is given.", hint="Name one, such as slice='v5p-8'.")
    sizes = dict(plan.axes) if plan is not None and axes is None else axes_for(step, chosen, axes, given)
    return Job(path, cache.jsonable(given), meshes.topology(chosen).slice, sizes, flags)


def schedule(report: Report) -> cache.Schedule:
    """The stored schedule of a rehearsal: what runs, in order, and what is alive meanwhile."""
    return cache.schedule(cache.key(report.job))


def _name(step: str | Callable[..., Any]) -> str:
    if not isinstance(step, str):
        digest = hashlib.sha256(pickled(step)).hexdigest()[:12]
        return f"pickled:{getattr(step, '__name__', type(step).__name__)}@{digest}"
    if ":" in step:
        return step
    if step not in STEPS:
        raise LabError(f"Unknown step {step!r}.", hint=f"Nearest: {nearest(step, list(STEPS))}; or give a function.")
    return STEPS[step][0]


def _arguments(model: str | None, recipe: Record | None, arguments: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if recipe is not None:
        fields = recipe.to_dict()
        given = {"seq": fields.pop("seq_len"), "batch": fields.pop("batch_size"), **fields}
    named = {"model": model} if model else {}
    return given | named | arguments


def axes_for(
    step: str | Callable[..., Any], slice: str, axes: Mapping[str, int] | str | None, given: Mapping[str, Any]
) -> dict[str, int]:
    """The mesh of a step: what is given, filled up by the planner for a step that it knows."""
    objective = STEPS[step][1] if isinstance(step, str) and step in STEPS else ""
    if not objective:
        if axes is None:
            raise LabError("This step needs mesh axes.", hint="Give them: axes={'fsdp': 2, 'tp': 4}.")
        return meshes.axis_sizes(axes)
    missing = [name for name in ("model", "seq", "batch") if name not in given]
    if missing:
        raise LabError(f"The step {step} needs {', '.join(missing)}.", hint="Give a model, seq and batch.")
    wanted = {name: given[name] for name in _PLANNED if given.get(name) is not None}
    made = meshes.plan(
        given["model"], slice, seq=given["seq"], batch=given["batch"], objective=objective,
        axes=meshes.axis_sizes(axes) if axes else None, **wanted,
    )  # fmt: skip
    return dict(made.axes)


def _read(job: Job, outcome: dict[str, Any], folder: Path) -> tuple[Report, cache.Schedule | None]:
    module = reading.load(folder)
    report = reading.read(job, outcome, module)
    if module is None:
        return report, None
    moments = liveness.timeline(module, report.bytes_per_chip["arguments"])
    return report, cache.Schedule(costs.ops(module), _thinned(moments))


def _thinned(moments: tuple[liveness.Moment, ...]) -> tuple[liveness.Moment, ...]:
    peak = max(range(len(moments)), key=lambda i: moments[i].total)
    kept = sorted({*range(0, len(moments), max(1, len(moments) // _MOMENTS)), peak})
    return tuple(moments[i] for i in kept)
