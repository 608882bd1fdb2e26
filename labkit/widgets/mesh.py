"""Which mesh for a model on a slice: what fits, what each axis costs, and why not another."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from labkit import hardware, models
from labkit import mesh as meshes
from labkit.mesh import figures
from labkit.widgets.frame import Panel, dropdown, slider

SLICES = ("v5e-1", "v5e-4", "v5e-8", "v5e-16", "v5e-64", "v5e-256", "v6e-8", "v6e-16", "v5p-8", "v5p-16", "v5p-64",
          "v5p-128", "v4-8", "v4-32", "tpu7x-8", "2xv5e-16", "2xv5p-128")  # fmt: skip
SEQUENCES = (256, 512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RANKS = (1, 4, 8, 16, 32, 64, 128, 256)
CHOICE = 0  # of an axis: the planner's
SIZES = (("planner's choice", CHOICE), *((str(n), n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)))
OBJECTIVES = (("LoRA", "train_lora"), ("full fine-tuning", "train_full"), ("serving", "serve"))
REMAT = (("whole layers", "decoder"), ("attention and MLP", "block"), ("nothing", "none"))
INDIVISIBLE = (("is an error", "error"), ("is whole on each chip", "replicate"))


def mesh_explorer(
    names: Sequence[str] | None = None,
    *,
    model: str = "gemma4-31b",
    slice_name: str = "v5p-8",
    seq: int = 2048,
    batch: int = 8,
    slices: Sequence[str] = SLICES,
) -> Panel:
    """The plan of a mesh, drawn: torus and logical mesh, a chip's memory, collectives, verdict and reasons.

    `names` are registry models (default: all), `slices` the slices to choose from. Every number is of `mesh.plan`.
    """
    chosen = [*slices, *([] if slice_name in slices else [hardware.slice(slice_name).name])]
    controls = {
        "model": dropdown("Model", names or models.names(), model),
        "slice_name": dropdown("Slice", chosen, slice_name),
        "objective": dropdown("Step", OBJECTIVES, "train_lora"),
        "seq": slider("Tokens a row", SEQUENCES, seq),
        "batch": slider("Rows", BATCHES, batch),
        "rank": slider("LoRA rank", RANKS, 16),
        "dp": dropdown("dp", SIZES, CHOICE),
        "fsdp": dropdown("fsdp", SIZES, CHOICE),
        "tp": dropdown("tp", SIZES, CHOICE),
        "remat": dropdown("Computed again", REMAT, "decoder"),
        "on_indivisible": dropdown("What does not divide", INDIVISIBLE, "error"),
    }
    return Panel(controls, _mesh_explorer)


def _mesh_explorer(model: str, slice_name: str, dp: int, fsdp: int, tp: int, **choices: Any) -> Iterable[Any]:
    axes = meshes.with_axes(dp=dp or None, fsdp=fsdp or None, tp=tp or None)
    plan = meshes.plan(model, slice_name, axes=axes, **choices)
    yield _verdict(plan)
    yield figures.topology_figure(meshes.topology(slice_name, plan.axes))
    yield figures.memory_figure(plan)
    if plan.collectives:
        yield figures.collectives_figure(plan)
    yield _reasons(plan)


def _verdict(plan: meshes.MeshPlan) -> str:
    color = "#2b8a3e" if plan.fits else "#c92a2a"
    return f"<b style='color:{color}'>{html.escape(plan.verdict)}</b>: {html.escape(str(plan))}"


def _reasons(plan: meshes.MeshPlan) -> str:
    lines = [*map(str, plan.replicated), *plan.reasons[:8]]
    return "<b>Why not otherwise</b><ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
