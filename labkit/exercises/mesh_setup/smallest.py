"""Mesh lab, exercise 5: the smallest slice for full fine-tuning."""

from __future__ import annotations

from labkit import hardware, mesh
from labkit.exercises.frame import Number, Wrong


def smallest() -> float:
    """Chips of the smallest v6e slice on which some mesh for full fine-tuning fits."""
    for name in hardware.slices("v6e"):  # small to large
        of = hardware.slice(name)
        rows = max(of.chips, 8)
        if mesh.plan("gemma4-31b", of, seq=4096, batch=rows, objective="train_full").fits:
            return of.chips
    raise ValueError("no slice of v6e holds it")


EXERCISE = Number(
    name="mesh_5",
    title="How many chips does full fine-tuning need?",
    minutes=8,
    question="""
    Full fine-tuning of Gemma 4 31B in bfloat16 with AdamW (`objective="train_full"`), rows of 4,096 tokens, one a chip
    and at least eight: how many chips has the smallest v6e slice on which a mesh fits?
    """,
    hints=(
        'Slices of v6e are named by chips: "v6e-4", "v6e-8", "v6e-16", ... `meshes.plan(...).fits` tells.',
        "Weights, gradients and two moments are 8 bytes a parameter in bfloat16, 229 GiB in all. Add activations.",
    ),
    solve=smallest,
    because="With LoRA, moments and gradients are a few hundred MiB: a v6e-8 holds the model with room to spare.",
    mistakes={
        8.0: "Weights, gradients and moments alone would fit on 8 chips. The activations of a row do not any more."
    },
    wrong=(Wrong(1, "too small"), Wrong(64, "too large"), Wrong("many", "one number")),
)
