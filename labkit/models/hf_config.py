"""Read a Hugging Face `config.json` as a `ModelSpec`. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.models.checkpoints import count_parameters
from labkit.models.spec import ModelSpec

_FAMILY_OF_TYPE = {
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma4_unified": "gemma4",
    "gemma4_unified_text": "gemma4",
    "qwen3": "qwen3",
    "llama": "llama3",
}

# Keys that a config may leave out, with the value that Transformers 5.12.1 then takes (checked by a test).
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gemma4": {
        "vocab_size": 262144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "qwen3": {
        "vocab_size": 151936,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    },
    "llama3": {
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    },
}

# What Tunix's model of the family computes; a config that says otherwise would load and give wrong numbers.
_REQUIRED: dict[str, dict[str, Any]] = {
    "gemma3": {
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
        "tie_word_embeddings": True,
    },
    "gemma4": {
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "enable_moe_block": False,
        "tie_word_embeddings": True,
    },
    "qwen3": {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
    "llama3": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
}


def spec_from_config(directory: str | os.PathLike[str]) -> ModelSpec:
    """The spec of a local Hugging Face directory, from its `config.json`; the name is the directory's.

    Reads configs with and without a nested `text_config`, rope settings of Transformers 4 and 5, and Gemma 4's
    global-layer sizes both as `global_head_dim` / `num_global_key_value_heads` and as `per_layer_config`.

    Raises:
        LabError: no or broken `config.json`, an architecture that labkit does not know, a missing key, or a setting
            that Tunix's model of this family does not compute.
    """
    path = Path(directory) / "config.json"
    raw = _read(path)
    text = raw.get("text_config", raw)
    kind = text.get("model_type", raw.get("model_type"))
    family = _FAMILY_OF_TYPE.get(str(kind))
    if family is None:
        known = ", ".join(sorted(_FAMILY_OF_TYPE))
        raise LabError(f"{path}: model_type {kind!r} is not one that labkit loads.", hint=f"It loads: {known}.")
    outer: dict[str, Any] = {k: raw[k] for k in ("tie_word_embeddings", "dtype", "torch_dtype") if k in raw}
    values = _Values(path, {**DEFAULTS[family], **outer, **{k: v for k, v in text.items() if v is not None}})
    _refuse_unsupported(values, family)
    return _build(values, family, Path(directory).resolve().name)


class _Values:
    """The keys of one config; a missing one is an error that names the file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise LabError(f"{self.path}: the key {key!r} is missing.", hint="Save the model again with Transformers.")
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise LabError(
            f"{path.parent} is not a model directory: it has no config.json.",
            hint="Give a folder written by Transformers' save_pretrained.",
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabError(f"{path} is not valid JSON: {error}.", hint="Copy the model again.") from error
    if not isinstance(raw, dict):
        raise LabError(f"{path} does not hold a JSON object.", hint="Copy the model again.")
    return raw


def _refuse_unsupported(values: _Values, family: str) -> None:
    for key, wanted in _REQUIRED[family].items():
        found = values.get(key, wanted)
        if found != wanted and not (wanted is False and not found):
            raise LabError(
                f"{values.path}: {key} is {found!r}; Tunix's {family} computes only {wanted!r}.",
                hint="Use a checkpoint without this setting.",
            )


def _build(values: _Values, family: str, name: str) -> ModelSpec:
    common = {
        "name": name,
        "family": family,
        "hub_id": None,
        "licence": "unknown",
        "gated": False,
        "num_layers": values["num_hidden_layers"],
        "embed_dim": values["hidden_size"],
        "hidden_dim": values["intermediate_size"],
        "num_heads": values["num_attention_heads"],
        "num_kv_heads": values.get("num_key_value_heads", values["num_attention_heads"]),
        "head_dim": values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"],
        "vocab_size": values["vocab_size"],
        "layer_types": _layer_types(values, family),
        "tied_embeddings": values["tie_word_embeddings"],
        "max_positions": values["max_position_embeddings"],
        "norm_eps": values["rms_norm_eps"],
        "parameters": 0,
        "dtype": values.get("dtype") or values.get("torch_dtype") or "float32",
    }
    extra = {"gemma3": _gemma3, "gemma4": _gemma4, "qwen3": _qwen3, "llama3": _llama3}[family](values)
    spec = ModelSpec(**common | extra)
    return dataclasses.replace(spec, parameters=count_parameters(spec))


def _layer_types(values: _Values, family: str) -> tuple[str, ...]:
    layers = values["num_hidden_layers"]
    if not family.startswith("gemma"):
        return ("global",) * layers
    period = values.get("sliding_window_pattern", values.get("_sliding_window_pattern", 6))
    default = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)]
    kinds = list(values.get("layer_types", default))
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise LabError(
            f"{values.path}: layer_types must name sliding_attention or full_attention for each of {layers} layers.",
            hint="Correct config.json.",
        )
    if family == "gemma4" and kinds[-1] != "full_attention":
        kinds[-1] = "full_attention"  # as Transformers does
    return tuple("global" if kind == "full_attention" else "local" for kind in kinds)


