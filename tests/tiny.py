"""Random Hugging Face directories of tiny shape for tests: no torch, no network, a fraction of a second."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}"
    "{{ message['content'] + '<turn|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}"
)


def gemma4_config(**overrides: Any) -> dict[str, Any]:
    """The `config.json` of `tiny-gemma4`, as Transformers 5.12 writes it; `layer_types` follows `num_hidden_layers`."""
    layers = overrides.get("num_hidden_layers", 4)
    config = {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "float32",
        "vocab_size": 1024,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 48,
        "num_global_key_value_heads": 1,
        "global_head_dim": 96,
        "attention_k_eq_v": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": 256,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 1024,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "use_bidirectional_attention": None,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "use_cache": True,
        "transformers_version": "5.12.1",
    }
    unknown = set(overrides) - set(config)
    if unknown:
        raise TypeError(f"gemma4_config has no key {sorted(unknown)}")
    return config | overrides


def gemma4_tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `Gemma4ForCausalLM` saves for a dense config."""
    width, mlp, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for index, kind in enumerate(config["layer_types"]):
        full = kind == "full_attention"
        head_dim = config["global_head_dim"] if full else config["head_dim"]
        k_eq_v = full and config["attention_k_eq_v"]
        kv = config["num_global_key_value_heads" if k_eq_v else "num_key_value_heads"]
        layer = {"layer_scalar": (1,)}
        layer |= {
            "self_attn.q_proj.weight": (heads * head_dim, width),
            "self_attn.k_proj.weight": (kv * head_dim, width),
        }
        if not k_eq_v:
            layer["self_attn.v_proj.weight"] = (kv * head_dim, width)
        layer |= {"self_attn.o_proj.weight": (width, heads * head_dim)}
        layer |= {f"self_attn.{n}_norm.weight": (head_dim,) for n in "qk"}
        layer |= {f"mlp.{n}_proj.weight": (mlp, width) for n in ("gate", "up")} | {"mlp.down_proj.weight": (width, mlp)}
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        layer |= {f"{n}_layernorm.weight": (width,) for n in norms}
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (width,)}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0, std: float = 0.02) -> dict[str, np.ndarray]:
    """Float32 weights: matrices N(0, std), vectors (norms, scalars) near one."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(1.0, 0.1, shape) if len(shape) == 1 else rng.normal(0.0, std, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE of exactly 1,024 tokens, built and not trained: bytes, letter pairs, ` a`, digit pairs."""
    pieces = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = string.ascii_lowercase
    merges = [("Ġ", a) for a in letters] + list(itertools.product(letters, letters))
    merges += [(a, b) for a, b in itertools.product(string.digits, string.digits) if a < "6"]
    pieces += [a + b for a, b in merges]
    model = models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def write_tokenizer(directory: str | Path) -> None:
    """`tokenizer.json`, `tokenizer_config.json` and the chat template of the tiny models."""
    directory = Path(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def make_tiny_gemma4(directory: str | Path, seed: int = 0, *, std: float = 0.02, **overrides: Any) -> Path:
    """Write a random Gemma 4 text checkpoint; `overrides` are keys of its `config.json`. Returns the directory."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = gemma4_config(**overrides)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = random_tensors(gemma4_tensor_shapes(config), seed, std)
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    write_tokenizer(directory)
    return directory
