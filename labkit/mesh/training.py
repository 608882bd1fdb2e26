"""The objectives of this course's training steps: LoRA and full fine-tuning. Standard library only.

Memory. Beside its arrays a step holds most at one of two moments, and the larger one counts. With b rows of T tokens on
a device, a model of width D and dtype of i bytes, and tp-ths of heads N, MLP width F and vocabulary V:

- `backward`, the backward pass of one layer: what remat left saved of all L layers (decoder: L b T D i / tp), the
  layer's input and its likes whole (INPUT_COPIES b T D i), and the larger of its attention (two arrays of scores,
  2 b N T T i / tp; HEAD_COPIES of queries; masks of b T T bytes) and its MLP (MLP_COPIES b T F i / tp), recomputed;
- `loss`: what is saved, a chunk of c logits in float32 (LOGIT_COPIES 4 b c V / tp) and, where the unembedding is
  trained, its gradient in float32.

Where fsdp keeps weights in parts, the layer at work, or the unembedding, is whole on top of that.
Tunix splits activations `[B, T, D]` over fsdp along B and over tp along D, and heads and MLP over tp. The factors are
those of programs that libtpu 0.0.42.1 compiled, read off their schedules (tests/test_mesh.py has the points).

Traffic. With tp each block (attention, MLP, per-layer inputs) gathers its input and scatters the sum of its output:
once in the forward pass, once more where remat computes it again, and in the backward pass one gather for its output
and one reduce-scatter for each linear that reads its input. With fsdp each layer's weights are gathered in both
passes; gradients of what is trained are reduced over dp and fsdp.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from labkit import models
from labkit.mesh import rules as sharding
from labkit.mesh.objectives import Held, Job, Needs, Sizes, Splits, objective
from labkit.mesh.rules import Arrays
from labkit.mesh.sizes import ITEM_BYTES
from labkit.mesh.traffic import Transfer
from labkit.models.linears import Linear, linears_of, select
from labkit.models.spec import ModelSpec

# Steps that Optax and Flax count: AdamW's, the schedule's, the optimizer's own.
COUNTERS = 12
# Arrays that are held at once in the backward pass of a layer: of the size of its input, its queries, its MLP's inside.
INPUT_COPIES = 6
HEAD_COPIES = 4
MLP_COPIES = 6
# Float32 arrays of the size of a chunk's logits in the loss: one on v5e, two where a SparseCore scatters.
LOGIT_COPIES = 1.25
# What each remat leaves saved of a layer, in arrays of the size of its input.
SAVED = {"decoder": 1, "block": 6}
NORMS_PASSES = 3


@objective("train_lora")
def train_lora(job: Job, spec: ModelSpec) -> Needs:
    """LoRA with AdamW: the base is frozen; adapters, their gradients and two moments have the base's dtype."""
    chosen = select(linears_of(job.model), job.targets)
    adapters = sharding.adapters(job.model, chosen, job.rank, job.dtype)
    base = sharding.weights(job.model, job.dtype)
    held = (
        Held("weights", base),
        Held("adapters", adapters),
        Held("optimizer", adapters, copies=2),
        Held("gradients", adapters),
    )
    return _needs(job, spec, held, adapters, full=False)


@objective("train_full")
def train_full(job: Job, spec: ModelSpec) -> Needs:
    """Every weight trained with AdamW: gradients and two moments in the weights' dtype."""
    base = sharding.weights(job.model, job.dtype)
    held = (Held("weights", base), Held("optimizer", base, copies=2), Held("gradients", base))
    return _needs(job, spec, held, base, full=True)


def _needs(job: Job, spec: ModelSpec, held: tuple[Held, ...], trained: Sequence[Arrays], *, full: bool) -> Needs:
    """What both kinds of training share."""
    step = _Step(job, spec, full)
    return Needs(
        held,
        step.working,
        lambda sizes, splits: [*step.over_tp(sizes), *step.over_rows(sizes, splits, trained)],
        {"optimizer": COUNTERS},
    )