def _rope(values: _Values, kind: str | None, theta_key: str, default_theta: float) -> dict[str, Any]:
    """Rope settings in Transformers 5's form: of one layer type, or of the whole model when `kind` is None."""
    rope = values.get("rope_parameters") or {}
    if kind is not None:
        rope = rope.get(kind, {}) if isinstance(rope.get(kind), dict) else {}
    if not rope:
        scaling = values.get("rope_scaling") if theta_key == "rope_theta" else None
        rope = dict(scaling or {})
        rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    return {"rope_type": "default", "rope_theta": values.get(theta_key, default_theta)} | rope


def _rope_of(values: _Values, rope: dict[str, Any], allowed: tuple[str, ...]) -> str:
    kind = rope["rope_type"]
    if kind not in allowed:
        raise LabError(
            f"{values.path}: rope type {kind!r} is not computed by Tunix.",
            hint=f"Use a checkpoint with one of: {', '.join(allowed)}.",
        )
    return kind


def _gemma3(values: _Values) -> dict[str, Any]:
    full = _rope(values, "full_attention", "rope_theta", 1e6)
    local = _rope(values, "sliding_attention", "rope_local_base_freq", 1e4)
    _rope_of(values, local, ("default",))
    kind = _rope_of(values, full, ("default", "linear"))
    if values["query_pre_attn_scalar"] != values["head_dim"]:
        raise LabError(
            f"{values.path}: query_pre_attn_scalar {values['query_pre_attn_scalar']} is not head_dim "
            f"{values['head_dim']}.",
            hint="labkit loads Gemma 3 sizes that scale queries by head_dim (all but 27B).",
        )
    return {
        "sliding_window": values["sliding_window"],
        "rope_theta": full["rope_theta"],
        "local_rope_theta": local["rope_theta"],
        "rope_scale": full["factor"] if kind == "linear" else 1.0,
    }


def _gemma4(values: _Values) -> dict[str, Any]:
    full = _rope(values, "full_attention", "rope_theta", 1e6)
    local = _rope(values, "sliding_attention", "rope_local_base_freq", 1e4)
    _rope_of(values, local, ("default",))
    _rope_of(values, full, ("default", "proportional"))
    head_dim, kv_heads = _global_sizes(values)
    k_eq_v = values.get("attention_k_eq_v", False)
    double = values.get("use_double_wide_mlp", False)
    if values.get("use_bidirectional_attention") == "all":
        raise LabError(f"{values.path}: bidirectional attention is not computed by Tunix.", hint="Use a causal model.")
    extra = {
        "global_head_dim": head_dim,
        "num_global_kv_heads": kv_heads if k_eq_v else None,
        "k_eq_v": k_eq_v,
        "sliding_window": values["sliding_window"],
        "rope_theta": full["rope_theta"],
        "local_rope_theta": local["rope_theta"],
        # Transformers' "default" rope rotates all of the head; its "proportional" one defaults to all as well.
        "rope_proportion": full.get("partial_rotary_factor", 1.0),
        "rope_scale": full.get("factor", 1.0),
        "final_logit_softcap": values.get("final_logit_softcapping"),
        "per_layer_input_dim": values["hidden_size_per_layer_input"],
        "num_kv_shared_layers": values.get("num_kv_shared_layers", 0),
        "shared_hidden_dim": 2 * values["intermediate_size"] if double else None,
    }
    _check_shared(values, extra)
    return extra


def _global_sizes(values: _Values) -> tuple[int, int | None]:
    """Head size and KV heads of global layers: from `per_layer_config` (Transformers 5.19) or from the flat keys."""
    per_layer = values.get("per_layer_config") or {}
    kinds = _layer_types(values, "gemma4")
    sizes = {
        (entry.get("head_dim", values["head_dim"]), entry.get("num_key_value_heads"))
        for index, entry in per_layer.items()
        if kinds[int(index)] == "global"
    }
    if len(sizes) > 1:
        raise LabError(
            f"{values.path}: per_layer_config gives global layers different sizes {sorted(sizes)}.",
            hint="Tunix has one size for all global layers.",
        )
    return sizes.pop() if sizes else (values["global_head_dim"], values.get("num_global_key_value_heads"))


def _check_shared(values: _Values, extra: dict[str, Any]) -> None:
    """Tunix takes shared KV from the last two layers before the shared ones: local, then global."""
    kinds, shared = _layer_types(values, "gemma4"), extra["num_kv_shared_layers"]
    if shared and kinds[: len(kinds) - shared][-2:] != ("local", "global"):
        raise LabError(
            f"{values.path}: the {shared} layers that share keys and values must follow a local and a global layer.",
            hint="Tunix cannot express another order.",
        )
    if extra["per_layer_input_dim"] and values["vocab_size_per_layer_input"] != values["vocab_size"]:
        raise LabError(
            f"{values.path}: vocab_size_per_layer_input {values['vocab_size_per_layer_input']} is not vocab_size.",
            hint="Tunix has one vocabulary for both tables.",
        )


def _qwen3(values: _Values) -> dict[str, Any]:
    rope = _rope(values, None, "rope_theta", 1e4)
    _rope_of(values, rope, ("default",))
    return {"rope_theta": rope["rope_theta"]}


def _llama3(values: _Values) -> dict[str, Any]:
    rope = _rope(values, None, "rope_theta", 1e4)
    kind = _rope_of(values, rope, ("default", "llama3"))
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {key: rope[key] for key in keys} if kind == "llama3" else None,
    }
