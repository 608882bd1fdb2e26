"""Train, score and sweep: the calls that a lab, a script or the command makes."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from labkit.data.batch import Batch
from labkit.data.masks import require_mask
from labkit.errors import LabError
from labkit.models.fingerprint import FIRST, fingerprint
from labkit.progress import Progress
from labkit.records import Record
from labkit.sft import checkpoints, losses, metrics
from labkit.sft.recipe import Recipe
from labkit.sft.trainer import SftTrainer, check_rows


@dataclass(frozen=True)
class TrainResult(Record):
    """A finished run. Seconds and tokens are of all its steps, also those before a resume."""

    recipe: Recipe
    out: str
    steps: int
    resumed_from: int
    trained_parameters: int
    first_loss: float
    last_loss: float
    accuracy: float
    train_seconds: float
    useful_tokens: int
    useful_tokens_per_second: float
    padding_share: float

    def __str__(self) -> str:
        return (
            f"{self.steps} steps in {self.train_seconds:.0f} s: loss {self.first_loss:.3f} to {self.last_loss:.3f}, "
            f"{self.useful_tokens_per_second:,.0f} useful tokens/s, {self.padding_share:.1%} padding"
        )

    def curve(self) -> list[metrics.StepMetrics]:
        """The metrics of each step."""
        return metrics.read(Path(self.out) / "metrics.jsonl")


@dataclass(frozen=True)
class Score(Record):
    """One set of weights on one set of targets: mean loss in nats, token accuracy, number of targets."""

    loss: float
    accuracy: float
    tokens: int

    def __str__(self) -> str:
        return f"loss {self.loss:.4f}, accuracy {self.accuracy:.1%} over {self.tokens:,} targets"


def train(
    model: nnx.Module,
    data: Any,
    recipe: Recipe,
    *,
    out: str | Path,
    mesh: Mesh | None = None,
    tensorboard: bool = False,
) -> TrainResult:
    """Train `model` in place: its adapters if it has some (`labkit.lora.inject`), else all its weights.

    Killed at any moment and called again with the same arguments, it goes on and ends with the same weights, bit for
    bit. The folder `out` holds `run.json`, `metrics.jsonl` and `checkpoints/`.

    Args:
        model: a Tunix model, sharded if `mesh` is given.
        data: an iterable of `Batch` whose iterator has `get_state` and `set_state` (`labkit.data.pipeline`).
        recipe: optimizer, steps, accumulation and so on.
        out: the run's own folder; one that holds something else is refused.
        mesh: axes `fsdp` and `tp`, also `dp`; rows go over `dp` and `fsdp`. Of several processes each calls this with
            its own rows (`labkit.mesh.data_shard`), and all see the folder.
        tensorboard: also write TensorBoard events to `out/tensorboard`.

    Raises:
        LabError: packed rows for a model that ignores attention masks, a folder of another run, data that end early,
            a loss that is not finite or diverges (`Diverged`), a full disk, a mesh that does not divide the batch.
    """
    folder = Path(out)
    if recipe.packing == "pack":
        require_mask(getattr(model, "config", None))
    if mesh is not None:
        _check_mesh(mesh, recipe)
    _claim(folder, _identity(model, data, recipe))
    recent: deque[metrics.StepMetrics] = deque(maxlen=10)
    with mesh if mesh is not None else contextlib.nullcontext(), Progress("training", recipe.steps) as bar:
        trainer = SftTrainer(
            model,
            recipe,
            iter(data),
            folder,
            on_step=lambda row: bar.at(row.step, _line(recent, row)),
            mesh=mesh,
            tensorboard=folder / "tensorboard" if tensorboard else None,
        )
        trainer.train(())
    _check_end(trainer, recipe)
    return _result(recipe, folder, trainer)


def _check_end(trainer: SftTrainer, recipe: Recipe) -> None:
    if trainer.train_steps < recipe.steps:
        raise LabError(
            f"The data ended after {trainer.train_steps} of {recipe.steps} steps.",
            hint="Give epochs=None, or fewer steps.",
        )


def score(model: nnx.Module, batches: Iterable[Batch], *, chunk: int = 512) -> Score:
    """Mean loss and accuracy over the counted targets of all batches, each target weighing the same."""
    found = [jax.device_get(_sums(model, batch, chunk)) for batch in batches]
    if not found:
        raise LabError("There is no batch to score.", hint="Give epochs=1 and at least one example.")
    loss, correct, tokens = (float(np.sum(x)) for x in zip(*found, strict=True))
    return Score(loss / max(tokens, 1), correct / max(tokens, 1), int(tokens))


@functools.partial(nnx.jit, static_argnums=2)
def _sums(model: nnx.Module, batch: Batch, chunk: int) -> losses.Sums:
    """Compiled once for all models and batches of one shape."""
    return losses.sums(model, batch, chunk=chunk)


def sweep(
    make: Callable[[], nnx.Module], data: Any, recipe: Recipe, learning_rates: Sequence[float], *, out: str | Path
) -> list[TrainResult]:
    """One run for each learning rate, each from a fresh `make()` in a folder of its own.

    A run that diverges is left out of the results with a warning that says why; if all do, that is the error.
    """
    results, failures = [], []
    for rate in learning_rates:
        try:
            changed = recipe.replace(learning_rate=rate)
            results.append(train(make(), data, changed, out=Path(out) / f"lr-{rate:g}"))
        except metrics.Diverged as error:
            failures.append(f"{rate:g}: {error.what}")
            warnings.warn(f"Learning rate {rate:g} is left out. {error.what}", stacklevel=2)
    if not results:
        raise LabError(f"No learning rate trained. {' '.join(failures)}", hint="Try much smaller ones.")
    return results


def _line(recent: deque[metrics.StepMetrics], row: metrics.StepMetrics) -> str:
    """The newest loss, and pace and padding of the last steps: one alone may be read late, with the next."""
    recent.append(row)
    useful, slots = sum(r.useful for r in recent), sum(r.slots for r in recent)
    pace = useful / max(sum(r.seconds for r in recent), 1e-9)
    return f"loss {row.loss:.3f}, {pace:,.0f} useful tokens/s, {1 - useful / slots:.0%} padding"


def _identity(model: nnx.Module, data: Any, recipe: Recipe) -> checkpoints.Run:
    """Fingerprints of the starting weights and of the data."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam))))
    values = ((path, variable.get_value()) for path, variable in flat)
    known = ((path, value.shape, value.dtype, _first_values(value)) for path, value in values)
    weights = fingerprint(type(model).__name__, known)
    return checkpoints.Run(recipe, weights, str(getattr(data, "fingerprint", type(data).__name__)))


