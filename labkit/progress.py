"""Progress of long work on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_EVERY = 10.0  # seconds between plain lines


class Progress:
    """A context: `at(done, note)` says how far the work is."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total = what, total
        self._begun = self._said = time.monotonic()
        self._first: int | None = None
        self._bar = _bar(what, total) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def at(self, done: int, note: str = "") -> None:
        """So many of `total` are done."""
        if self._first is None:
            self._first, self._begun = done, time.monotonic()
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=done, note=note)
            return
        now = time.monotonic()
        if now - self._said >= _EVERY or done >= self.total:
            self._said = now
            print(f"{self.what} {done}/{self.total} {note}{self._left(done, now)}", file=sys.stderr, flush=True)

    def _left(self, done: int, now: float) -> str:
        made = done - (self._first or 0)
        if made <= 0 or done >= self.total:
            return ""
        return f", {(now - self._begun) / made * (self.total - done):.0f} s left"


def _bar(what: str, total: int):  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Rich

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bar = Rich(*columns, console=Console(stderr=True))
    return bar, bar.add_task(what, total=total, note="")
