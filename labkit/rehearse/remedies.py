"""What would make a step fit that does not: the planner ranks changes, and the compiler verifies the best of them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

from labkit import hardware
from labkit import mesh as meshes
from labkit.errors import LabError
from labkit.records import Record
from labkit.rehearse.compiling import Tell
from labkit.rehearse.program import Job
from labkit.rehearse.rehearsal import STEPS, rehearse
from labkit.rehearse.report import Report, gib

COMPILES, SECONDS = 3, 720.0
# What a change costs, as a share of the step's time; a guess that orders the candidates, no more.
_COST = {"loss_chunk": 0.01, "accumulation": 0.03, "axes": 0.05, "block": 0.15, "decoder": 0.3, "qlora": 0.5}
_NF4_SHARE = 4 / 16 + 4 / (2 * 64)  # four bits and a float32 scale for 64 weights, of bf16's bytes
_LOSS_CHUNK = 128
_REMAT = ("none", "block", "decoder")
_PLANNED = ("rank", "targets", "remat", "accumulation", "loss_chunk", "dtype")
_MARGIN = 1.02  # the planner is judged at a few percent


@dataclasses.dataclass(frozen=True)
class Remedy(Record):
    """One set of changes to a job: bytes of a device by the planner, and the compiler's report once it was asked."""

    changes: dict[str, Any]
    axes: dict[str, int]
    predicted_bytes: int
    cost: float
    report: Report | None = None

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.changes.items()]
        words.append("mesh " + ", ".join(f"{name}={size}" for name, size in self.axes.items()))
        told = self.report.verdict if self.report else f"{gib(self.predicted_bytes)} by the planner, not compiled"
        return f"{', '.join(words)}: {told}"


@dataclasses.dataclass(frozen=True)
class Fix(Record):
    """What was looked at: `found` is the first remedy that compiles, None if none does within the limits.

    `tried` were compiled, `considered` counts those that the planner judged. `reasons` say why nothing fits, and which
    slices of the same chips would do, by the planner.
    """

    before: Report
    found: Remedy | None
    tried: tuple[Remedy, ...]
    considered: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lines = [str(self.before), *(f"tried: {remedy}" for remedy in self.tried)]
        lines.append(f"fits: {self.found}" if self.found else "Nothing that was tried fits.")
        return "\n".join([*lines, *self.reasons])


def fix(
    before: Report,
    *,
    compiles: int = COMPILES,
    seconds: float = SECONDS,
    use_cache: bool = True,
    tell: Tell = lambda stage: None,
) -> Fix:
    """Look for the cheapest change with which the step fits: at most so many compiles, and so many seconds.

    Raises:
        LabError: a report that compiles already, or of a step that the planner does not know.
    """
    if before.compiles:
        raise LabError(f"{before.job} compiles: there is nothing to mend.")
    found, tried = None, []
    fitting, all_judged = _fitting(before)
    end = time.monotonic() + seconds
    for remedy in fitting[:compiles]:
        left = end - time.monotonic()
        if left <= 0:
            break
        tell(f"trying {remedy}")
        checked = dataclasses.replace(remedy, report=_again(before.job, remedy, left, use_cache, tell))
        tried.append(checked)
        if checked.report and checked.report.compiles:
            found = checked
            break
    return Fix(before, found, tuple(tried), len(all_judged), () if found else _reasons(before, all_judged))


def _fitting(before: Report) -> tuple[list[Remedy], list[Remedy]]:
    """The remedies that should fit, the cheapest first; and all that were judged."""
    judged = list(_judged(before.job))
    plain = next((r.predicted_bytes for r in judged if not r.changes and _same(r.axes, before.job.axes)), 0)
    needed = before.failure.needed if before.failure and before.failure.memory == "hbm" else plain
    scale = max(1.0, needed / plain) if plain else 1.0
    limit = hardware.slice(before.slice).chip.usable_hbm_bytes_per_device
    good = [r for r in judged if r.changes or not _same(r.axes, before.job.axes)]
    good = [r for r in good if r.predicted_bytes * scale * _MARGIN <= limit]
    return sorted(good, key=lambda r: (r.cost, r.predicted_bytes)), judged


def _judged(job: Job) -> Iterator[Remedy]:
    """Every combination of changes on every mesh, with the planner's bytes."""
    for changes in _changes(job):
        arguments = job.arguments | changes
        for axes in _meshes(job):
            plan = _planned(job, job.slice, arguments, axes)
            if plan is None or not plan.possible:
                continue
            cost = _cost(changes) + (_COST["axes"] if not _same(axes, job.axes) else 0.0) + (plan.seconds or 0.0)
            yield Remedy(changes, axes, _bytes(plan, arguments), cost)