def _first_values(value: jax.Array) -> np.ndarray:
    """The first values in float32, also of an array that other processes hold parts of."""
    if value.is_fully_addressable:
        return np.asarray(value.reshape(-1)[:FIRST].astype("float32"))
    everywhere = NamedSharding(value.sharding.mesh, P())
    return np.asarray(jax.jit(lambda x: x.reshape(-1)[:FIRST].astype("float32"), out_shardings=everywhere)(value))


def _check_mesh(mesh: Mesh, recipe: Recipe) -> None:
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise LabError("Tunix's models need a mesh of auto axes.", hint="Make it by labkit.mesh.make_mesh.")
    check_rows(mesh, recipe)


def _claim(folder: Path, run: checkpoints.Run) -> None:
    """Process 0 takes the folder, and the others are told whether it could."""
    error = None
    if jax.process_index() == 0:
        try:
            checkpoints.claim(folder, run)
        except LabError as found:
            error = found
    refused = bool(multihost_utils.broadcast_one_to_all(np.int32(error is not None)))
    if error is not None:
        raise error
    if refused:
        raise LabError(f"Process 0 could not take {folder}.", hint="Its own message says why.")


def _result(recipe: Recipe, out: Path, trainer: SftTrainer) -> TrainResult:
    rows = trainer.rows
    # The first step of each start holds the compilation; pace is told from the others.
    paced = sorted(row.seconds / row.slots for row in rows)
    usual = paced[len(paced) // 2]
    seconds = sum(row.seconds for row in rows)
    steady = [row for row in rows if row.seconds / row.slots < 3 * usual]
    trained = nnx.state(trainer.model, trainer._trained)
    return TrainResult(
        recipe=recipe,
        out=str(out),
        steps=trainer.train_steps,
        resumed_from=trainer.resumed_from,
        trained_parameters=sum(int(np.prod(x.shape)) for x in jax.tree.leaves(trained)),
        first_loss=rows[0].loss,
        last_loss=float(np.mean([row.loss for row in rows[-10:]])),
        accuracy=float(np.mean([row.accuracy for row in rows[-10:]])),
        train_seconds=seconds,
        useful_tokens=sum(row.useful for row in rows),
        useful_tokens_per_second=sum(row.useful for row in steady) / sum(row.seconds for row in steady),
        padding_share=1 - sum(row.useful for row in rows) / sum(row.slots for row in rows),
    )
