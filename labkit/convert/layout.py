"""The layout table: which Tunix parameter is which Hugging Face tensor, and how the axes go.

A rule's `axes` is an einops pattern from Tunix to Hugging Face; turned round it is the way back. `part` picks one slice
of a parameter that Tunix fuses along its first axis (`kv_einsum` holds K, then V). Linears of Hugging Face are
`[out, in]`, so the pattern also tells an adapter's shape: its right side is `out` then `in`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import einops
import numpy as np

from labkit.errors import LabError
from labkit.models.checkpoints import tensor_shapes
from labkit.models.spec import ModelSpec


@dataclass(frozen=True)
class Rule:
    """One line of a family's table; `{i}` stands for the layer."""

    tunix: str
    hf: str
    axes: str = ""
    part: int | None = None


@dataclass(frozen=True)
class Row:
    """A rule for one parameter of one model: concrete names and shapes."""

    tunix: str
    hf: str
    axes: str
    part: int | None
    tunix_shape: tuple[int, ...]
    hf_shape: tuple[int, ...]

    def to_hf(self, value: Any) -> np.ndarray:
        """The Hugging Face tensor of a Tunix parameter."""
        array = np.asarray(value)
        array = array[self.part] if self.part is not None else array
        return np.ascontiguousarray(einops.rearrange(array, self.axes) if self.axes else array)

    def to_tunix(self, tensor: np.ndarray) -> np.ndarray:
        """The Tunix parameter of a Hugging Face tensor, or its slice where Tunix fuses."""
        if not self.axes:
            return tensor
        left, right = self.axes.split("->")
        shape = self.tunix_shape[1:] if self.part is not None else self.tunix_shape
        sizes = dict(zip(left.split(), shape, strict=True))
        return np.ascontiguousarray(einops.rearrange(tensor, f"{right}->{left}", **sizes))


