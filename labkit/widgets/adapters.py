"""How large adapters are: by model, rank and targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import plotly.graph_objects as go

from labkit import lora, models, plots
from labkit.widgets.frame import Panel, dropdown, slider

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TARGETS = (
    ("all linears", "all"),
    ("attention", "attention"),
    ("MLP", "mlp"),
    ("queries and values", "q,kv"),
    ("queries", "q"),
)
# What training keeps for each trained parameter, in float32: itself, its gradient, AdamW's two moments. Qwix makes
# adapters in the dtype of their weights, and Optax its moments in that of the adapters: on bfloat16 all is half of it.
BYTES = {"adapters": 4, "gradients": 4, "optimizer": 8}


def adapter_size(names: Sequence[str] | None = None, *, model: str = "gemma4-31b", rank: int = 16) -> Panel:
    """Trained parameters and the memory that they take in training, for every rank; the chosen one stands out.

    `names` are registry models (default: all). Every number is a `labkit.lora.size`.
    """
    controls = {
        "model": dropdown("Model", names or models.names(), model),
        "targets": dropdown("Targets", TARGETS, "all"),
        "rank": slider("Rank", RANKS, rank),
    }
    return Panel(controls, _adapter_size)


def _adapter_size(model: str, targets: str, rank: int) -> Iterable[str | go.Figure]:
    chosen = lora.size(model, rank, targets)
    words = dict((value, text) for text, value in TARGETS)[targets]
    drawn = plots.bars(
        f"{model}, rank {rank} on {words}: {chosen.parameters:,} trained parameters",
        [str(r) for r in RANKS],
        {kind: [lora.size(model, r, targets, bytes_per_parameter=n).bytes for r in RANKS] for kind, n in BYTES.items()},
        x="rank",
        y="bytes in training (float32)",
        stacked=True,
    )
    drawn.update_traces(marker_opacity=[1.0 if r == rank else 0.35 for r in RANKS])
    drawn.update_xaxes(type="category").update_yaxes(tickformat="~s")
    return (
        f"{models.get(model)}. {chosen.linears} linears get an adapter; "
        f"saved in bfloat16: {chosen.bytes:,} bytes. In a bfloat16 model all bars are half as high.",
        drawn,
    )
