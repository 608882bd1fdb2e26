"""Which mesh for which slice: what divides, what fits, what each axis costs. Standard library only, no JAX.

Bytes come from the stored shapes of the model, never from a rule of thumb. `bytes_per_chip` is logical, and equals
what JAX reports for the sharded state; `padded_bytes_per_chip` adds the padding of the TPU's tiles, and decides `fits`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit import hardware, models
from labkit.errors import LabError
from labkit.hardware import GIB, Slice
from labkit.mesh import objectives, serving, training
from labkit.mesh import rules as sharding
from labkit.mesh.axes import axis_sizes, written
from labkit.mesh.mesh_plan import Candidate, MeshPlan
from labkit.mesh.objectives import KINDS, Job, Needs
from labkit.mesh.rules import Arrays, OnIndivisible, Replicated, Rules, Spec, Split
from labkit.mesh.torus import Ring, ring
from labkit.mesh.traffic import Collective, collectives, in_ms

__all__ = ["plan", "serving", "training"]  # the last two register their objectives

AXES = ("dp", "fsdp", "tp")
_ALWAYS = ("fsdp", "tp")  # Tunix's models name both, whatever their size
_NOT_HERE = {
    "pp": " Tunix's models run all their layers on each device: there is no pipeline.",
    "sp": " Tunix's models attend over whole rows on each device: the sequence is not split.",
}


@dataclass(frozen=True)
class _Question:
    """All that one mesh is judged by."""

    of: Slice
    job: Job
    needs: Needs
    rules: dict[str, str | None]
    on_indivisible: OnIndivisible

    @functools.cached_property
    def arrays(self) -> tuple[Arrays, ...]:
        """Everything that is held, once."""
        return tuple(dict.fromkeys(arrays for held in self.needs.held for arrays in held.arrays))


@dataclass(frozen=True)
class _Answer:
    """One mesh, judged. `fault` says why it cannot run; `whole` lists what does not divide."""

    axes: dict[str, int]
    fault: LabError | None
    whole: list[Replicated]
    splits: dict[Arrays, Split] = field(default_factory=dict)
    rings: dict[str, Ring] = field(default_factory=dict)
    logical: dict[str, int] = field(default_factory=dict)
    padded: dict[str, int] = field(default_factory=dict)
    peak: str = ""
    moved: tuple[Collective, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether a chip holds it."""
        return bool(self.padded) and self.padded["headroom"] >= 0

    @property
    def seconds(self) -> float | None:
        """Of all collectives of a step; None where the speed of a link is not known."""
        times = [c.seconds for c in self.moved]
        return None if None in times else sum(t for t in times if t is not None)

    @property
    def bytes_moved(self) -> int:
        """That each chip receives in a step."""
        return sum(c.bytes for c in self.moved)

    @property
    def cost(self) -> float:
        """Seconds to compare by; links of unknown speed count as 1 GB/s."""
        return sum(c.bytes / 1e9 if c.seconds is None else c.seconds for c in self.moved)

    def rank(self) -> tuple[object, ...]:
        """Order of preference: what runs, what lacks only rows, what fits, what moves least, what leaves most room."""
        lacks = 0 if self.fault is None else 1 + bool(self.whole) + (not self.padded)
        return (
            lacks,
            not self.fits,
            self.cost if self.fits else self.padded.get("total", 0),
            -self.padded.get("headroom", 0),
        )


def plan(
    model: str,
    slice_name: str | Slice,
    *,
    seq: int,
    batch: int,
    objective: str = "train_lora",
    axes: Mapping[str, int] | str | None = None,
    rank: int = 16,
    targets: str = "all",
    remat: str = "decoder",
    accumulation: int = 1,
    loss_chunk: int = 512,
    dtype: str = "bfloat16",
    rules: Rules | None = None,
    on_indivisible: OnIndivisible = "error",
) -> MeshPlan:
    """The best mesh for a step on a slice: it divides, it fits, and its collectives take least time.

    Args:
        model: a registry name.
        slice_name: such as "v5p-8" or "2xv5e-16".
        seq: tokens of a row.
        batch: rows of one update, on all devices together.
        objective: "train_lora", "train_full", "serve", or one that another module has registered.
        axes: sizes that are fixed, such as `{"tp": 4}` or "fsdp=2,tp=4"; the planner finds those left out.
        rank: of LoRA.
        targets: of LoRA, as `labkit.lora.inject` takes them.
        remat: "none", "block" or "decoder".
        accumulation: parts that the batch is computed in.
        loss_chunk: positions of a row whose logits exist at a time.
        dtype: of weights, adapters, moments and computation.
        rules: changes to the sharding rules, such as `{"kv_heads": None}`.
        on_indivisible: "replicate" leaves what does not divide whole on each device, and lists it in `replicated`.

    Raises:
        LabError: an unknown name, axes that do not make the slice's devices, a batch or an array that no mesh divides.
    """
    of = hardware.slice(slice_name) if isinstance(slice_name, str) else slice_name
    spec = models.get(model)
    job = Job(model, seq, batch, objective, rank, targets, dtype, remat, accumulation, loss_chunk)
    needs = objectives.needs(job, spec)
    changed = sharding.rules_of(spec.family, dict(needs.rules) | dict(rules or {}))
    question = _Question(of, job, needs, changed, _checked(on_indivisible))
    fixed = _fixed(axes, needs)
    meshes = _meshes(question, fixed)
    answers = [_judge(question, sizes) for sizes in meshes]
    if axes and len(answers) == 1 and answers[0].fault is not None:
        raise answers[0].fault
    return _made(question, answers)


