"""The objective of serving: one decode step of all rows, with their KV cache. Standard library only.

Weights are split over tp alone (each dp replica has its own); the cache holds `seq` positions of each row, local layers
their window. KV heads that tp does not divide are whole on each device.
"""

from __future__ import annotations

from labkit.mesh import rules as sharding
from labkit.mesh.objectives import Held, Job, Needs, Sizes, Splits, objective
from labkit.mesh.sizes import ITEM_BYTES
from labkit.mesh.traffic import Transfer
from labkit.mesh.training import blocks
from labkit.models.spec import ModelSpec

# Arrays of the size of a block's inner state that a decode step holds at once.
COPIES = 4


@objective("serve")
def serve(job: Job, spec: ModelSpec) -> Needs:
    """A decode step: weights, KV cache, one token of each row."""

    def working(sizes: Sizes) -> dict[str, dict[str, float]]:
        rows = -(-job.batch // sizes.get("dp", 1))
        tp, item = sizes.get("tp", 1), ITEM_BYTES[job.dtype]
        inner = COPIES * rows * (spec.hidden_dim / tp + spec.embed_dim) * item
        logits = rows * spec.vocab_size * 4 / tp
        return {"decode": {"activations": inner, "logits": logits, "kv_cache": rows * kv_cache(job, spec, tp)}}

    def transfers(sizes: Sizes, splits: Splits) -> list[Transfer]:
        if sizes.get("tp", 1) == 1:
            return []
        rows = -(-job.batch // sizes.get("dp", 1))
        state = rows * spec.embed_dim * ITEM_BYTES[job.dtype]
        return [
            Transfer("tp", "all-reduce", state, blocks(job.model)[0], "outputs of blocks"),
            Transfer("tp", "all-gather", rows * spec.vocab_size * 4, 1, "logits"),
        ]

    return Needs((Held("weights", sharding.weights(job.model, job.dtype)),), working, transfers,
                 rules={"embed": None, "per_layer_embed": None}, axes=("dp", "tp"))  # fmt: skip


def kv_cache(job: Job, spec: ModelSpec, tp: int) -> int:
    """Bytes of keys and values of one row on one device."""
    total = 0
    for layer in range(spec.num_layers):
        if spec.layer_shares_kv(layer):
            continue
        window = None if spec.is_global(layer) else spec.sliding_window
        positions = min(job.seq, window or job.seq)
        heads = spec.layer_kv_heads(layer)
        heads = heads // tp if heads % tp == 0 else heads
        total += 2 * positions * heads * spec.layer_head_dim(layer) * ITEM_BYTES[job.dtype]
    return total
