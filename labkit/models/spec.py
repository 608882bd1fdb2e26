"""What a model is, as data: shapes, licence and where its weights are."""

from __future__ import annotations

import dataclasses

from labkit.errors import LabError
from labkit.records import Record

FAMILIES = ("gemma3", "gemma4", "llama3", "qwen3")


@dataclasses.dataclass(frozen=True)
class ModelSpec(Record):
    """The text model of one checkpoint: every shape and constant that its forward pass needs.

    `parameters` counts the text model as Tunix builds it; vision and audio towers are not in it. `dtype` is that of
    the published weights. `layer_types` holds "local" (attention within `sliding_window`) or "global" for each layer.
    A `global_head_dim` or `num_global_kv_heads` of None means: as in the local layers. `k_eq_v`: the values of global
    layers are their keys. `rope_scale` divides the positions of global layers; `rope_scaling` holds Llama 3's numbers.
    """

    name: str
    family: str
    hub_id: str | None
    licence: str
    gated: bool
    num_layers: int
    embed_dim: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    layer_types: tuple[str, ...]
    tied_embeddings: bool
    max_positions: int
    norm_eps: float
    rope_theta: float
    parameters: int
    dtype: str = "bfloat16"
    global_head_dim: int | None = None
    num_global_kv_heads: int | None = None
    k_eq_v: bool = False
    sliding_window: int | None = None
    local_rope_theta: float | None = None
    rope_proportion: float = 1.0
    rope_scale: float = 1.0
    rope_scaling: dict[str, float] | None = None
    final_logit_softcap: float | None = None
    per_layer_input_dim: int = 0
    num_kv_shared_layers: int = 0
    shared_hidden_dim: int | None = None

    def is_global(self, layer: int) -> bool:
        """Whether this layer attends to all positions before it."""
        return self.layer_types[layer] == "global"

    def layer_head_dim(self, layer: int) -> int:
        """Head size in this layer."""
        return (self.global_head_dim or self.head_dim) if self.is_global(layer) else self.head_dim

    def layer_kv_heads(self, layer: int) -> int:
        """Number of key heads in this layer."""
        return (self.num_global_kv_heads or self.num_kv_heads) if self.is_global(layer) else self.num_kv_heads

    def layer_k_eq_v(self, layer: int) -> bool:
        """Whether this layer has one projection for keys and values."""
        return self.k_eq_v and self.is_global(layer)

    def layer_shares_kv(self, layer: int) -> bool:
        """Whether this layer reads the keys and values of an earlier one."""
        return layer >= self.num_layers - self.num_kv_shared_layers

    def layer_hidden_dim(self, layer: int) -> int:
        """Width of this layer's MLP."""
        return (self.shared_hidden_dim or self.hidden_dim) if self.layer_shares_kv(layer) else self.hidden_dim

    def cut(self, layers: int, global_layers: int | None = None) -> ModelSpec:
        """The same model with fewer layers: its first ones, or so many local ones and then `global_layers`.

        `parameters` is 0: it is not counted. Its use is to compile a part of the model.

        Raises:
            LabError: more layers than there are, or layers that need others which are cut off.
        """
        kinds = self.layer_types[:layers]
        if global_layers is not None:
            kinds = ("local",) * layers + ("global",) * global_layers
        if self.num_kv_shared_layers or not 0 < len(kinds) <= self.num_layers:
            raise LabError(
                f"{self.name} cannot be cut to {len(kinds)} of its {self.num_layers} layers.",
                hint="Give fewer than it has; a model whose layers share keys and values cannot be cut at all.",
            )
        return dataclasses.replace(self, num_layers=len(kinds), layer_types=kinds, parameters=0)

    def __str__(self) -> str:
        kinds = f"{self.layer_types.count('local')} local + {self.layer_types.count('global')} global layers"
        return (
            f"{self.name}: {self.parameters:,} parameters, {kinds}, width {self.embed_dim}, "
            f"{self.num_heads} heads, {self.num_kv_heads} KV heads, vocabulary {self.vocab_size:,}"
        )
