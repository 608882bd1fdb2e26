"""Tunix's `PeftTrainer` with a loss that counts targets rightly, packed rows, and a resumable data iterator."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P
from tunix.sft.hooks import DataHooks
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig

from labkit.data.batch import Batch
from labkit.errors import LabError
from labkit.mesh import row_axes
from labkit.sft import losses, metrics
from labkit.sft.checkpoints import Checkpoints, fault
from labkit.sft.recipe import Recipe

MAX_QUEUED = 2  # steps that may run before their metrics are read


class _Feed(DataHooks):
    """Hands the trainer the next batch, and none after the last step."""

    def __init__(self, iterator: Iterator[Batch], steps: int) -> None:
        self.iterator, self.steps = iterator, steps

    def load_next_train_batch(self, trainer: Any) -> Batch | None:
        if trainer.train_steps >= self.steps:
            return None
        return next(self.iterator, None)

    def load_next_eval_batch(self, trainer: Any) -> None:
        return None


class SftTrainer(PeftTrainer):
    """One update is the gradient of the mean loss over all counted targets of the batch.

    Tunix accumulates with `optax.MultiSteps`, which averages parts as if each had as many targets. Here the parts of a
    batch are summed inside the step, and divided once by the count: the update does not depend on `accumulation`,
    packing or the number of devices, but for rounding. Rows are packed by `labkit.data`, so Tunix's own packing
    (`max_seq_token_per_tpu`) is not used.
    """

    supports_sequence_packing = True

    def __init__(
        self,
        model: nnx.Module,
        recipe: Recipe,
        iterator: Any,
        out: Path,
        *,
        on_step: Callable[[metrics.StepMetrics], None],
        mesh: Mesh | None = None,
        tensorboard: Path | None = None,
    ) -> None:
        self.rate = schedule(recipe)
        over = ("fsdp",) if mesh is None else (row_axes(mesh),)
        self._rows = None if mesh is None else NamedSharding(mesh, P(*over))
        config = TrainingConfig(eval_every_n_steps=1, data_sharding_axis=over)
        super().__init__(model, optimizer(recipe, self.rate), config)
        self.recipe, self._iterator, self._on_step = recipe, iterator, on_step
        self._queue: list[tuple[int, Any, int]] = []
        self._slots = 0
        self.checkpoint_manager = Checkpoints(out / "checkpoints", recipe, before=lambda: self.read_metrics(0))
        step, extra = self.checkpoint_manager.maybe_restore(
            model, self.optimizer, restore_only_lora_params=self._lora_enabled
        )
        self._train_steps = self._iter_steps = self.resumed_from = step
        if step:
            iterator.set_state(extra["data"])
        first = jax.process_index() == 0  # it alone writes the metrics
        self.rows = metrics.cut(out / "metrics.jsonl", step, write=first)
        self._watch = metrics.Watch(self.rows)
        self._writer = metrics.Writer(out / "metrics.jsonl", tensorboard) if first else None
        self._has_aux = True
        self._clock = time.monotonic()
        self.with_data_hooks(_Feed(iterator, recipe.steps))

    def _prepare_inputs(self, batch: Batch) -> Batch:
        if self._rows is not None:
            # Tunix's own way would replicate rows that do not divide, and those of one process alone.
            batch = jax.tree.map(lambda x: jax.make_array_from_process_local_data(self._rows, np.asarray(x)), batch)
        self._slots = int(np.size(batch.segment_ids))
        return batch

    def _train_step(self, model: nnx.Module, optimizer: nnx.Optimizer, batch: Batch) -> Any:
        total, grads = gradient(model, batch, self.recipe, self._trained)
        norm = optax.global_norm(grads)
        optimizer.update(model, grads)
        self._keep_sharding(model, optimizer)
        useful = jnp.count_nonzero(batch.segment_ids)
        aux = {"correct": total.correct, "tokens": total.tokens, "loss": total.loss, "norm": norm, "useful": useful}
        return total.loss / jnp.maximum(total.tokens, 1), aux, norm

    def _keep_sharding(self, model: nnx.Module, optimizer: nnx.Optimizer) -> None:
        """Else the compiler chooses where a small updated weight goes, and the next step is compiled for that."""
        if self._rows is None:
            return
        for holder, kinds in ((model, self._trained), (optimizer, nnx.optimizer.OptState)):
            state = nnx.state(holder, kinds)
            wanted = nnx.get_named_sharding(state, self._rows.mesh)
            nnx.update(holder, jax.lax.with_sharding_constraint(state, wanted))

    @property
    def _trained(self) -> type[nnx.Param]:
        return nnx.LoRAParam if self._lora_enabled else nnx.Param

    def _post_process_train_step(self, aux: Any) -> None:
        self._queue.append((self._train_steps + 1, aux, self._slots))
        self.read_metrics(MAX_QUEUED)
        fault("step")

    def _shard_optimizer(self, mesh: Mesh) -> None:
        """Put what the step changes where it leaves it, else the second step is compiled again."""
        super()._shard_optimizer(mesh)
        for holder, kinds in ((self.model, self._trained), (self.optimizer, nnx.Variable)):
            state = nnx.state(holder, kinds)
            nnx.update(holder, jax.tree.map(lambda x: jax.device_put(x, _settled(x, mesh)), state))

    def _write_train_metrics(self) -> None:
        """Tunix logs a loss that is the mean of means; ours are written by `read_metrics`."""
        self._buffered_train_metrics = None

    def read_metrics(self, leave: int) -> None:
        """Fetch the metrics of all steps but the last `leave`, write them, and stop a run that has failed."""
        while len(self._queue) > leave:
            step, aux, slots = self._queue.pop(0)
            values = {k: float(v) for k, v in jax.device_get(aux).items()}
            now = time.monotonic()
            row = metrics.StepMetrics(
                step=step,
                loss=values["loss"] / max(values["tokens"], 1),
                accuracy=values["correct"] / max(values["tokens"], 1),
                tokens=int(values["tokens"]),
                useful=int(values["useful"]),
                slots=slots,
                grad_norm=values["norm"],
                learning_rate=float(self.rate(step - 1)),
                seconds=now - self._clock,
            )
            self._clock = now
            if self._writer is not None:
                self._writer.write(row)
            self.rows.append(row)
            self._watch.see(row)
            self._on_step(row)

    def custom_checkpoint_metadata(self) -> dict[str, Any]:
        """Where the data iterator is."""
        return {"data": self._iterator.get_state()}

    def _save_last_checkpoint(self) -> None:
        self.checkpoint_manager.save(
            self._train_steps,
            self.model,
            self.optimizer,
            save_only_lora_params=self._lora_enabled,
            custom_metadata=self.custom_checkpoint_metadata(),
            force=True,
        )

    def close(self) -> None:
        """Read the last metrics, write the last checkpoint, and wait for it."""
        self.read_metrics(0)
        self._save_last_checkpoint()
        self.checkpoint_manager.close()
        if self._writer is not None:
            self._writer.close()


def _settled(x: jax.Array, mesh: Mesh) -> Sharding:
    """The sharding of an array as jit gives it back: counters on every device, no None at the end of a spec."""
    if not x.committed and not mesh.empty:
        return NamedSharding(mesh, P())
    if not isinstance(x.sharding, NamedSharding):
        return x.sharding
    axes = list(x.sharding.spec)
    while axes and axes[-1] is None:
        axes.pop()
    return NamedSharding(x.sharding.mesh, P(*axes))


def gradient(
    model: nnx.Module, batch: Batch, recipe: Recipe, trained: type[nnx.Param]
) -> tuple[losses.Sums, nnx.State]:
    """Sums over the batch, and the gradient of the mean loss, computed in `recipe.accumulation` parts."""
    graph, weights, rest = nnx.split(model, trained, ...)

    def part_sums(weights: nnx.State, part: Batch) -> tuple[Any, losses.Sums]:
        whole = nnx.merge(graph, weights, rest)
        found = losses.sums(whole, part, chunk=recipe.loss_chunk, train_head=recipe.tuning == "full")
        return found.loss, found

    def body(total: Any, part: Batch) -> tuple[Any, None]:
        grads, found = jax.grad(part_sums, has_aux=True)(weights, part)
        return jax.tree.map(jnp.add, total, (found, grads)), None

    if recipe.accumulation == 1:
        grads, total = jax.grad(part_sums, has_aux=True)(weights, batch)
    else:
        # In float32: a sum of many bfloat16 parts would lose the small ones.
        empty = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=jnp.float32), weights)
        zero = losses.Sums(*(jnp.float32(0),) * 3), empty
        (total, grads), _ = jax.lax.scan(body, zero, _parts(batch, recipe.accumulation))
    count = jnp.maximum(total.tokens, 1)
    return total, jax.tree.map(lambda g, w: (g / count).astype(w.dtype), grads, weights)


def _parts(batch: Batch, count: int) -> Batch:
    """Rows i, i + count, ... make part i, so that each part has rows of every shard of the batch."""
    return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, count, *x.shape[1:]), 1, 0), batch)


def check_rows(mesh: Mesh, recipe: Recipe) -> None:
    """A `LabError` if the rows of a batch do not divide over the mesh."""
    over = row_axes(mesh)
    ways = math.prod(mesh.shape[name] for name in over)
    if recipe.batch_size % ways:
        raise LabError(
            f"A batch of {recipe.batch_size} rows does not divide over {' x '.join(over)} of {ways}.",
            hint=f"Choose a batch_size that is a multiple of {ways}, or smaller axes.",
        )


def schedule(recipe: Recipe) -> optax.Schedule:
    """Warm-up from peak / warmup, which the first step has, then the recipe's curve down to `end_rate` of the peak."""
    peak, end = recipe.learning_rate, recipe.learning_rate * recipe.end_rate
    rest = max(recipe.steps - recipe.warmup, 1)
    after = {
        "cosine": optax.cosine_decay_schedule(peak, rest, recipe.end_rate),
        "linear": optax.linear_schedule(peak, end, rest),
        "constant": optax.constant_schedule(peak),
    }[recipe.schedule]
    if not recipe.warmup:
        return after
    up = optax.linear_schedule(peak / recipe.warmup, peak, recipe.warmup)
    return optax.join_schedules([up, after], [recipe.warmup])


def optimizer(recipe: Recipe, rate: optax.Schedule) -> optax.GradientTransformation:
    """AdamW behind a clip of the global norm."""
    adam = optax.adamw(rate, b1=recipe.beta1, b2=recipe.beta2, weight_decay=recipe.weight_decay)
    return optax.chain(optax.clip_by_global_norm(recipe.clip), adam) if recipe.clip else adam
