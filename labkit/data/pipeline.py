"""What feeds a training step: samples in a planned order, through Grain, resumable at any batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import grain
import numpy as np

from labkit.data import packing as packings
from labkit.data.batch import Batch
from labkit.data.chat import ChatOptions, Tokenized, TokenReport, tokenize_all
from labkit.data.examples import Example
from labkit.errors import LabError


class Pipeline:
    """An iterable of `Batch`: iterating starts at the first batch, each epoch in another order drawn from the seed.

    `stats` tells what an epoch holds and `report` what became of the examples (None if tokens were given).
    `iter(pipeline)` is a Grain `DatasetIterator`: `get_state()` and `set_state(state)` save and restore the exact
    place, in JSON values of a few bytes. The state also names the data: with other data it is a `LabError`.
    It does not depend on the shard, so a run may go on with another number of processes.
    """

    def __init__(
        self,
        samples: Sequence[Tokenized],
        *,
        seq_len: int,
        batch_size: int,
        seed: int = 0,
        packing: packings.Packing = "pack",
        epochs: int | None = None,
        shard: tuple[int, int] = (0, 1),
        window: int = 1024,
        widths: Sequence[int] | None = None,
        prefetch: int = 0,
        report: TokenReport | None = None,
    ) -> None:
        _check(batch_size, seed, epochs, shard)
        lengths = [len(s) for s in samples]
        self.plan = packings.plan(
            lengths,
            seq_len=seq_len,
            batch_size=batch_size,
            packing=packing,
            seed=seed,
            window=window,
            widths=widths,
        )
        self.stats = packings.stats(samples, self.plan, packing)
        self.report = report
        self.epochs = epochs
        self.batches_per_epoch = len(self.plan.widths)
        self.fingerprint = _fingerprint(samples, self.plan, seed)
        batches = _ordered(self.plan, seed).repeat(epochs).map(_Build(samples, self.plan, shard))
        options = grain.ReadOptions(num_threads=int(prefetch > 0), prefetch_buffer_size=prefetch)
        self._dataset = batches.to_iter_dataset(options)

    def __iter__(self) -> Resumable:
        return Resumable(iter(self._dataset), self.fingerprint)

    def __len__(self) -> int:
        """Batches in all epochs; a `LabError` if they never end."""
        if self.epochs is None:
            raise LabError("This pipeline never ends.", hint="Give epochs=, or use batches_per_epoch.")
        return self.epochs * self.batches_per_epoch

    def __repr__(self) -> str:
        return f"Pipeline({self.stats})"


class Resumable(grain.DatasetIterator[Batch]):
    """A Grain iterator whose state says which data it belongs to."""

    def __init__(self, parent: grain.DatasetIterator[Batch], fingerprint: str) -> None:
        super().__init__(parent)
        self._fingerprint = fingerprint

    def __next__(self) -> Batch:
        return next(self._parent)

    def get_state(self) -> dict[str, Any]:
        """The place after the last batch that was handed out."""
        return {"data": self._fingerprint, "place": self._parent.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a place that `get_state` gave, in this run or another."""
        if state.get("data") != self._fingerprint:
            raise LabError(
                "This data state belongs to other data, or to other data settings.",
                hint="Resume with the samples, tokenizer, seed, packing, window and batch size that it was saved with.",
            )
        self._parent.set_state(state["place"])


def pipeline(
    examples: Iterable[Example],
    tokenizer: Any,
    *,
    seq_len: int,
    batch_size: int,
    seed: int = 0,
    packing: packings.Packing = "pack",
    epochs: int | None = None,
    shard: tuple[int, int] = (0, 1),
    window: int = 1024,
    widths: Sequence[int] | None = None,
    prefetch: int = 0,
    **options: Unpack[ChatOptions],
) -> Pipeline:
    """Conversations as batches `[batch_size / shard count, seq_len]`, ready for a training step.

    All examples are tokenized first, because a packing needs their lengths and a user the count of what is left out;
    tokens stay in memory at 5 bytes each. `batch_size` is the rows of all processes together: process i of n
    (`shard=(i, n)`) gets every n-th row of each batch, so the rows of a step do not depend on the number of processes.
    `epochs=None` never ends. `packing`, `window` and `widths` as in `packing.plan`; `prefetch` batches are made ahead
    by a thread (making one takes microseconds, so the default is none). `options` as in `chat.ChatOptions`.

    Raises:
        LabError: no sample fits, or a setting is not possible.
    """
    samples, report = tokenize_all(examples, tokenizer, max_len=seq_len, **options)
    return Pipeline(
        samples,
        seq_len=seq_len,
        batch_size=batch_size,
        seed=seed,
        packing=packing,
        epochs=epochs,
        shard=shard,
        window=window,
        widths=widths,
        prefetch=prefetch,
        report=report,
    )


class _Build(grain.transforms.Map):
    """From the row numbers of a batch to this shard's arrays."""

    def __init__(self, samples: Sequence[Tokenized], plan: packings.Plan, shard: tuple[int, int]) -> None:
        self._samples, self._plan, self._shard = samples, plan, shard

    def map(self, element: np.ndarray) -> Batch:
        index, count = self._shard
        rows = [self._plan.rows[i] for i in element[index::count]]
        return packings.fill(self._samples, rows, self._plan.widths[element[0] // self._plan.batch_size])


def _ordered(plan: packings.Plan, seed: int) -> grain.MapDataset:
    """The row numbers of each batch of an epoch; Grain shuffles anew in each epoch."""
    size = plan.batch_size
    if plan.free:
        return grain.MapDataset.range(len(plan.rows)).shuffle(seed=seed).batch(size)
    batches = grain.MapDataset.range(len(plan.widths)).shuffle(seed=seed)
    return batches.map(lambda i: np.arange(i * size, (i + 1) * size))


def _fingerprint(samples: Sequence[Tokenized], plan: packings.Plan, seed: int) -> str:
    """A short hash of all that decides which batch comes when."""
    digest = hashlib.sha256(json.dumps([seed, plan.batch_size, plan.widths, plan.rows]).encode())
    for sample in samples:
        digest.update(sample.tokens.tobytes() + sample.loss_mask.tobytes())
    return digest.hexdigest()[:16]


def _check(batch_size: int, seed: int, epochs: int | None, shard: tuple[int, int]) -> None:
    index, count = shard
    if not 0 <= index < count:
        raise LabError(f"shard={shard} is not (index, count) with index below count.", hint="Process 0 of 2 is (0, 2).")
    if batch_size < 1 or batch_size % count:
        raise LabError(
            f"batch_size={batch_size} cannot be shared by {count} processes.", hint=f"Use a multiple of {count}."
        )
    if not 0 <= seed < 2**32:
        raise LabError(f"seed={seed} is not a 32-bit number.", hint="Use 0 to 4294967295.")
    if epochs is not None and epochs < 1:
        raise LabError(f"epochs={epochs} is less than one.", hint="Use None for no end.")