def _checked(choice: OnIndivisible) -> OnIndivisible:
    if choice not in ("error", "replicate"):
        raise LabError(f"on_indivisible is {choice!r}.", hint="Choices: error, replicate.")
    return choice


def _fixed(axes: Mapping[str, int] | str | None, needs: Needs) -> dict[str, int]:
    """The axes that the caller fixed; one that the objective does not use may have size 1."""
    given = axis_sizes(axes) if axes else {}
    for name, size in given.items():
        if name in needs.axes or (name in AXES and size == 1):
            continue
        why = _NOT_HERE.get(name, "")
        raise LabError(f"This step has no mesh axis {name!r}.{why}", hint=f"Axes: {', '.join(needs.axes)}.")
    return given


def _meshes(question: _Question, fixed: Mapping[str, int]) -> list[dict[str, int]]:
    """All ways to make the slice's devices of the axes that are not fixed, in the order dp, fsdp, tp.

    Raises:
        LabError: fixed axes that cannot make them.
    """
    left, odd = divmod(question.of.devices, math.prod(fixed.values()))
    free = [name for name in question.needs.axes if name not in fixed]
    if odd or (left > 1 and not free):
        raise _mismatch(question, fixed)
    made = [dict(zip(free, parts, strict=True)) | dict(fixed) for parts in _factors(left, len(free))]
    order = [*AXES, *(name for name in question.needs.axes if name not in AXES)]
    return [{n: m.get(n, 1) for n in order if n in _ALWAYS or m.get(n, 1) > 1} for m in made]


