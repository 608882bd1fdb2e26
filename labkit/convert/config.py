"""`config.json` and `generation_config.json` of the model that was trained, for Transformers and vLLM.

The shapes and constants are the spec's, so a pruned model gets its own; what the spec does not know (token ids,
initializer, dropout) comes from the source. Gemma 4's global layers are written as `global_head_dim` and
`num_global_key_value_heads`, which Transformers 5.5 to 5.19 all read: 5.19 itself writes `per_layer_config`, which the
earlier ones ignore in silence.
"""

from __future__ import annotations

from typing import Any

from labkit.errors import LabError
from labkit.models.spec import ModelSpec

_ARCHITECTURES = {
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "gemma4": ("gemma4_text", "Gemma4ForCausalLM"),
    "llama3": ("llama", "LlamaForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
_KINDS = {"local": "sliding_attention", "global": "full_attention"}
# Other spellings of what is written here, and what belongs to another form of the model.
_STALE = (
    "per_layer_config rope_scaling rope_theta rope_local_base_freq sliding_window_pattern _sliding_window_pattern "
    "torch_dtype quantization_config transformers_version _name_or_path auto_map"
).split()
_OUTER = ("pad_token_id", "bos_token_id", "eos_token_id")  # multimodal configs keep these beside the text model's
_PROBE = "0"


def hf_config(spec: ModelSpec, dtype: str, source: dict[str, Any] | None = None) -> dict[str, Any]:
    """The `config.json` of a text model.

    Args:
        spec: every shape and constant.
        dtype: of the tensors written.
        source: the `config.json` that the model came from; its `text_config` where it has one.

    Raises:
        LabError: a spec that the family's configuration cannot express.
    """
    source = source or {}
    outer = {key: source[key] for key in _OUTER if key in source}
    inherited = outer | {k: v for k, v in source.get("text_config", source).items() if k not in _STALE}
    model_type, architecture = _ARCHITECTURES[spec.family]
    own = {"architectures": [architecture], "model_type": model_type, "dtype": dtype}
    extra = {"gemma3": _gemma3, "gemma4": _gemma4, "llama3": _llama3, "qwen3": _qwen3}[spec.family](spec)
    return inherited | own | _common(spec) | extra


def token_ids(tokenizer: Any) -> dict[str, Any]:
    """The special tokens' ids that a tokenizer knows, as configurations name them."""
    found = {name: getattr(tokenizer, name, None) for name in _OUTER}
    return {name: value for name, value in found.items() if value is not None}


def generation_config(tokenizer: Any) -> dict[str, Any]:
    """A `generation_config.json` that stops at the end of text and at the end of a turn of the chat template."""
    stops = [tokenizer.eos_token_id, _end_of_turn(tokenizer)]
    unique = sorted({token for token in stops if token is not None})
    return token_ids(tokenizer) | ({"eos_token_id": unique} if unique else {})


def _end_of_turn(tokenizer: Any) -> int | None:
    """The special token that follows an answer in the chat template, if there is one."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    tail = tokenizer(text[text.rindex(_PROBE) + len(_PROBE) :], add_special_tokens=False)["input_ids"]
    return next((token for token in tail if token in tokenizer.all_special_ids or _is_added(tokenizer, token)), None)


def _is_added(tokenizer: Any, token: int) -> bool:
    """Whether the tokenizer never splits this token: the turn markers of many models are added but not special."""
    return token in tokenizer.added_tokens_decoder


def _common(spec: ModelSpec) -> dict[str, Any]:
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.embed_dim,
        "intermediate_size": spec.hidden_dim,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_embeddings,
        "attention_bias": False,
    }


def _gemma(spec: ModelSpec, full: dict[str, Any]) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": spec.local_rope_theta}
    return {
        "layer_types": [_KINDS[kind] for kind in spec.layer_types],
        "sliding_window": spec.sliding_window,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": spec.final_logit_softcap,
        "rope_parameters": {"full_attention": full | {"rope_theta": spec.rope_theta}, "sliding_attention": local},
    }


def _gemma3(spec: ModelSpec) -> dict[str, Any]:
    scaled = {"rope_type": "linear", "factor": spec.rope_scale}
    full = scaled if spec.rope_scale != 1.0 else {"rope_type": "default"}
    return _gemma(spec, full) | {"query_pre_attn_scalar": spec.head_dim, "attn_logit_softcapping": None}


def _gemma4(spec: ModelSpec) -> dict[str, Any]:
    if spec.shared_hidden_dim not in (None, 2 * spec.hidden_dim):
        raise LabError(
            f"{spec.name}: layers with shared KV have an MLP of {spec.shared_hidden_dim}; Gemma 4's config knows only "
            f"{spec.hidden_dim} or {2 * spec.hidden_dim}.",
            hint="Prune both kinds of layers to widths of one to two, or alike.",
        )
    full = {"rope_type": "proportional", "partial_rotary_factor": spec.rope_proportion}
    full |= {"factor": spec.rope_scale} if spec.rope_scale != 1.0 else {}
    return _gemma(spec, full) | {
        "global_head_dim": spec.global_head_dim or spec.head_dim,
        "num_global_key_value_heads": spec.num_global_kv_heads,
        "attention_k_eq_v": spec.k_eq_v,
        "hidden_size_per_layer_input": spec.per_layer_input_dim,
        "vocab_size_per_layer_input": spec.vocab_size,
        "num_kv_shared_layers": spec.num_kv_shared_layers,
        "use_double_wide_mlp": spec.shared_hidden_dim is not None,
        "enable_moe_block": False,
    }


def _llama3(spec: ModelSpec) -> dict[str, Any]:
    scaling = {"rope_type": "llama3"} | (spec.rope_scaling or {}) if spec.rope_scaling else {"rope_type": "default"}
    return {
        "hidden_act": "silu",
        "mlp_bias": False,
        "rope_parameters": scaling | {"rope_theta": spec.rope_theta},
    }


def _qwen3(spec: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "use_sliding_window": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
    }
