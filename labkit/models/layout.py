"""The layout table: which Tunix parameter is which Hugging Face tensor, and how the axes go.

A rule's `axes` is an einops pattern from Tunix to Hugging Face; turned round it is the way back. `part` picks one slice
of a parameter that Tunix fuses along its first axis (`kv_einsum` holds K, then V). Linears of Hugging Face are
`[out, in]`, so the right side of a pattern also says how an adapter's axes go: `out` is its first group, `in` the next.

No values change on the way. The norms of Tunix's Gemma 3 add one to their scale as Transformers' do, and those of both
Gemma 4s do not; the sizes of axes come from the shapes of the parameters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import einops
import numpy as np

from labkit.errors import LabError
from labkit.models import building, registry
from labkit.models.checkpoints import tensor_shapes
from labkit.models.spec import ModelSpec
from labkit.models.states import abstract_state

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rule:
    """One line of a family's table; `{layer}` stands for the layer's number."""

    tunix: str
    hf: str
    axes: str = ""
    part: int | None = None


@dataclass(frozen=True)
class Row:
    """A rule for one tensor of one model: concrete names and shapes."""

    tunix: str
    hf: str
    axes: str
    part: int | None
    tunix_shape: tuple[int, ...]
    hf_shape: tuple[int, ...]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each axis that the pattern names."""
        shape = self.tunix_shape if self.part is None else self.tunix_shape[1:]
        return dict(zip(self.tunix_axes, shape, strict=True))

    @property
    def tunix_axes(self) -> tuple[str, ...]:
        """The axes in Tunix's order."""
        return tuple(self.axes.partition("->")[0].split())

    @property
    def hf_groups(self) -> tuple[tuple[str, ...], ...]:
        """For each dimension of the Hugging Face tensor, the axes that it joins: of a linear `out`, then `in`."""
        right = self.axes.partition("->")[2]
        return tuple(tuple(group.strip("()").split()) for group in re.findall(r"\([^)]*\)|\S+", right))

    def to_hf(self, value: Any) -> np.ndarray:
        """The Hugging Face tensor of a Tunix parameter; a JAX array moves its axes on its device, which is faster."""
        part = value if self.part is None else value[self.part]
        return np.ascontiguousarray(einops.rearrange(part, self.axes) if self.axes else part)

    def to_tunix(self, tensor: np.ndarray) -> np.ndarray:
        """The Tunix parameter of a Hugging Face tensor, or its slice where Tunix fuses."""
        return np.ascontiguousarray(self.tunix_view(tensor))

    def tunix_view(self, tensor: np.ndarray) -> np.ndarray:
        """The same without a copy: the way to Tunix only splits and moves axes."""
        if not self.axes:
            return tensor
        left, right = self.axes.split("->")
        return einops.rearrange(tensor, f"{right}->{left}", **self.sizes)


_LAYER = "model.layers.{layer}"
_MLP = (
    Rule("layers.{layer}.mlp.gate_proj.kernel", f"{_LAYER}.mlp.gate_proj.weight", "d f -> f d"),
    Rule("layers.{layer}.mlp.up_proj.kernel", f"{_LAYER}.mlp.up_proj.weight", "d f -> f d"),
    Rule("layers.{layer}.mlp.down_proj.kernel", f"{_LAYER}.mlp.down_proj.weight", "f d -> d f"),
)
_GEMMA = (
    Rule("embedder.input_embedding", "model.embed_tokens.weight"),
    Rule("final_norm.scale", "model.norm.weight"),
    Rule("layers.{layer}.attn.q_einsum.w", f"{_LAYER}.self_attn.q_proj.weight", "n d h -> (n h) d"),
    Rule("layers.{layer}.attn.kv_einsum.w", f"{_LAYER}.self_attn.k_proj.weight", "k d h -> (k h) d", part=0),
    Rule("layers.{layer}.attn.kv_einsum.w", f"{_LAYER}.self_attn.v_proj.weight", "k d h -> (k h) d", part=1),
    Rule("layers.{layer}.attn.attn_vec_einsum.w", f"{_LAYER}.self_attn.o_proj.weight", "n h d -> d (n h)"),
    Rule("layers.{layer}.attn._query_norm.scale", f"{_LAYER}.self_attn.q_norm.weight"),
    Rule("layers.{layer}.attn._key_norm.scale", f"{_LAYER}.self_attn.k_norm.weight"),
    *_MLP,
    Rule("layers.{layer}.pre_attention_norm.scale", f"{_LAYER}.input_layernorm.weight"),
    Rule("layers.{layer}.post_attention_norm.scale", f"{_LAYER}.post_attention_layernorm.weight"),
    Rule("layers.{layer}.pre_ffw_norm.scale", f"{_LAYER}.pre_feedforward_layernorm.weight"),
    Rule("layers.{layer}.post_ffw_norm.scale", f"{_LAYER}.post_feedforward_layernorm.weight"),
)
# Tunix's Gemma 3 fuses Q too where there are as many KV heads as heads.
_GEMMA3 = (
    *_GEMMA,
    Rule("layers.{layer}.attn.qkv_einsum.w", f"{_LAYER}.self_attn.q_proj.weight", "n d h -> (n h) d", part=0),
    Rule("layers.{layer}.attn.qkv_einsum.w", f"{_LAYER}.self_attn.k_proj.weight", "n d h -> (n h) d", part=1),
    Rule("layers.{layer}.attn.qkv_einsum.w", f"{_LAYER}.self_attn.v_proj.weight", "n d h -> (n h) d", part=2),
)
# Global layers whose values are their keys have one k_einsum; E2B and E4B have inputs of their own for each layer.
_GEMMA4 = (
    *_GEMMA,
    Rule("layers.{layer}.attn.k_einsum.w", f"{_LAYER}.self_attn.k_proj.weight", "k d h -> (k h) d"),
    Rule("layers.{layer}.skip_scale", f"{_LAYER}.layer_scalar"),
    Rule("embedder.per_layer_input_embedding", "model.embed_tokens_per_layer.weight", "v l p -> v (l p)"),
    Rule("embedder.per_layer_model_projection.w", "model.per_layer_model_projection.weight", "d l p -> (l p) d"),
    Rule("embedder.per_layer_projection_norm.scale", "model.per_layer_projection_norm.weight"),
    Rule("layers.{layer}.per_layer_input_gate.w", f"{_LAYER}.per_layer_input_gate.weight", "d p -> p d"),
    Rule("layers.{layer}.per_layer_projection.w", f"{_LAYER}.per_layer_projection.weight", "p d -> d p"),
    Rule("layers.{layer}.post_per_layer_input_norm.scale", f"{_LAYER}.post_per_layer_input_norm.weight"),
)
_LLAMA3 = (
    Rule("embedder.input_embedding", "model.embed_tokens.weight"),
    Rule("lm_head.w", "lm_head.weight", "d v -> v d"),
    Rule("final_norm.w", "model.norm.weight"),
    Rule("layers.{layer}.attn.q_proj.w", f"{_LAYER}.self_attn.q_proj.weight", "d n h -> (n h) d"),
    Rule("layers.{layer}.attn.k_proj.w", f"{_LAYER}.self_attn.k_proj.weight", "d k h -> (k h) d"),
    Rule("layers.{layer}.attn.v_proj.w", f"{_LAYER}.self_attn.v_proj.weight", "d k h -> (k h) d"),
    Rule("layers.{layer}.attn.o_proj.w", f"{_LAYER}.self_attn.o_proj.weight", "n h d -> d (n h)"),
    *_MLP,
    Rule("layers.{layer}.input_layernorm.w", f"{_LAYER}.input_layernorm.weight"),
    Rule("layers.{layer}.post_attention_layernorm.w", f"{_LAYER}.post_attention_layernorm.weight"),
)
_QWEN3 = (
    *_LLAMA3,
    Rule("layers.{layer}.attn.q_norm.w", f"{_LAYER}.self_attn.q_norm.weight"),
    Rule("layers.{layer}.attn.k_norm.w", f"{_LAYER}.self_attn.k_norm.weight"),
)
TABLES = {"gemma3": _GEMMA3, "gemma4": _GEMMA4, "llama3": _LLAMA3, "qwen3": _QWEN3}