def _changes(job: Job) -> Iterator[dict[str, Any]]:
    given = job.arguments
    remat = given.get("remat") or "decoder"
    choices: dict[str, list[Any]] = {
        "loss_chunk": [None, *([_LOSS_CHUNK] if given.get("loss_chunk", 512) > _LOSS_CHUNK else [])],
        "accumulation": [None, *_divisors(given["batch"], above=given.get("accumulation", 1))],
        "remat": [None, *_REMAT[_REMAT.index(remat) + 1 :]],
        "qlora": [None, *(["nf4"] if job.step == STEPS["lora_sft"][0] and not given.get("qlora") else [])],
    }
    for values in itertools.product(*choices.values()):
        yield {name: value for name, value in zip(choices, values, strict=True) if value is not None}


def _divisors(batch: int, above: int) -> list[int]:
    return [n for n in (2, 4, 8, 16, 32, 64) if n > above and batch % n == 0]


def _meshes(job: Job) -> list[dict[str, int]]:
    plan = _planned(job, job.slice, job.arguments, None)
    others = [dict(c.axes) for c in plan.alternatives() if c.possible] if plan else []
    return [job.axes, *(axes for axes in ([dict(plan.axes)] if plan else []) + others if not _same(axes, job.axes))]


def _same(one: dict[str, int], other: dict[str, int]) -> bool:
    """The same mesh, but for axes of one."""
    large = [{name: size for name, size in axes.items() if size > 1} for axes in (one, other)]
    return large[0] == large[1]


def _planned(job: Job, slice: str, arguments: dict[str, Any], axes: dict[str, int] | None) -> meshes.MeshPlan | None:
    """The plan of a job; None where nothing divides."""
    objective = next((goal for step, goal in STEPS.values() if step == job.step and goal), None)
    if objective is None:
        raise LabError(
            f"The planner does not know the step {job.step!r}.", hint="Only named training steps are mended."
        )
    wanted = {name: arguments[name] for name in _PLANNED if arguments.get(name) is not None}
    try:
        return meshes.plan(
            arguments["model"], slice, seq=arguments["seq"], batch=arguments["batch"], objective=objective,
            axes=axes, **wanted,
        )  # fmt: skip
    except LabError:  # an axis that no array divides by
        return None


def _bytes(plan: meshes.MeshPlan, arguments: dict[str, Any]) -> int:
    total = plan.padded_bytes_per_chip["total"]
    if arguments.get("qlora"):  # the embedding stays as it is, and is small beside the layers
        total -= round(plan.padded_bytes_per_chip["weights"] * (1 - _NF4_SHARE))
    return total


def _cost(changes: dict[str, Any]) -> float:
    return sum(_COST[str(value)] if name == "remat" else _COST[name] for name, value in changes.items())


def _again(job: Job, remedy: Remedy, seconds: float, use_cache: bool, tell: Tell) -> Report:
    step = next(name for name, (path, _) in STEPS.items() if path == job.step)
    return rehearse(
        step, slice=job.slice, axes=remedy.axes, flags=job.flags, use_cache=use_cache, timeout=seconds, tell=tell,
        **(job.arguments | remedy.changes),
    )  # fmt: skip


def _reasons(before: Report, judged: list[Remedy]) -> tuple[str, ...]:
    limit = hardware.slice(before.slice).chip.usable_hbm_bytes_per_device
    reasons = []
    if judged:
        least = min(judged, key=lambda r: r.predicted_bytes)
        reasons.append(f"Of {len(judged)} combinations the smallest needs {least}, against {gib(limit)}.")
    larger = _first_slice(before.job)
    if larger:
        reasons.append(f"By the planner the job as it is fits on {larger}.")
    return tuple(reasons)


def _first_slice(job: Job) -> str | None:
    """The smallest slice of the same chips on which the job fits as it is."""
    of = hardware.slice(job.slice)
    larger = [s for name in hardware.slices(of.chip.name) if (s := hardware.slice(name)).chips > of.chips]
    for slice in sorted(larger, key=lambda s: s.chips):
        plan = _planned(job, slice.name, job.arguments, None)
        if plan is not None and plan.fits:
            return slice.name
    return None
