"""Which tokens of a sample the loss counts."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from labkit.data import chat
from labkit.data.examples import Example
from labkit.widgets.frame import Panel, dropdown

LOSSES = (("answer only", "answer"), ("answer and reasoning", "assistant"), ("every token", "all"))
REASONING = (("keep it", "keep"), ("strip it", "strip"))
_COUNTED = "background:rgba(0,114,178,0.35);border-bottom:2px solid #0072b2"
_GIVEN = "border-bottom:2px solid rgba(128,128,128,0.35)"


def token_mask(example: Example, tokenizer: Any, *, loss: str = "answer") -> Panel:
    """The tokens of a training sample, those that count shaded, under each way to count.

    The masks are those of `labkit.data.chat.mask_view`, which the training pipeline uses as well.
    """
    controls = {
        "loss": dropdown("What counts", LOSSES, loss),
        "reasoning": dropdown("Reasoning", REASONING, "keep"),
    }

    def answer(loss: str, reasoning: chat.Reasoning) -> Iterable[str]:
        view = chat.mask_view(example, tokenizer, reasoning=reasoning)
        counted = view.counted[loss]
        yield f"<b>{sum(counted)} of {len(counted)} tokens count.</b> Shaded: the model is scored on this token."
        yield _tokens(view.pieces, counted)

    return Panel(controls, answer)


def _tokens(pieces: tuple[str, ...], counted: tuple[bool, ...]) -> str:
    spans = "".join(
        f"<span style='{_COUNTED if counts else _GIVEN};margin-right:1px'>{_visible(piece)}</span>"
        for piece, counts in zip(pieces, counted, strict=True)
    )
    return f"<pre style='white-space:pre-wrap;line-height:1.7;font-family:monospace'>{spans}</pre>"


def _visible(piece: str) -> str:
    """A line break as a sign and a break, so that it can be shaded."""
    return html.escape(piece).replace("\n", "↵\n")
