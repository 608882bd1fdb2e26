"""Run the compiling worker as a process of its own: progress, time and memory limits, and what came of it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from labkit.errors import LabError
from labkit.rehearse.program import Job
from labkit.runtime.hosted import importable

# libtpu asks a TPU machine's metadata where it is, and takes a lock that only a process with chips needs.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_POLL_S = 0.2
Tell = Callable[[str], object]


def compile_in_worker(
    job: Job,
    read: Callable[[dict[str, Any], Path], Any],
    *,
    step: Callable[..., Any] | None = None,
    timeout: float = 3600,
    memory: int | None = None,
    tell: Tell = lambda stage: None,
) -> Any:
    """What `read` makes of the worker's outcome and folder.

    Args:
        job: what to compile.
        read: called with the outcome (a dictionary) and the folder, while the folder exists.
        step: the function that makes the program, if `job.step` is no importable name.
        timeout: seconds until the worker is killed.
        memory: bytes of resident memory at which it is killed; default: what is available now.
        tell: called with each stage of the work.

    Raises:
        LabError: no libtpu here, too slow, too large for this machine, a step that cannot be made or traced.
    """
    if not importable("libtpu"):
        raise LabError(
            "Rehearsing needs libtpu, the TPU compiler, which is not installed here.",
            hint="On Linux x86-64: pip install 'tpu-labkit[tpu]'. Elsewhere stored rehearsals are replayed.",
        )
    with tempfile.TemporaryDirectory(prefix="labkit-rehearsal-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(job.to_json(), encoding="utf-8")
        if step is not None:
            (folder / "step.pickle").write_bytes(pickled(step))
        limit = memory or psutil.virtual_memory().available
        log = _run(folder, time.monotonic() + timeout, limit, tell)
        outcome = folder / "outcome.json"
        if not outcome.exists():
            raise LabError(
                f"The compiling process ended without a result. Its last words: {log[-300:].strip() or 'none'}.",
                hint="It may have run out of memory: close other programs, or rehearse fewer layers.",
            )
        return read(json.loads(outcome.read_text(encoding="utf-8")), folder)


def _run(folder: Path, deadline: float, memory: int, tell: Tell) -> str:
    """The worker's log, once it has ended; killed if it takes too long or too much, or if the caller is interrupted."""
    command = [sys.executable, "-m", "labkit.rehearse.worker", str(folder)]
    process = subprocess.Popen(
        command, env=os.environ | _ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=_listen, args=(process, lines, tell), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            _check(process, deadline, memory)
            time.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    reader.join(timeout=5)
    return "".join(lines)


def _listen(process: subprocess.Popen[str], lines: list[str], tell: Tell) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("stage: "):
            tell(line.removeprefix("stage: ").strip())
        else:
            lines.append(line)


def _check(process: subprocess.Popen[str], deadline: float, memory: int) -> None:
    if time.monotonic() > deadline:
        raise LabError("The compiler took longer than the time limit.", hint="Give more time, or fewer layers.")
    try:
        used = psutil.Process(process.pid).memory_info().rss
    except psutil.NoSuchProcess:
        return
    if used > memory:
        raise LabError(
            f"The compiler needs more than {memory / 2**30:.1f} GiB of this machine's memory.",
            hint="Close other programs, rehearse fewer layers, or use a larger machine.",
        )


def pickled(step: Callable[..., Any]) -> bytes:
    """A function by value, where it was made in a notebook or a script; a `LabError` if it holds what cannot travel."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(step))
    except (pickle.PicklingError, TypeError) as error:
        raise LabError(
            f"The step {getattr(step, '__name__', step)!r} cannot be sent to the compiling process: {error}.",
            hint="Make it a function that uses no open files, models or devices.",
        ) from error
