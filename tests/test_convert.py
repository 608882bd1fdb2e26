"""What `labkit.convert` promises: one table, nothing lost, and the same logits on the other side."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from labkit import convert, lora, models
from labkit.errors import LabError
from tests.tiny import make_tiny_gemma4

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_tiny_gemma4(tmp_path_factory.mktemp("source"), std=0.2, **SHAPE)


@pytest.fixture(scope="module")
def adapted(source):
    loaded = models.load(source)
    model, _ = lora.inject(loaded.model, 3, 6.0)
    rng = np.random.default_rng(0)
    nnx.update(model, jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype), lora.state(model)))
    return model, loaded.spec


LARGE = {"llama3.1-70b", "llama3.1-405b", "gemma4-31b", "gemma3-12b", "llama3.1-8b", "gemma4-e4b", "qwen3-14b"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in models.names()])
def test_the_table_uses_every_parameter_and_every_tensor_once(name):
    spec = models.get(name)
    state = nnx.to_flat_state(nnx.state(models.abstract(spec), nnx.Param))
    shapes = {".".join(map(str, path)): tuple(v.shape) for path, v in state}
    table = convert.rows(spec, shapes)
    assert len({row.hf for row in table}) == len(table)
    assert {row.tunix for row in table} == set(shapes)
    assert sum(int(np.prod(row.hf_shape)) for row in table) == sum(int(np.prod(s)) for s in shapes.values())


def test_a_parameter_without_a_rule_is_an_error():
    spec = models.get("tiny-gemma4")
    with pytest.raises(LabError, match=r"extra\.w"):
        convert.rows(spec, {"extra.w": (1,)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_and_back_is_bit_exact(source, tmp_path, dtype):
    first = models.load(source, dtype=dtype)
    done = convert.to_hf(first.model, first.spec, tmp_path / "out", source=source, max_shard="40KB")
    assert done.verified and done.tensors > 30 and len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    again = models.load(tmp_path / "out")
    one, two = (nnx.to_flat_state(nnx.state(m, nnx.Param)) for m in (first.model, again.model))
    for (path, a), (other, b) in zip(one, two, strict=True):
        assert path == other and np.array_equal(np.asarray(a.get_value()), np.asarray(b.get_value()))


def test_verify_tells_equal_from_wrong(source, tmp_path, adapted):
    model, spec = adapted
    convert.to_hf(model, spec, tmp_path / "merged", source=source)
    assert convert.verify(source, source).equal
    found = convert.verify(source, tmp_path / "merged")
    assert not found.equal and found.max_logit_difference > 0.01


def test_weights_that_are_not_finite_are_named(source, tmp_path):
    loaded = models.load(source)
    loaded.model.layers[1].mlp.up_proj.kernel[...] = loaded.model.layers[1].mlp.up_proj.kernel[...] * jnp.nan
    with pytest.raises(LabError, match=r"layers\.1\.mlp\.up_proj"):
        convert.to_hf(loaded.model, loaded.spec, tmp_path / "nan", source=source)
    assert not (tmp_path / "nan").exists() and not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_left_alone(source, tmp_path):
    loaded = models.load(source)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(LabError, match="there already"):
        convert.to_hf(loaded.model, loaded.spec, tmp_path, source=source)
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_an_adapter_has_k_eq_v_twice(adapted, source, tmp_path):
    model, spec = adapted
    convert.to_peft(model, spec, tmp_path / "adapter", base=str(source))
    from safetensors.numpy import load_file

    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    last = "base_model.model.model.layers.2.self_attn."
    for x in "AB":
        same = [tensors[f"{last}{name}_proj.lora_{x}.weight"] for name in "kv"]
        assert np.array_equal(*same)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 6.0)


@pytest.mark.parity
def test_merged_and_unmerged_give_tunix_logits(adapted, source, tmp_path):
    torch = pytest.importorskip("torch")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model, spec = adapted
    convert.to_hf(model, spec, tmp_path / "merged", source=source)
    convert.to_peft(model, spec, tmp_path / "adapter", base=str(source))
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, (2, 40))
    mask = np.tile(np.tril(np.ones((40, 40), bool)), (2, 1, 1))
    ours = np.asarray(nnx.jit(lambda m: m(tokens, np.tile(np.arange(40), (2, 1)), None, mask)[0])(model))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    unmerged = PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        for theirs in (merged, unmerged):
            found = theirs(torch.tensor(tokens)).logits.numpy()
            assert np.abs(found - ours).mean() < 3e-5 and (found.argmax(-1) == ours.argmax(-1)).all()
        plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)(torch.tensor(tokens)).logits.numpy()
    assert np.abs(plain - ours).mean() > 1e-2  # the adapter does something, so the comparison can fail
