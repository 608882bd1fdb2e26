"""Tensors of a model on both sides of a conversion, and what a checkpoint is made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import plotly.graph_objects as go

from labkit import convert, models, plots
from labkit.convert.documentation import Trace
from labkit.convert.inspection import TensorRow, inspect
from labkit.widgets.frame import Panel, dropdown

_TOP = ""


def tensor_tracker(model: str = "gemma4-31b", tensor: str = "model.layers.0.self_attn.k_proj.weight") -> Panel:
    """Choose a tensor of a registry model: its name, shape and axes in Tunix, in Transformers, and on the way."""
    spec = models.get(model)

    def answer(tensor: str) -> Iterable[Trace]:
        return (convert.trace(spec, tensor),)

    return Panel({"tensor": dropdown("Tensor", [row.hf for row in convert.rows(spec)], tensor)}, answer)


def checkpoint_tree(path: str | Path) -> Panel:
    """Choose a branch of a checkpoint's names: the bytes of what is below it, and its arrays; nothing is loaded."""
    found = inspect(path)
    options = [("everything", _TOP), *((branch.prefix, branch.prefix) for branch in found.forks())]

    def answer(branch: str) -> Iterable[str | go.Figure | TensorRow]:
        below = found.branches(branch)
        drawn = plots.bars(
            str(found.branch(branch)),
            [part.prefix.removeprefix(f"{branch}.") for part in below],
            {"weights": [part.bytes for part in below]},
            x="part",
            y="bytes",
        )
        drawn.update_xaxes(type="category").update_yaxes(tickformat="~s")
        return (str(found).partition("\n")[0], drawn, *found.at(branch))

    return Panel({"branch": dropdown("Branch", options, _TOP)}, answer)