_GEMMA = (
    Rule("embedder.input_embedding", "model.embed_tokens.weight"),
    Rule("final_norm.scale", "model.norm.weight"),
    Rule("layers.{i}.attn.q_einsum.w", "model.layers.{i}.self_attn.q_proj.weight", "n d h -> (n h) d"),
    Rule("layers.{i}.attn.kv_einsum.w", "model.layers.{i}.self_attn.k_proj.weight", "k d h -> (k h) d", part=0),
    Rule("layers.{i}.attn.kv_einsum.w", "model.layers.{i}.self_attn.v_proj.weight", "k d h -> (k h) d", part=1),
    Rule("layers.{i}.attn.k_einsum.w", "model.layers.{i}.self_attn.k_proj.weight", "k d h -> (k h) d"),
    Rule("layers.{i}.attn.attn_vec_einsum.w", "model.layers.{i}.self_attn.o_proj.weight", "n h d -> d (n h)"),
    Rule("layers.{i}.attn._query_norm.scale", "model.layers.{i}.self_attn.q_norm.weight"),
    Rule("layers.{i}.attn._key_norm.scale", "model.layers.{i}.self_attn.k_norm.weight"),
    Rule("layers.{i}.mlp.gate_proj.kernel", "model.layers.{i}.mlp.gate_proj.weight", "d f -> f d"),
    Rule("layers.{i}.mlp.up_proj.kernel", "model.layers.{i}.mlp.up_proj.weight", "d f -> f d"),
    Rule("layers.{i}.mlp.down_proj.kernel", "model.layers.{i}.mlp.down_proj.weight", "f d -> d f"),
    Rule("layers.{i}.pre_attention_norm.scale", "model.layers.{i}.input_layernorm.weight"),
    Rule("layers.{i}.post_attention_norm.scale", "model.layers.{i}.post_attention_layernorm.weight"),
    Rule("layers.{i}.pre_ffw_norm.scale", "model.layers.{i}.pre_feedforward_layernorm.weight"),
    Rule("layers.{i}.post_ffw_norm.scale", "model.layers.{i}.post_feedforward_layernorm.weight"),
)
_GEMMA4 = (
    *_GEMMA,
    Rule("layers.{i}.skip_scale", "model.layers.{i}.layer_scalar"),
    Rule("embedder.per_layer_input_embedding", "model.embed_tokens_per_layer.weight", "v l p -> v (l p)"),
    Rule("embedder.per_layer_model_projection.w", "model.per_layer_model_projection.weight", "d l p -> (l p) d"),
    Rule("embedder.per_layer_projection_norm.scale", "model.per_layer_projection_norm.weight"),
    Rule("layers.{i}.per_layer_input_gate.w", "model.layers.{i}.per_layer_input_gate.weight", "d p -> p d"),
    Rule("layers.{i}.per_layer_projection.w", "model.layers.{i}.per_layer_projection.weight", "p d -> d p"),
    Rule("layers.{i}.post_per_layer_input_norm.scale", "model.layers.{i}.post_per_layer_input_norm.weight"),
)
_LLAMA = (
    Rule("embedder.input_embedding", "model.embed_tokens.weight"),
    Rule("lm_head.w", "lm_head.weight", "d v -> v d"),
    Rule("final_norm.w", "model.norm.weight"),
    Rule("layers.{i}.attn.q_proj.w", "model.layers.{i}.self_attn.q_proj.weight", "d n h -> (n h) d"),
    Rule("layers.{i}.attn.k_proj.w", "model.layers.{i}.self_attn.k_proj.weight", "d k h -> (k h) d"),
    Rule("layers.{i}.attn.v_proj.w", "model.layers.{i}.self_attn.v_proj.weight", "d k h -> (k h) d"),
    Rule("layers.{i}.attn.o_proj.w", "model.layers.{i}.self_attn.o_proj.weight", "n h d -> d (n h)"),
    Rule("layers.{i}.attn.q_norm.w", "model.layers.{i}.self_attn.q_norm.weight"),
    Rule("layers.{i}.attn.k_norm.w", "model.layers.{i}.self_attn.k_norm.weight"),
    Rule("layers.{i}.mlp.gate_proj.kernel", "model.layers.{i}.mlp.gate_proj.weight", "d f -> f d"),
    Rule("layers.{i}.mlp.up_proj.kernel", "model.layers.{i}.mlp.up_proj.weight", "d f -> f d"),
    Rule("layers.{i}.mlp.down_proj.kernel", "model.layers.{i}.mlp.down_proj.weight", "f d -> d f"),
    Rule("layers.{i}.input_layernorm.w", "model.layers.{i}.input_layernorm.weight"),
    Rule("layers.{i}.post_attention_layernorm.w", "model.layers.{i}.post_attention_layernorm.weight"),
)
TABLES = {"gemma3": _GEMMA, "gemma4": _GEMMA4, "llama3": _LLAMA, "qwen3": _LLAMA}


def rows(spec: ModelSpec, tunix_shapes: dict[str, tuple[int, ...]]) -> tuple[Row, ...]:
    """The table of one model, in the order of its Hugging Face tensors.

    Args:
        spec: the model.
        tunix_shapes: path (joined by dots) and shape of each of its Tunix parameters.

    Raises:
        LabError: a parameter or a tensor that no rule names, or that two do.
    """
    wanted = tensor_shapes(spec)
    found: dict[str, Row] = {}
    used: set[str] = set()
    for rule in TABLES[spec.family]:
        for layer in range(spec.num_layers) if "{i}" in rule.tunix else (0,):
            tunix, hf = rule.tunix.format(i=layer), rule.hf.format(i=layer)
            if tunix not in tunix_shapes or hf in found:
                continue
            found[hf] = Row(tunix, hf, rule.axes, rule.part, tunix_shapes[tunix], wanted.get(hf, ()))
            used.add(tunix)
    left = sorted(set(tunix_shapes) - used) + sorted(set(wanted) ^ set(found))
    if left:
        raise LabError(
            f"{spec.name}: the layout table leaves out {', '.join(left[:5])}{' and more' if len(left) > 5 else ''}.",
            hint=f"Add rules for the family {spec.family} to labkit.convert.layout.",
        )
    return tuple(found[name] for name in wanted)
