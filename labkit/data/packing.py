"""Which samples share a row: first-fit-decreasing packing, length buckets, or padding to the maximum.

A `Plan` is made once from the lengths, and is only indices. That is why the pipeline's state is a single number, why
every process has the same count of batches, and why each sample is seen exactly once an epoch. Grain's own
`FirstFitPackIterDataset` is deterministic and can be checkpointed, but it packs a stream: shards end after different
numbers of rows (processes of one training run must not), samples of two epochs share rows, and as it hands out all its
rows once one sample fits none of them, it leaves more padding (`benchmarks/packing.py` measures both).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from labkit.data.batch import Batch
from labkit.data.chat import Tokenized
from labkit.errors import LabError, nearest
from labkit.records import Record

Packing = Literal["pack", "bucket", "pad"]


@dataclass(frozen=True)
class Plan:
    """Rows of sample indices, `batch_size` rows a batch; empty rows fill the last batch. `widths` has one a batch.

    Batches of one width (`pack`, `pad`) may be cut from the rows in any order: `free` says so.
    """

    rows: tuple[tuple[int, ...], ...]
    batch_size: int
    widths: tuple[int, ...]
    free: bool


@dataclass(frozen=True)
class PackingStats(Record):
    """One epoch of a plan, all shards together. Shares are of all slots, but `loss_share` is of useful tokens."""

    packing: str
    samples: int
    rows: int
    batches: int
    slots: int
    useful_tokens: int
    loss_tokens: int
    widths: tuple[int, ...]

    @property
    def useful_share(self) -> float:
        """Tokens of samples over all slots."""
        return self.useful_tokens / self.slots

    @property
    def padding_share(self) -> float:
        """Slots that hold padding over all slots."""
        return 1 - self.useful_share

    @property
    def loss_share(self) -> float:
        """Targets over tokens of samples."""
        return self.loss_tokens / self.useful_tokens

    def __str__(self) -> str:
        return (
            f"{self.packing}: {self.samples:,} samples in {self.batches:,} batches of widths "
            f"{', '.join(map(str, self.widths))}; {self.padding_share:.1%} padding, "
            f"{self.loss_share:.1%} of the tokens are targets"
        )


def plan(
    lengths: Sequence[int],
    *,
    seq_len: int,
    batch_size: int,
    packing: Packing = "pack",
    seed: int = 0,
    window: int = 1024,
    widths: Sequence[int] | None = None,
) -> Plan:
    """Rows and batches for samples of these lengths, each at most `seq_len`.

    "pack" fills rows of `seq_len` by first-fit-decreasing within windows of `window` samples in an order drawn from
    `seed`; windows keep every row a mix of the data and the work linear. "bucket" sorts by length and pads each batch
    to the least of `widths` (default: quarters of `seq_len`) that holds it. "pad" pads every sample to `seq_len`.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    sizes = np.asarray(lengths)
    if packing not in get_args(Packing):
        raise LabError(f"There is no packing {packing!r}.", hint=f"Choices: {nearest(packing, get_args(Packing))}.")
    if len(sizes) == 0 or sizes.max() > seq_len or sizes.min() < 1:
        raise LabError(
            f"Samples must have 1 to {seq_len} tokens.", hint="Leave longer ones out (tokenize_all's max_len)."
        )
    if window < 1:
        raise LabError(f"window={window} is less than one sample.", hint="1024 samples are a good window.")
    if packing == "bucket":
        order = order[np.argsort(sizes[order], kind="stable")]
    rows: list[tuple[int, ...]]
    rows = first_fit_decreasing(sizes, order, seq_len, window) if packing == "pack" else [(int(i),) for i in order]
    rows += [()] * (-len(rows) % batch_size)
    if packing != "bucket":
        return Plan(tuple(rows), batch_size, (seq_len,) * (len(rows) // batch_size), free=True)
    bounds = sorted({*(widths or (-(-seq_len * q // 4) for q in (1, 2, 3))), seq_len})
    longest = [max(sizes[list(row)].max() for row in part if row) for part in _groups(rows, batch_size)]
    fitting = tuple(next(w for w in bounds if w >= need) for need in longest)
    return Plan(tuple(rows), batch_size, fitting, free=False)


def first_fit_decreasing(
    lengths: Int[np.ndarray, " N"], order: Int[np.ndarray, " N"], seq_len: int, window: int
) -> list[tuple[int, ...]]:
    """Samples in rows of at most `seq_len` tokens: within each window longest first, each in the first row with room.

    Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", SIAM J. Comput. 3
    (1974): never more than 11/9 of the best number of rows, and a constant.
    """
    rows: list[tuple[int, ...]] = []
    for start in range(0, len(order), window):
        part = order[start : start + window]
        room = np.full(len(part), seq_len)
        members: list[list[int]] = [[] for _ in part]
        for i in part[np.argsort(-lengths[part], kind="stable")]:
            row = int(np.argmax(room >= lengths[i]))
            room[row] -= lengths[i]
            members[row].append(int(i))
        rows += [tuple(m) for m in members if m]
    return rows


def fill(samples: Sequence[Tokenized], rows: Sequence[Sequence[int]], width: int) -> Batch:
    """The arrays `[len(rows), width]` of rows of samples; padding is token 0 in segment 0."""
    shape = (len(rows), width)
    tokens, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
    loss_mask = np.zeros(shape, bool)
    for r, row in enumerate(rows):
        at = 0
        for segment, i in enumerate(row, start=1):
            sample = samples[i]
            place = np.s_[r, at : at + len(sample)]
            tokens[place], loss_mask[place] = sample.tokens, sample.loss_mask
            positions[place], segments[place] = np.arange(len(sample)), segment
            loss_mask[r, at] = False  # nothing of this sample comes before its first token
            at += len(sample)
    return Batch(tokens=tokens, loss_mask=loss_mask, positions=positions, segment_ids=segments)


def stats(samples: Sequence[Tokenized], plan: Plan, packing: str) -> PackingStats:
    """What one epoch of a plan holds."""
    return PackingStats(
        packing=packing,
        samples=sum(len(row) for row in plan.rows),
        rows=len(plan.rows),
        batches=len(plan.widths),
        slots=plan.batch_size * sum(plan.widths),
        useful_tokens=sum(len(samples[i]) for row in plan.rows for i in row),
        loss_tokens=sum(int(samples[i].loss_mask[1:].sum()) for row in plan.rows for i in row),
        widths=tuple(sorted(set(plan.widths))),
    )


def _groups(rows: list[tuple[int, ...]], size: int) -> list[list[tuple[int, ...]]]:
    """The rows, `size` at a time."""
    rest = iter(rows)
    return [list(islice(rest, size)) for _ in range(len(rows) // size)]