def _factors(product: int, count: int) -> list[tuple[int, ...]]:
    """All tuples of `count` whole numbers with this product."""
    if count == 0:
        return [()]
    if count == 1:
        return [(product,)]
    divisors = [d for d in range(1, product + 1) if product % d == 0]
    return [(d, *rest) for d in divisors for rest in _factors(product // d, count - 1)]


def _mismatch(question: _Question, fixed: Mapping[str, int]) -> LabError:
    """Axes that do not make the devices of a slice; if arrays do not divide either, that too."""
    of = question.of
    cores = f" ({of.chips} chips with {of.chip.devices} each)" if of.chip.devices > 1 else ""
    what = f"Mesh axes {written(fixed)} do not make the {of.devices} devices of {of.name}{cores}."
    whole = _whole(_split(question, dict.fromkeys(_ALWAYS, 1) | dict(fixed)))
    besides = f" Nor would they divide the arrays: {whole[0]}." if whole else ""
    return LabError(what + besides, hint=f"Choose axes whose product is {of.devices}, or another slice.")


def _judge(question: _Question, sizes: dict[str, int]) -> _Answer:
    """Everything about one mesh. One that does not divide is counted as if it were whole, and has a fault."""
    splits = _split(question, sizes)
    whole = _whole(splits)
    fault = _fault(question, sizes, whole)
    try:
        rings = {name: ring(question.of, sizes, name) for name in sizes}
    except LabError as error:  # several slices that divide no axis
        return _Answer(sizes, error, whole)
    logical, padded = _held(question, splits)
    phases = question.needs.working(sizes)
    peak = max(phases, key=lambda name: sum(phases[name].values()))
    for kind, size in phases[peak].items():
        logical[kind] += round(size * question.of.chip.devices)
        padded[kind] += round(size * question.of.chip.devices)
    moved = collectives(question.needs.transfers(sizes, splits), rings, question.of.chip)
    limit = question.of.chip.usable_hbm_bytes
    return _Answer(sizes, fault, whole, splits, rings, _summed(logical, limit), _summed(padded, limit), peak, moved)


def _split(question: _Question, sizes: Mapping[str, int]) -> dict[Arrays, Split]:
    """The sharding of everything that is held."""
    return {arrays: sharding.resolve(arrays, question.rules, sizes, "replicate") for arrays in question.arrays}


def _whole(splits: Mapping[Arrays, Split]) -> list[Replicated]:
    """What does not divide."""
    return [fault for split in splits.values() for fault in split.whole]


def _fault(question: _Question, sizes: Mapping[str, int], whole: list[Replicated]) -> LabError | None:
    """What keeps a mesh from running at all."""
    if whole and question.on_indivisible == "error":
        return sharding.indivisible(whole[0])
    ways = sizes.get("dp", 1) * sizes.get("fsdp", 1)
    rows = question.job.batch // question.job.accumulation
    if rows % ways == 0:
        return None
    over = " x ".join(f"{name}={sizes[name]}" for name in ("dp", "fsdp") if sizes.get(name, 1) > 1)
    parts = (
        f" (batch {question.job.batch} in {question.job.accumulation} parts)" if question.job.accumulation > 1 else ""
    )
    return LabError(
        f"{rows} rows{parts} do not divide over {over}.",
        hint=f"Make the batch a multiple of {ways * question.job.accumulation}, or use more tp.",
    )


def _held(question: _Question, splits: Mapping[Arrays, Split]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes per chip of what is held, logical and padded, by kind."""
    devices = question.of.chip.devices
    logical, padded = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for held in question.needs.held:
        sizes = [sharding.device_bytes(arrays, splits[arrays].shape) for arrays in held.arrays]
        logical[held.kind] += devices * held.copies * sum([size[0] for size in sizes])
        padded[held.kind] += devices * held.copies * sum([size[1] for size in sizes])
    for kind, size in question.needs.scalars.items():
        logical[kind] += devices * size
        padded[kind] += devices * size
    return logical, padded


def _summed(kinds: dict[str, int], limit: int) -> dict[str, int]:
    total = sum(kinds.values())
    return kinds | {"total": total, "limit": limit, "headroom": limit - total}


def _made(question: _Question, answers: list[_Answer]) -> MeshPlan:
    """The plan of the best answer, with a line on each of the others."""
    best, *others = sorted(answers, key=_Answer.rank)
    replicated = tuple(best.whole) if question.on_indivisible == "replicate" else ()
    considered = tuple(_candidate(answer, best) for answer in others)
    own = () if best.fits and not best.fault else (f"{written(best.axes)}: {_why(best, None)}",)
    specs: dict[str, dict[str, Spec]] = {"weights": {}, "adapters": {}}
    for held in question.needs.held:
        for arrays in held.arrays if held.kind in specs else ():
            specs[held.kind] |= dict.fromkeys(arrays.paths, best.splits[arrays].spec)
    return MeshPlan(
        slice=question.of.name,
        job=question.job,
        axes=best.axes,
        rings=tuple(best.rings.values()),
        possible=best.fault is None,
        fits=best.fits and best.fault is None,
        bytes_per_chip=best.logical,
        padded_bytes_per_chip=best.padded,
        peak_in=best.peak,
        collectives=best.moved,
        seconds=best.seconds,
        reasons=(*own, *map(str, considered)),
        replicated=replicated,
        considered=considered,
        specs=specs["weights"],
        adapter_specs=specs["adapters"],
    )


def _candidate(answer: _Answer, best: _Answer) -> Candidate:
    total = answer.padded.get("total", 0)
    return Candidate(answer.axes, answer.fault is None, answer.fits, total, answer.seconds, _why(answer, best))


def _why(answer: _Answer, best: _Answer | None) -> str:
    """Why a mesh was not chosen, or why the chosen one does not run, in a line."""
    if answer.fault is not None:
        return str(answer.fault) if best is None else answer.fault.what
    if not answer.fits:
        total, limit = answer.padded["total"], answer.padded["limit"]
        return f"needs {total / GIB:.2f} GiB a chip, {(total - limit) / GIB:.2f} more than a program may use"
    assert best is not None
    if answer.seconds is None or best.seconds is None or answer.cost == best.cost:
        return f"moves {answer.bytes_moved / GIB:.3g} GiB a chip, the chosen one {best.bytes_moved / GIB:.3g}"
    times = f", {answer.cost / best.cost:.3g} times" if best.cost else ""
    return f"its collectives take {in_ms(answer.cost)} a step{times} (chosen: {in_ms(best.cost)})"
