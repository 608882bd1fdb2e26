"""Models of every family at a tiny size, for the tests of conversion: made once in a process, and never changed."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from labkit import convert, lora, models
from labkit.convert.config import hf_config
from labkit.models import checkpoints
from tests import tiny

L, G = "local", "global"
SMALL = {
    "licence": "none",
    "gated": False,
    "hub_id": None,
    "embed_dim": 32,
    "hidden_dim": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "vocab_size": 1024,
    "max_positions": 256,
    "norm_eps": 1e-6,
    "rope_theta": 1e6,
    "parameters": 0,
    "dtype": "float32",
    "tied_embeddings": True,
}
GEMMA3 = {"family": "gemma3", "layer_types": (L, L, L, L, L, G, L), "sliding_window": 8, "local_rope_theta": 1e4}
GEMMA4 = {
    "family": "gemma4",
    "layer_types": (L, L, G),
    "sliding_window": 8,
    "local_rope_theta": 1e4,
    "global_head_dim": 16,
    "num_global_kv_heads": 1,
    "k_eq_v": True,
    "rope_proportion": 0.25,
    "final_logit_softcap": 30.0,
}
E2B = {
    "layer_types": (L, L, G, L, G),
    "k_eq_v": False,
    "num_global_kv_heads": None,
    "num_kv_shared_layers": 2,
    "shared_hidden_dim": 96,
    "per_layer_input_dim": 16,
}
LLAMA31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES = {
    "gemma3": GEMMA3,
    "gemma3-mha-scaled": GEMMA3 | {"num_kv_heads": 4, "rope_scale": 8.0},
    "gemma4": GEMMA4,
    "gemma4-e2b": GEMMA4 | E2B,
    "llama3": {"family": "llama3", "layer_types": (G, G), "tied_embeddings": False, "rope_theta": 5e5},
    "llama3-tied-scaled": {"family": "llama3", "layer_types": (G, G), "norm_eps": 1e-5, "rope_scaling": LLAMA31},
    "qwen3": {"family": "qwen3", "layer_types": (G, G), "tied_embeddings": False},
    "qwen3-tied": {"family": "qwen3", "layer_types": (G, G)},
}


def families(*quick: str):
    """Every family; only the named ones outside `make test-all`, where each takes seconds."""
    names = [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in SHAPES]
    return pytest.mark.parametrize("name", names)


def spec_of(name: str) -> models.ModelSpec:
    """The spec of a shape."""
    spec = models.ModelSpec(**SMALL | {"name": name, "num_layers": len(SHAPES[name]["layer_types"])} | SHAPES[name])
    return dataclasses.replace(spec, parameters=checkpoints.count_parameters(spec))


@functools.cache
def room() -> Path:
    """A folder that goes with the process."""
    made = Path(tempfile.mkdtemp(prefix="labkit-tests."))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def source(name: str) -> Path:
    """A random directory of a shape, written without labkit's saver."""
    spec, folder = spec_of(name), room() / name
    folder.mkdir()
    tensors = tiny.random_tensors(checkpoints.tensor_shapes(spec), std=0.2)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(spec, "float32") | {"pad_token_id": 0}))
    tiny.write_tokenizer(folder)
    return folder


@functools.cache
def adapted(name: str) -> models.Loaded:
    """The same with adapters that do something: B is random too."""
    loaded = convert.from_hf(source(name))
    model, _ = lora.inject(loaded.model, 3, 6.0, "all,per_layer" if name == "gemma4-e2b" else "all")
    rng = np.random.default_rng(0)
    noise = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype), lora.state(model))
    nnx.update(model, noise)
    return dataclasses.replace(loaded, model=model)


def flat(model, kind=nnx.Param):
    """The arrays of a model by path."""
    return {".".join(map(str, p)): np.asarray(v.get_value()) for p, v in nnx.to_flat_state(nnx.state(model, kind))}


def tokens_of(spec, shape=(2, 24)):
    """Random tokens that are not special."""
    return np.random.default_rng(1).integers(6, spec.vocab_size, shape)


def logits(model, tokens):
    """Tunix's logits without a cache."""
    batch, time = tokens.shape
    mask = np.tile(np.tril(np.ones((time, time), bool)), (batch, 1, 1))
    return np.asarray(nnx.jit(lambda m: m(tokens, np.tile(np.arange(time), (batch, 1)), None, mask)[0])(model))
