"""From a spec to Tunix: its `ModelConfig`, and the model as shapes without weights."""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma3 import model as gemma3
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3
from tunix.models.qwen3 import model as qwen3

from labkit import compat
from labkit.errors import LabError, nearest
from labkit.models import sharding, states
from labkit.models.spec import ModelSpec
from labkit.models.states import Param

_MODEL_CLASSES = {"gemma3": gemma3.Gemma3, "gemma4": gemma4.Gemma4, "llama3": llama3.Llama3, "qwen3": qwen3.Qwen3}
_IGNORE_ROPE_THETA = {"llama3": llama3, "qwen3": qwen3}


def model_class(spec: ModelSpec) -> type[nnx.Module]:
    """The Tunix class of the spec's family."""
    if spec.family in _IGNORE_ROPE_THETA:
        compat.repair_rope(_IGNORE_ROPE_THETA[spec.family])
    return _MODEL_CLASSES[spec.family]


def config(spec: ModelSpec, *, dtype: Any = None, **overrides: Any) -> Any:
    """The Tunix `ModelConfig` of a spec.

    Args:
        spec: the model.
        dtype: of parameters and computation (default float32), where the family's config has such fields.
        overrides: other fields of that `ModelConfig`, for example `remat_config` or `shd_config`.

    Raises:
        LabError: for a field that the config does not have, or a spec that Tunix cannot express.
    """
    make = {"gemma3": _gemma3, "gemma4": _gemma4, "llama3": _llama3, "qwen3": _qwen3}[spec.family]
    config_class, values = make(spec)
    fields = [f.name for f in dataclasses.fields(config_class)]
    for key in overrides:
        if key not in fields:
            raise LabError(
                f"Tunix's {spec.family} config has no field {key!r}.", hint=f"Nearest: {nearest(key, fields)}."
            )
    dtypes = {f: dtype or jnp.float32 for f in ("dtype", "param_dtype") if f in fields}
    return config_class(**values | dtypes | overrides)


def abstract(spec: ModelSpec, *, dtype: Any = None, **overrides: Any) -> nnx.Module:
    """The Tunix model of a spec with a `jax.ShapeDtypeStruct` for each parameter; nothing is allocated.

    `dtype` (default float32) becomes the dtype of every parameter; `overrides` are those of `config`.
    """
    made = config(spec, dtype=dtype, **overrides)
    built = model_class(spec)
    model = nnx.eval_shape(lambda: built(made, rngs=nnx.Rngs(params=0)))
    graph, state = nnx.split(model)
    cast = functools.partial(_with_dtype, dtype=dtype or jnp.float32)
    return nnx.merge(graph, jax.tree.map(cast, state))


def parameters_of(spec: ModelSpec) -> tuple[Param, ...]:
    """Every parameter of the model that Tunix builds from a spec, in the spec's dtype, in order of path."""
    flat = nnx.to_flat_state(nnx.state(abstract(spec)))
    return states.in_order(
        Param(".".join(map(str, path)), tuple(variable.get_value().shape), spec.dtype, sharding.axes_of(variable))
        for path, variable in flat
    )


def _with_dtype(leaf: Any, dtype: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding)
    return leaf


def _common(spec: ModelSpec) -> dict[str, Any]:
    names = ("num_layers", "embed_dim", "hidden_dim", "num_heads", "head_dim", "num_kv_heads")
    return {name: getattr(spec, name) for name in names}


def _gemma3(spec: ModelSpec) -> tuple[type, dict[str, Any]]:
    pattern = [t.name for t in gemma3.GEMMA3_ATTENTION_PATTERN]
    found = [_attention(spec, i, gemma3).name for i in range(spec.num_layers)]
    if found != [pattern[i % len(pattern)] for i in range(spec.num_layers)]:
        raise LabError(
            f"{spec.name}: Tunix's Gemma 3 has five local layers before each global one, this model has others.",
            hint="Use a model with layer_types of that pattern.",
        )
    return gemma3.ModelConfig, _common(spec) | {
        "num_embed": spec.vocab_size,
        "sliding_window_size": spec.sliding_window,
        "local_base_frequency": spec.local_rope_theta,
        "global_base_frequency": spec.rope_theta,
        "global_scale_factor": spec.rope_scale,
    }


def _gemma4(spec: ModelSpec) -> tuple[type, dict[str, Any]]:
    # Tunix takes the share of layers that read earlier KV as a float and truncates; half a layer less is exact.
    shared = (spec.num_kv_shared_layers - 0.5) / spec.num_layers if spec.num_kv_shared_layers else 0.0
    return gemma4.ModelConfig, _common(spec) | {
        "num_embed": spec.vocab_size,
        "final_logit_softcap": spec.final_logit_softcap,
        "sliding_window_size": spec.sliding_window,
        "per_layer_input_dim": spec.per_layer_input_dim,
        "num_global_kv_heads": spec.num_global_kv_heads,
        "global_key_size": spec.global_head_dim,
        "attention_pattern": tuple(_attention(spec, i, gemma4) for i in range(spec.num_layers)),
        "frac_shared_layers": shared,
        "global_rope_proportion": spec.rope_proportion,
        "k_eq_v_global": spec.k_eq_v,
        "override_kv_shared_ffw_hidden": spec.shared_hidden_dim,
        "local_base_frequency": spec.local_rope_theta,
        "global_base_frequency": spec.rope_theta,
        "global_scale_factor": spec.rope_scale,
    }


def _qwen3(spec: ModelSpec) -> tuple[type, dict[str, Any]]:
    return qwen3.ModelConfig, _common(spec) | {
        "vocab_size": spec.vocab_size,
        "rope_theta": spec.rope_theta,
        "norm_eps": spec.norm_eps,
        "use_tied_embedding": spec.tied_embeddings,
    }


def _llama3(spec: ModelSpec) -> tuple[type, dict[str, Any]]:
    return compat.Llama3Config, _common(spec) | {
        "vocab_size": spec.vocab_size,
        "rope_theta": spec.rope_theta,
        "norm_eps": spec.norm_eps,
        "weight_tying": spec.tied_embeddings,
        "rope_scaling": compat.RopeScaling(**spec.rope_scaling) if spec.rope_scaling else None,
    }


def _attention(spec: ModelSpec, layer: int, family: ModuleType) -> Any:
    kinds = family.AttentionType
    return kinds.GLOBAL if spec.is_global(layer) else kinds.LOCAL_SLIDING