def rows(spec: ModelSpec, shapes: Shapes | None = None) -> tuple[Row, ...]:
    """The table of one model: one row for each of its Hugging Face tensors, in their order.

    Every parameter and every tensor is in it exactly once, a fused parameter once for each of its parts.

    Args:
        spec: the model.
        shapes: path (joined by dots) and shape of each of its Tunix parameters; None is what Tunix builds for the spec.

    Raises:
        LabError: naming a parameter or a tensor that no rule takes or that two do, or whose shape does not fit.
    """
    shapes = _tunix_shapes(spec) if shapes is None else shapes
    wanted = tensor_shapes(spec)
    table = tuple(_expand(spec, shapes, wanted))
    _refuse_leftovers(spec, table, shapes, wanted)
    for row in table:
        _check_shape(spec, row)
    place = {name: i for i, name in enumerate(wanted)}
    return tuple(sorted(table, key=lambda row: place[row.hf]))


def _tunix_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    known = spec.name in registry.names() and registry.get(spec.name) == spec
    params = abstract_state(spec.name) if known else building.parameters_of(spec)
    return {param.path: param.shape for param in params}


def _expand(spec: ModelSpec, shapes: Shapes, wanted: Shapes) -> Iterator[Row]:
    for rule in TABLES[spec.family]:
        for layer in range(spec.num_layers if "{layer}" in rule.tunix else 1):
            tunix, hf = rule.tunix.format(layer=layer), rule.hf.format(layer=layer)
            if tunix in shapes:
                yield Row(tunix, hf, rule.axes, rule.part, tuple(shapes[tunix]), tuple(wanted.get(hf, ())))


def _refuse_leftovers(spec: ModelSpec, table: tuple[Row, ...], shapes: Shapes, wanted: Shapes) -> None:
    """Every tensor once; every parameter once, or once for each slice of its first axis."""
    tensors = Counter(row.hf for row in table)
    left = [name for name in wanted if tensors[name] != 1] + [name for name in tensors if name not in wanted]
    parts: dict[str, list[int | None]] = {name: [] for name in shapes}
    for row in table:
        parts[row.tunix].append(row.part)
    for name, found in parts.items():
        if found != [None] and (not found or found != list(range(shapes[name][0]))):
            left.append(name)
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        raise LabError(
            f"{spec.name}: the layout table does not take exactly once: {', '.join(left[:5])}{more}.",
            hint=f"Is this a plain {spec.family} of this spec? Otherwise labkit.models.layout lacks a rule.",
        )


def _check_shape(spec: ModelSpec, row: Row) -> None:
    shape = tuple(math.prod(row.sizes[axis] for axis in group) for group in row.hf_groups) or row.tunix_shape
    if shape != row.hf_shape:
        raise LabError(
            f"{spec.name}: {row.tunix} {row.tunix_shape} becomes {shape}, but {row.hf} is {row.hf_shape}.",
            hint="Is the model of this spec?",
        )
