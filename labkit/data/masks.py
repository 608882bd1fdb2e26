"""Which token may look at which: block-diagonal and causal, so that packed samples never see each other."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from labkit.errors import LabError


def attention_mask(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """True where query t may see key s: the same sample and s <= t. Build it on the device, inside the jitted step.

    Segments 1 1 1 2 2 0 give::

        1 . . . . .
        1 1 . . . .
        1 1 1 . . .
        . . . 1 . .
        . . . 1 1 .
        . . . . . .

    A padding row sees nothing: Tunix fills a masked logit with a large finite number, so its softmax is uniform and
    finite, and no loss counts it.
    """
    queries, keys = segment_ids[:, :, None], segment_ids[:, None, :]
    steps = jnp.arange(segment_ids.shape[-1])
    return (queries == keys) & (queries > 0) & (steps[:, None] >= steps[None, :])


def local_mask(mask: Bool[Array, "B T T"], window: int) -> Bool[Array, "B T T"]:
    """What a sliding-window layer makes of a mask: keys less than `window` tokens back, the query itself included.

    Tunix's Gemma layers measure the distance by index in the row. Inside a sample that is the distance in positions,
    since its tokens lie side by side, and across samples `mask` is already False: packing leaves local layers right.
    """
    steps = jnp.arange(mask.shape[-1])
    return mask & (steps[:, None] - steps[None, :] < window)


def require_mask(config: Any) -> None:
    """A `LabError` unless a Tunix model of this config applies the attention mask that it is given.

    Gemma 4 with `use_flash_attention` builds its own causal mask and ignores both mask and segment ids: packed samples
    would see each other, silently.
    """
    if getattr(config, "use_flash_attention", False):
        raise LabError(
            "This model has flash attention on, which ignores the attention mask: packed samples would see each other.",
            hint="Set use_flash_attention=False, or use packing='bucket' or 'pad'.",
        )
