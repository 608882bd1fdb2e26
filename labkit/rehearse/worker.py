"""The process that compiles: `python -m labkit.rehearse.worker FOLDER`.

It reads `job.json` (and `step.pickle`, for a function that has no importable name), and leaves `outcome.json` and
`module.txt`, the optimized HLO. It lives apart from the caller, so that libtpu, its environment and a compile that runs
out of memory never touch the caller's JAX.
"""

from __future__ import annotations

import importlib
import json
import pickle
import resource
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.mesh import make_mesh
from labkit.records import write_atomic
from labkit.rehearse.program import Job, Program

LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "google-tunix", "qwix", "optax")
_SIZES = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "aliased": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
    "peak": "peak_memory_in_bytes",
}


def main(folder: Path) -> None:
    """Compile, and tell what came of it; a failure of the compiler is an outcome, a failure of the step is told too."""
    job = Job.from_json((folder / "job.json").read_text(encoding="utf-8"))
    begun = time.monotonic()
    try:
        outcome = compile_job(job, folder)
    except LabError as error:
        outcome = {"error": "LabError", "message": error.what, "hint": error.hint}
    except Exception as error:  # whatever it is, the caller is told
        outcome = {"error": type(error).__name__, "message": str(error), "where": _where(error)}
    outcome |= {
        "seconds": time.monotonic() - begun,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": versions(),
    }
    write_atomic(folder / "outcome.json", json.dumps(outcome))


def _where(error: Exception) -> str:
    """The innermost line of the step's own code, and not of a library's, that the error passed through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else "a library"


def compile_job(job: Job, folder: Path) -> dict[str, Any]:
    """Sizes, costs and times of a compiled job; its HLO goes into the folder."""
    mesh = make_mesh(job.axes, job.slice)
    tell("tracing the step")
    begun = time.monotonic()
    program = _step(job, folder)(mesh, **job.arguments)
    with mesh:
        traced = _jit(program).trace(*program.arguments)
        tell("lowering")
        lowered = traced.lower(lowering_platforms=("tpu",))
    traced_by = time.monotonic()
    tell(f"compiling for {job.slice} ({len(mesh.devices.flat)} devices)")
    compiled = lowered.compile(compiler_options=job.flags or None)
    compiled_by = time.monotonic()
    tell("reading what the compiler made")
    write_atomic(folder / "module.txt", compiled.as_text())
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return {
        "bytes": {name: int(getattr(memory, field)) for name, field in _SIZES.items()},
        "cost": {k: v for k, v in cost.items() if k in ("flops", "bytes accessed", "optimal_seconds")},
        "tokens": program.tokens,
        "model_flops": program.model_flops,
        "lower_seconds": traced_by - begun,
        "compile_seconds": compiled_by - traced_by,
    }


def _jit(program: Program) -> Any:
    import jax

    return jax.jit(program.function, donate_argnums=program.donated)


def _step(job: Job, folder: Path) -> Callable[..., Program]:
    if not job.step.startswith("pickled:"):
        module, _, name = job.step.partition(":")
        found: Callable[..., Program] = getattr(importlib.import_module(module), name)
        return found
    pickled: Callable[..., Program] = pickle.loads((folder / "step.pickle").read_bytes())
    return pickled


def versions() -> dict[str, str]:
    """The libraries whose version decides what the compiler makes."""
    return {name: metadata.version(name) for name in LIBRARIES}


def tell(stage: str) -> None:
    """One line of progress for the caller."""
    print(f"stage: {stage}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
