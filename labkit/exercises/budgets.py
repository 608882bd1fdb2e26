"""What an answer may use: CPU time, memory, compilations, tokens. Measured, so that a wasteful answer fails."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError

_UNITS = {"bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))}
_compile_counters: list[list[int]] = []


@dataclass(frozen=True)
class Budget:
    """A limit on something that `measure` finds by running the answer.

    Args:
        what: what is counted, for the reader: "temporaries", "CPU time".
        limit: in `unit`.
        unit: "bytes", "seconds", "compilations", "tokens" or any word.
        measure: answer -> amount used, in `unit`.
        advice: what a wasteful answer probably does.
    """

    what: str
    limit: float
    unit: str
    measure: Callable[[Any], float]
    advice: str

    def describe(self, spent: float) -> str:
        """``"temporaries: 1.2 MiB of 4 MiB"``."""
        return f"{self.what}: {_amount(spent, self.unit)} of {_amount(self.limit, self.unit)}"


def _amount(value: float, unit: str) -> str:
    for size, name in _UNITS.get(unit, ()):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} {unit}" if isinstance(value, float) else f"{value:,} {unit}"


def cpu_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """CPU seconds of the cheapest of `repeats` runs: a busy machine does not fail a good answer."""
    spent = []
    for _ in range(repeats):
        before = time.process_time()
        run()
        spent.append(time.process_time() - before)
    return min(spent)


def python_bytes(run: Callable[[], Any]) -> float:
    """Peak bytes that Python and NumPy allocate while `run` runs."""
    if tracemalloc.is_tracing():
        raise LabError("Memory is being traced already.", hint="Stop tracemalloc, then check again.")
    gc.collect()
    tracemalloc.start()
    try:
        run()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def temporary_bytes(function: Callable[..., Any], *arguments: Any) -> float:
    """Bytes of temporaries of `jax.jit(function)`, by XLA's own plan; arguments may be `ShapeDtypeStruct`s."""
    import jax

    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise LabError("This backend does not report the memory of a compiled program.", hint="Use JAX_PLATFORMS=cpu.")
    return float(analysis.temp_size_in_bytes)


def compilations(run: Callable[[], Any]) -> float:
    """How many programs XLA compiles while `run` runs."""
    with _counting() as counter:
        run()
    return float(counter[0])


@contextmanager
def _counting() -> Iterator[list[int]]:
    _listen()
    counter = [0]
    _compile_counters.append(counter)
    try:
        yield counter
    finally:
        _compile_counters.remove(counter)


def _listen() -> None:
    """Register the one listener of compile events, at the first call: JAX has no public way to take one off again."""
    import jax

    def on_event(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            for counter in _compile_counters:
                counter[0] += 1

    if not getattr(_listen, "done", False):
        jax.monitoring.register_event_duration_secs_listener(on_event)
        _listen.done = True  # type: ignore[attr-defined]


class Meter:
    """Counts what passes through a callable that an answer is handed, such as the tokens that a model is asked for."""

    def __init__(self, function: Callable[..., Any], cost: Callable[..., float]) -> None:
        self._function, self._cost, self.used = function, cost, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.used += self._cost(*args, **kwargs)
        return self._function(*args, **kwargs)