@dataclasses.dataclass(frozen=True)
class _Step:
    """One training step: the sizes of what comes and goes, on one device."""

    job: Job
    spec: ModelSpec
    full: bool = False

    def rows(self, sizes: Sizes) -> int:
        """Rows of one device in one part of the batch."""
        return -(-self.job.batch // (sizes.get("dp", 1) * sizes.get("fsdp", 1) * self.job.accumulation))

    def working(self, sizes: Sizes) -> dict[str, dict[str, float]]:
        """Bytes by kind at each of the two moments."""
        rows, item, tp = self.rows(sizes), ITEM_BYTES[self.job.dtype], sizes.get("tp", 1)
        tokens = rows * self.job.seq
        state = tokens * self.spec.embed_dim * item
        saved = self._saved(tokens, state, tp)
        logits = LOGIT_COPIES * rows * min(self.job.loss_chunk, self.job.seq) * self.spec.vocab_size * 4 / tp
        layer = max(self._layer(kind, tokens, sizes) for kind in _kinds(self.job.model))
        return {
            "backward": {"activations": saved + layer + INPUT_COPIES * state},
            "loss": {"activations": saved + self._head(sizes), "logits": logits},
        }

    def _saved(self, tokens: int, state: float, tp: int) -> float:
        """What the forward pass leaves for the backward pass, of all layers."""
        if self.job.remat in SAVED:
            return SAVED[self.job.remat] * self.spec.num_layers * state / tp
        item = ITEM_BYTES[self.job.dtype]
        return sum(kind.count * self._everything(kind, tokens, state, tp, item) for kind in _kinds(self.job.model))

    def _everything(self, kind: _Layer, tokens: int, state: float, tp: int, item: int) -> float:
        """What one layer's backward pass needs when nothing is computed again."""
        heads = tokens * (2 * self.spec.num_heads + 2 * kind.kv_heads) * kind.head_dim * item / tp
        scores = tokens * self.job.seq * self.spec.num_heads * item / tp
        return SAVED["block"] * state / tp + heads + scores + 3 * tokens * kind.hidden_dim * item / tp

    def _layer(self, kind: _Layer, tokens: int, sizes: Sizes) -> float:
        """The working set of one layer's backward pass: attention and MLP follow each other, the larger counts."""
        tp, item = sizes.get("tp", 1), ITEM_BYTES[self.job.dtype]
        scores = 2 * tokens * self.job.seq * self.spec.num_heads * item / tp
        heads = HEAD_COPIES * tokens * self.spec.num_heads * kind.head_dim * item / tp
        masks = 3 * tokens * self.job.seq
        mlp = MLP_COPIES * tokens * kind.hidden_dim * item / tp
        return max(scores + heads + masks, mlp) + self._gathered(sizes, kind)

    def _gathered(self, sizes: Sizes, kind: _Layer) -> float:
        """One layer's weights, whole but for tp, where fsdp keeps them in parts."""
        if sizes.get("fsdp", 1) == 1:
            return 0.0
        return kind.weights * ITEM_BYTES[self.job.dtype] / sizes.get("tp", 1)

    def _head(self, sizes: Sizes) -> float:
        """The unembedding, whole but for tp, where fsdp keeps it in parts; its gradient in float32 where it has one."""
        elements = self.spec.vocab_size * self.spec.embed_dim / sizes.get("tp", 1)
        whole = elements * ITEM_BYTES[self.job.dtype] if sizes.get("fsdp", 1) > 1 else 0.0
        return whole + (4 * elements if self.full else 0.0)

    def over_tp(self, sizes: Sizes) -> list[Transfer]:
        """Gathers and scatters of activations, and the sums that norms split along D need."""
        if sizes.get("tp", 1) == 1:
            return []
        tokens, parts = self.rows(sizes) * self.job.seq, self.job.accumulation
        state = tokens * self.spec.embed_dim * ITEM_BYTES[self.job.dtype]
        again = 0 if self.job.remat == "none" else 1
        writes, reads = blocks(self.job.model)
        gathers, scatters = writes * (2 + again), writes * (1 + again) + reads
        norms = _norms(self.job.model) * NORMS_PASSES
        return [
            Transfer("tp", "all-gather", state, parts * (gathers + 1), "inputs of blocks"),
            Transfer("tp", "reduce-scatter", state, parts * (scatters + 1), "outputs of blocks, and their gradients"),
            Transfer("tp", "all-reduce", tokens * 4, parts * (norms + 3), "sums of norms and loss"),
        ]

    def over_rows(self, sizes: Sizes, splits: Splits, trained: Sequence[Arrays]) -> list[Transfer]:
        """Weights gathered over fsdp, gradients reduced over fsdp and dp."""
        fsdp, dp = sizes.get("fsdp", 1), sizes.get("dp", 1)
        found = []
        if fsdp > 1:
            weights = _Sum.of(splits, "fsdp")
            passes = 2 * self.job.accumulation
            found += _even("fsdp", "all-gather", weights, "weights of each layer", times=passes, ways=fsdp)
        if fsdp > 1 or dp > 1:
            mine = {arrays: splits[arrays] for arrays in trained}
            split, whole = _Sum.of(mine, "fsdp"), _Sum.of(mine, "fsdp", split=False)
            found += _even("fsdp", "reduce-scatter", split, "gradients", ways=fsdp)
            found += _even("fsdp", "all-reduce", whole, "gradients")
            found += _even("dp", "all-reduce", _Sum(split.count + whole.count, split.bytes + whole.bytes), "gradients")
        return [moved for moved in found if sizes.get(moved.axis, 1) > 1]


@dataclasses.dataclass(frozen=True)
class _Sum:
    """So many arrays, and the bytes of one device's parts of them."""

    count: int
    bytes: int

    @classmethod
    def of(cls, splits: Splits, axis: str, *, split: bool = True) -> _Sum:
        """Those that a mesh axis splits, or does not split."""
        chosen = [(arrays, part) for arrays, part in splits.items() if (axis in part.spec) == split]
        sizes = [sharding.device_bytes(arrays, part.shape)[0] for arrays, part in chosen]
        return cls(sum(arrays.count for arrays, _ in chosen), sum(sizes))


def _even(axis: str, kind: str, parts: _Sum, what: str, *, times: int = 1, ways: int = 1) -> list[Transfer]:
    """Transfers of some arrays, as if all were of one size; `ways` parts of one device make the whole."""
    if not parts.count:
        return []
    return [Transfer(axis, kind, parts.bytes * ways / parts.count, parts.count * times, what)]


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What tells one kind of layer from another: its sizes, how many there are, the elements of one's linears."""

    head_dim: int
    kv_heads: int
    hidden_dim: int
    count: int
    weights: int


@functools.cache
def _kinds(model: str) -> tuple[_Layer, ...]:
    """The kinds of layers of a registry model."""
    spec = models.get(model)
    sizes = [(spec.layer_head_dim(i), spec.layer_kv_heads(i), spec.layer_hidden_dim(i)) for i in range(spec.num_layers)]
    first = {size: sizes.index(size) for size in sizes}
    return tuple(_Layer(*size, sizes.count(size), _layer_weights(model, i)) for size, i in first.items())


@functools.cache
def _layer_weights(model: str, layer: int) -> int:
    return sum(math.prod(linear.shape) for linear in linears_of(model) if linear.layer == layer)


@functools.cache
def blocks(model: str) -> tuple[int, int]:
    """Blocks of all layers (each has one linear that writes back), and linears that read a block's input."""
    used = [linear for linear in linears_of(model) if linear.used]
    writes = sum(_writes(linear) for linear in used)
    return writes, len(used) - writes


def _writes(linear: Linear) -> bool:
    return linear.role in ("o", "down") or linear.path.endswith("per_layer_projection")


@functools.cache
def _norms(model: str) -> int:
    """Norms over the width of the model."""
    return sum(a.count for a in sharding.weights(model, "bfloat16") if a.names == ("norm",))
