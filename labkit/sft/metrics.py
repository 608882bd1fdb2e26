"""The metrics of a run: one JSON line a step, read as the run goes and after it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.records import Record, write_atomic


@dataclass(frozen=True)
class StepMetrics(Record):
    """One update: mean loss (nats a target), token accuracy, counts, and the wall seconds that it took.

    `tokens` are the counted targets, `useful` all tokens of samples, `slots` those and the padding.
    """

    step: int
    loss: float
    accuracy: float
    tokens: int
    useful: int
    slots: int
    grad_norm: float
    learning_rate: float
    seconds: float

    def __str__(self) -> str:
        return f"step {self.step}: loss {self.loss:.4f}, accuracy {self.accuracy:.1%}, rate {self.learning_rate:.2e}"


def read(path: Path) -> list[StepMetrics]:
    """The rows of a metrics file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(StepMetrics.from_json(line))
        except json.JSONDecodeError:
            break
    return rows


def cut(path: Path, step: int, *, write: bool = True) -> list[StepMetrics]:
    """Drop the rows after `step`, which the resumed run will make again; returns those that stay.

    Without `write` the file stays as it is: one process of several changes it.
    """
    rows = [row for row in read(path) if row.step <= step]
    if not write:
        return rows
    write_atomic(path, "".join(row.to_json() + "\n" for row in rows))
    return rows


class Diverged(LabError):
    """The loss is not a number, or has risen far above its best."""


class Watch:
    """Stops a run whose loss is not a number, or rose too far.

    Too far is a smoothed loss over twice its best value, and at least 2 nats above it.
    """

    def __init__(self, rows: list[StepMetrics]) -> None:
        self.smooth: float | None = None
        self.best = math.inf
        for row in rows:
            self.see(row)

    def see(self, row: StepMetrics) -> None:
        """Raise `Diverged` with a diagnosis if this step shows that training has failed."""
        if not math.isfinite(row.loss) or not math.isfinite(row.grad_norm):
            raise Diverged(
                f"Step {row.step}: the loss is {row.loss}, the gradient norm {row.grad_norm} "
                f"(learning rate {row.learning_rate:.2e}). The last checkpoint before it is kept.",
                hint=self._advice(row),
            )
        self.smooth = row.loss if self.smooth is None else 0.8 * self.smooth + 0.2 * row.loss
        if self.smooth > self.best + max(2.0, self.best):
            raise Diverged(
                f"Step {row.step}: training diverges, the loss rose from {self.best:.2f} to {self.smooth:.2f} "
                f"(learning rate {row.learning_rate:.2e}). The last checkpoint is kept.",
                hint=self._advice(row),
            )
        self.best = min(self.best, self.smooth)

    def _advice(self, row: StepMetrics) -> str:
        lower = f"Try learning_rate = {row.learning_rate / 3:.1e}" if row.learning_rate else "Check the data"
        return f"{lower}, a longer warmup, or a smaller clip, in a new folder."


class Writer:
    """Appends rows to the metrics file, and to TensorBoard where it is asked for."""

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._board = _board(tensorboard)

    def write(self, row: StepMetrics) -> None:
        """One row, on disk when this returns."""
        self._file.write(row.to_json() + "\n")
        self._file.flush()
        if self._board is not None:
            for name in ("loss", "accuracy", "grad_norm", "learning_rate"):
                self._board.add_scalar(f"sft/{name}", getattr(row, name), row.step)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _board(folder: Path | None) -> Any:
    if folder is None:
        return None
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise LabError("TensorBoard's writer is not installed.", hint="pip install tensorboardX") from error
    return SummaryWriter(str(folder))
