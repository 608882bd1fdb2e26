"""Checkpoints of a run, and what proves that a folder belongs to it.

`LABKIT_FAULT=POINT:N` makes the process kill itself the N-th time that it comes to POINT. It is there for the tests of
resuming: `saving` (inside a checkpoint write), `metrics` (between the metrics and the checkpoint), `step`.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from flax import nnx
from tunix.sft.checkpoint_manager import CheckpointManager

from labkit.errors import LabError
from labkit.records import Record
from labkit.sft.recipe import Recipe

_passed: Counter[str] = Counter()


def fault(point: str) -> None:
    """Kill this process if `LABKIT_FAULT` asks for it here."""
    wanted, _, times = os.environ.get("LABKIT_FAULT", "").partition(":")
    if wanted == point:
        _passed[point] += 1
        if _passed[point] == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Run(Record):
    """What an output folder holds: written before the first step, compared before any other."""

    recipe: Recipe
    model: str
    data: str

    def __str__(self) -> str:
        return f"run {self.recipe.hash()} of {self.model} on {self.data}"


def claim(out: Path, run: Run) -> None:
    """Make `out` this run's folder, or see that it already is; a `LabError` if it holds anything else."""
    mark = out / "run.json"
    if not mark.exists():
        if out.exists() and any(p for p in out.iterdir() if not p.name.startswith(".")):
            raise LabError(f"{out} holds something that labkit did not put there.", hint="Choose another folder.")
        run.save(mark)
        return
    found = Run.from_json(mark.read_text(encoding="utf-8"))
    same = (found.recipe.hash(), found.model, found.data) == (run.recipe.hash(), run.model, run.data)
    if not same:
        hint = f"Choose another folder, or remove {out} if nothing of it is needed."
        raise LabError(f"{out} holds another run. {_difference(found, run)}", hint=hint)


def _difference(found: Run, run: Run) -> str:
    fields = [k for k, v in run.recipe.to_dict().items() if found.recipe.to_dict()[k] != v]
    if fields:
        return f"Its recipe differs in {', '.join(fields)}."
    return "Its model is another." if found.model != run.model else "Its data are others."


class Checkpoints(CheckpointManager):
    """Tunix's manager with a call before each write (the metrics must be on disk first) and errors that say what."""

    def __init__(self, folder: Path, recipe: Recipe, before: Callable[[], None]) -> None:
        options = ocp.CheckpointManagerOptions(
            save_interval_steps=recipe.save_every,
            max_to_keep=recipe.keep,
            enable_async_checkpointing=True,
        )
        self._before = before
        super().__init__(str(folder.resolve()), options)

    def save(self, step: int, model: nnx.Module, *args: Any, force: bool = False, **options: Any) -> bool:
        """Write a checkpoint if it is time for one."""
        manager = self._checkpoint_manager
        if manager is None or step == self.latest_step() or not (force or manager.should_save(step)):
            return False
        self._before()
        fault("metrics")
        with no_space(str(manager.directory)):
            saved = super().save(step, model, *args, force=force, **options)
            fault("saving")
        return saved

    def close(self) -> None:
        """Wait for the write in progress."""
        with no_space("the checkpoint folder"):
            super().close()


class no_space:
    """A context that turns a full disk into a `LabError`."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if full or (error is not None and "No space left" in str(error)):
            raise LabError(
                f"The disk is full: no checkpoint could be written to {self.where}.",
                hint="Free some space and run the same command again; the last whole checkpoint is kept.",
            ) from error
