"""Tunix and Transformers say the same, for every family, base, merged and unmerged; and the gates can fail."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from labkit import convert, lora, models
from labkit.convert.config import hf_config
from labkit.models import checkpoints
from tests.conversions import adapted, families, logits, source, spec_of, tokens_of

MEAN, TIMES = 3e-5, 3  # of float32 logits; the largest difference in units of Transformers' own, eager against sdpa
pytestmark = pytest.mark.parity


def theirs(folder: Path, tokens: np.ndarray, adapter: Path | None = None, attention: str = "eager") -> np.ndarray:
    """Transformers' logits in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    model = model if adapter is None else PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def gates(ours: np.ndarray, folder: Path, tokens: np.ndarray, adapter: Path | None = None) -> list[str]:
    """The gates that a pair of models does not pass."""
    eager, sdpa = (theirs(folder, tokens, adapter, kind) for kind in ("eager", "sdpa"))
    difference = np.abs(ours - eager)
    failed = {
        "mean": difference.mean() > MEAN,
        "max": difference.max() > TIMES * np.abs(eager - sdpa).max(),
        "argmax": (ours.argmax(-1) != eager.argmax(-1)).any(),
    }
    return [name for name, bad in failed.items() if bad]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Merged and unmerged exports of a shape, made once."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("exported") / name
            made[name].mkdir()
            convert.to_hf(adapted(name), made[name] / "merged")
            convert.to_peft(adapted(name), made[name] / "adapter", base=source(name))
        return made[name]

    return make


@families("gemma4")
def test_base_merged_and_unmerged_pass_the_gates(exported, name):
    tokens = tokens_of(spec_of(name), (16, 96))  # of few tokens the largest difference is a matter of luck
    base, tuned = (logits(x.model, tokens) for x in (convert.from_hf(source(name)), adapted(name)))
    assert gates(base, source(name), tokens) == []
    assert gates(tuned, exported(name) / "merged", tokens) == []
    assert gates(tuned, source(name), tokens, exported(name) / "adapter") == []
    assert gates(tuned, source(name), tokens) == ["mean", "max", "argmax"]


def changed(name: str, tmp_path: Path, **values) -> Path:
    """A source whose config says something else."""
    folder = Path(shutil.copytree(source(name), tmp_path / "changed"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma4", {"sliding_window": 7}),
        ("gemma4", {"sliding_window": 9}),
        ("gemma4", {"final_logit_softcapping": None}),
        pytest.param("gemma4", {}, id="alpha doubled"),
        pytest.param("gemma3", {"sliding_window": 7}, marks=pytest.mark.slow),
        pytest.param("llama3", {"rms_norm_eps": 1e-5}, marks=pytest.mark.slow),
        pytest.param("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_constant_does_not_pass(tmp_path, exported, name, change):
    tokens = tokens_of(spec_of(name), (4, 48))
    if not change:
        adapter = Path(shutil.copytree(exported(name) / "adapter", tmp_path / "adapter"))
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 2 * config["lora_alpha"]}))
        assert "mean" in gates(logits(adapted(name).model, tokens), source(name), tokens, adapter)
    else:
        wrong = convert.from_hf(changed(name, tmp_path, **change)).model
        assert {"mean", "max"} <= set(gates(logits(wrong, tokens), source(name), tokens))


@pytest.mark.parametrize("name", ["gemma4-31b", "gemma4-e2b", "gemma3-12b", "qwen3-8b", "llama3.1-8b"])
def test_every_tensor_of_the_real_models_is_one_that_transformers_has(tmp_path, name):
    """All names and shapes, from Transformers' own classes without weights; nothing is loaded."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = models.get(name)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(spec, spec.dtype)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    saved = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    if spec.tied_embeddings:
        saved.pop("lm_head.weight", None)
    wanted = checkpoints.tensor_shapes(spec)
    unread = set(wanted) - set(saved)  # K and V of layers that share them: published, and not in Transformers' module
    assert all(spec.layer_shares_kv(int(key.split(".")[2])) for key in unread)
    assert {key: wanted[key] for key in wanted if key not in unread} == saved


@families("gemma4")
def test_an_adapter_on_some_linears_alone_is_right_unmerged(tmp_path, name):
    """Names in `target_modules` must not catch the linears that have no adapter."""
    loaded = convert.from_hf(source(name))
    some = r"layers/0/attn/(q_einsum|q_proj|qkv_einsum)|.*/down_proj"
    with pytest.warns(UserWarning, match="leave"):
        model, _ = lora.inject(loaded.model, 2, 4.0, some)
    import jax
    from flax import nnx

    nnx.update(model, jax.tree.map(lambda x: x + 0.05, lora.state(model)))
    loaded = dataclasses.replace(loaded, model=model)
    convert.to_peft(loaded, tmp_path / "adapter", base=source(name))
    tokens = tokens_of(loaded.spec)
    assert gates(logits(model, tokens), source(name), tokens, tmp_path / "adapter") == []
