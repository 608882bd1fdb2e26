"""From what the compiling process left, the outcome and the module's text, to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit import hardware
from labkit.errors import LabError
from labkit.rehearse import costs, failures, liveness
from labkit.rehearse.hlo import Module, parse
from labkit.rehearse.program import Job
from labkit.rehearse.report import Report
from labkit.rehearse.timing import Moved, clock, moved
from labkit.rehearse.traffic import collectives

_TOP = 24  # instructions that a report keeps


def read(job: Job, outcome: dict[str, Any], module: Module | None) -> Report:
    """The report of an outcome; `module` is None where the compiler refused.

    Raises:
        LabError: the step itself was wrong (a mesh that does not divide, a function that cannot be traced).
    """
    if "error" in outcome:
        return _refused(job, outcome)
    assert module is not None
    return _compiled(job, outcome, module)


def load(folder: Path) -> Module | None:
    """The module of a worker's folder."""
    path = folder / "module.txt"
    return parse(path.read_text(encoding="utf-8")) if path.exists() else None


def _refused(job: Job, outcome: dict[str, Any]) -> Report:
    message = outcome["message"]
    failure = failures.diagnose(message)
    if outcome["error"] == "LabError":
        raise LabError(message, hint=outcome["hint"])
    if failure is None and "RESOURCE_EXHAUSTED" not in message and outcome["error"] != "JaxRuntimeError":
        raise LabError(
            f"The step cannot be traced for {job.slice}: {outcome['error']}: {message[:500]}",
            hint=f"Mend the step, at {outcome.get('where', 'an unknown place')}; nothing was compiled.",
        )
    return _report(job, outcome, compiles=False, fits=False, failure=failure, error=message[:4000], bytes_per_chip={})


def _compiled(job: Job, outcome: dict[str, Any], module: Module) -> Report:
    of = hardware.slice(job.slice)
    done = costs.ops(module)
    found = tuple(moved(c, of, job.axes) for c in collectives(module, job.axes))
    cycles = sum(op.cycles for op in done)
    compute, exposed = cycles / clock(of.chip), _exposed(found)
    step = None if exposed is None else compute + exposed
    flops = sum(op.flops for op in done)
    held = _held(outcome["bytes"], of.chip.usable_hbm_bytes_per_device)
    moments = liveness.timeline(module, held["arguments"])
    return _report(
        job,
        outcome,
        compiles=True,
        fits=True,  # the compiler refuses what does not fit
        bytes_per_chip=held,
        cycles=cycles,
        compute_seconds=compute,
        exposed_seconds=exposed,
        step_seconds=step,
        flops=flops,
        hbm_bytes=sum(op.hbm_bytes for op in done),
        **_rates(outcome, of, step, flops),
        collectives=found,
        cycles_by_kind=costs.by_kind(done),
        top=tuple(sorted(done, key=lambda op: -op.cycles)[:_TOP]),
        largest=liveness.largest(module),
        hbm_peak=max(moment.total for moment in moments),
        scheduled_peak=max(moment.everywhere for moment in moments),
        offloads=costs.offloads(module),
    )


def _held(sizes: dict[str, int], limit: int) -> dict[str, int]:
    total = sizes["arguments"] + sizes["outputs"] - sizes["aliased"] + sizes["temporaries"]
    return {**sizes, "total": total, "limit": limit}


def _exposed(found: tuple[Moved, ...]) -> float | None:
    times = [c.exposed for c in found]
    return None if None in times else sum(t for t in times if t is not None)


def _rates(outcome: dict[str, Any], of: hardware.Slice, step: float | None, flops: float) -> dict[str, float | None]:
    """Tokens a second, and the shares of the peak; of one step of all devices."""
    if not step:
        return {"tokens_per_second": None, "mfu": None, "hfu": None}
    peak = of.chip.peak_flops["bf16"] * of.chips
    devices = of.chips * of.chip.compiler_devices
    return {
        "tokens_per_second": outcome["tokens"] / step if outcome["tokens"] else None,
        "mfu": outcome["model_flops"] / step / peak if outcome["model_flops"] else None,
        "hfu": flops * devices / step / peak,
    }


def _report(job: Job, outcome: dict[str, Any], **found: Any) -> Report:
    empty: dict[str, Any] = {
        "cycles": 0, "compute_seconds": None, "exposed_seconds": None, "step_seconds": None, "flops": 0.0,
        "hbm_bytes": 0, "tokens_per_second": None, "mfu": None, "hfu": None, "collectives": (), "cycles_by_kind": {},
        "top": (), "largest": (), "hbm_peak": 0, "scheduled_peak": 0, "offloads": 0, "failure": None, "error": "",
    }  # fmt: skip
    told: dict[str, Any] = {
        "model_flops": float(outcome.get("model_flops", 0.0)),
        "tokens": outcome.get("tokens", 0),
        "lower_seconds": outcome.get("lower_seconds", 0.0),
        "compile_seconds": outcome.get("compile_seconds", outcome["seconds"]),
        "worker_peak_rss_bytes": outcome["peak_rss_bytes"],
        "versions": outcome["versions"],
    }
    return Report(job=job, **{**empty, **told, **found})
