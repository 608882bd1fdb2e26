"""Rehearsal lab, exercise 4: what helps against which shortage."""

from __future__ import annotations

from labkit.exercises.frame import Choice, Wrong

EXERCISE = Choice(
    name="rehearse_4",
    title="What makes it fit?",
    minutes=4,
    question="""
    LoRA on a 31B model is refused on four v5e chips: the frozen weights in bfloat16 alone are about 15 GiB a chip with
    `tp=4`, of 15.75 GiB. One row of 2,048 tokens, remat of whole layers, chunked loss. Which **one** change makes it
    fit?
    """,
    options={
        "a": "accumulation over more parts",
        "b": "a smaller LoRA rank",
        "c": "the frozen base in four bits (QLoRA)",
        "d": "moments of the optimizer in bfloat16",
    },
    right="c",
    because="""
    Only what is large can be made smaller. The weights take nearly everything; in nf4 they are little more than a
    quarter. Activations are small already (one row, remat), adapters and moments are megabytes.
    """,
    why_not={
        "a": "Accumulation makes activations smaller, and with one row there is nothing left to split.",
        "b": "The adapters are a few hundred MiB over all chips: a smaller rank saves a hundredth of what is missing.",
        "d": "LoRA's moments are as small as its adapters, and have the adapters' dtype already.",
    },
    hints=("What takes the most memory here?", "Which of the four changes touches it at all?"),
    wrong=(Wrong("a", "nothing left to split"), Wrong("b", "a hundredth"), Wrong("d", "as small as its adapters")),
)
