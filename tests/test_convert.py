"""What `labkit.convert` promises: one table, nothing lost, and the same logits on the other side."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import shutil
import tracemalloc
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from labkit import convert, lora, models
from labkit.convert import shards
from labkit.convert.config import generation_config, hf_config
from labkit.errors import LabError
from labkit.models import building, checkpoints
from tests.conversions import SHAPES, adapted, families, flat, logits, source, spec_of, tokens_of

TUNIX_LOADERS = {"gemma3": "params_safetensors", "gemma4": "params_safetensors", "llama3": "params", "qwen3": "params"}
every_family = pytest.mark.parametrize("name", SHAPES)


# The table


@pytest.mark.parametrize("name", models.names())
def test_the_table_takes_every_parameter_and_every_tensor_once(name):
    spec = models.get(name)
    table = convert.rows(spec)
    assert [row.hf for row in table] == list(checkpoints.tensor_shapes(spec))
    assert {row.tunix for row in table} == {param.path for param in models.abstract_state(name)}
    assert sum(int(np.prod(row.hf_shape)) for row in table) == spec.parameters


@every_family
def test_the_table_fits_what_tunix_builds(name):
    spec = spec_of(name)
    assert {row.tunix for row in convert.rows(spec)} == set(shapes_of(spec))


def shapes_of(spec):
    state = nnx.to_flat_state(nnx.state(models.abstract(spec), nnx.Param))
    return {".".join(map(str, path)): tuple(variable.get_value().shape) for path, variable in state}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s | {"extra.w": (1,)}, r"extra\.w"),
        (lambda s: {k: v for k, v in s.items() if k != "layers.1.skip_scale"}, r"layers\.1\.layer_scalar"),
        (lambda s: s | {"layers.2.attn.kv_einsum.w": (2, 1, 32, 16)}, r"layers\.2\.self_attn\.k_proj"),
        (lambda s: s | {"layers.0.attn.kv_einsum.w": (3, 2, 32, 8)}, r"layers\.0\.attn\.kv_einsum"),
        (lambda s: s | {"layers.0.attn.q_einsum.w": (4, 32, 9)}, r"layers\.0\.attn\.q_einsum.*\(36, 32\)"),
    ],
)
def test_leftovers_doubles_and_wrong_shapes_are_named(change, named):
    spec = spec_of("gemma4")
    with pytest.raises(LabError, match=named):
        convert.rows(spec, change(shapes_of(spec)))


RULES = sorted({(rule.axes, rule.part) for table in convert.TABLES.values() for rule in table if rule.axes}, key=str)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RULES), st.lists(st.integers(1, 5), min_size=3, max_size=3), st.integers(0, 99))
def test_a_row_turned_round_is_its_inverse(rule, sizes, seed):
    axes, part = rule
    shape = tuple(sizes[: len(axes.partition("->")[0].split())])
    whole = np.random.default_rng(seed).normal(size=(3, *shape) if part is not None else shape)
    row = convert.Row("a", "b", axes, part, whole.shape, ())
    sent = row.to_hf(whole)
    assert sent.ndim == 2
    np.testing.assert_array_equal(row.to_tunix(sent), whole if part is None else whole[part])


# Round trips


@every_family
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_and_back_is_bit_exact(tmp_path, name, dtype):
    first = convert.from_hf(source(name), dtype=dtype)
    done = convert.to_hf(first.model, tmp_path / "out", spec=first.spec, files=source(name), max_shard="40KB")
    assert done.verified and done.tensors == len(checkpoints.tensor_shapes(first.spec))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    written = {k: v for f in (tmp_path / "out").glob("*.safetensors") for k, v in load_file(f).items()}
    for key, value in load_file(source(name) / "model.safetensors").items():
        np.testing.assert_array_equal(written[key], value.astype(shards.dtype_of(dtype)))
    again = convert.from_hf(tmp_path / "out")
    assert dataclasses.replace(again.spec, name=name, dtype="float32", licence="none") == spec_of(name)
    one, two = flat(first.model), flat(again.model)
    assert one.keys() == two.keys()
    assert all(one[k].dtype == two[k].dtype and np.array_equal(one[k], two[k]) for k in one)


@every_family
def test_loading_is_what_tunix_own_loader_gives(tmp_path, name):
    """The other implementation of the table. For Gemma 4 it takes names without the prefix only."""
    ours = convert.from_hf(source(name))
    tensors = load_file(source(name) / "model.safetensors")
    bare = {k.removeprefix("model." if ours.spec.family == "gemma4" else ""): v for k, v in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors")
    module = importlib.import_module(f"tunix.models.{ours.spec.family}.{TUNIX_LOADERS[ours.spec.family]}")
    config = building.config(ours.spec, dtype=jnp.float32)
    theirs = flat(module.create_model_from_safe_tensors(str(tmp_path), config, dtype=jnp.float32))
    assert theirs.keys() == flat(ours.model).keys()
    assert all(np.array_equal(value, theirs[path]) for path, value in flat(ours.model).items())


def test_the_dtype_asked_for_is_written_and_said(tmp_path):
    loaded = convert.from_hf(source("gemma4"))
    convert.to_hf(loaded.model, tmp_path / "half", spec=loaded.spec, files=source("gemma4"), dtype="bfloat16")
    assert models.load(tmp_path / "half").spec.dtype == "bfloat16"
    assert {str(v.dtype) for v in load_file(tmp_path / "half" / "model.safetensors").values()} == {"bfloat16"}
    with pytest.raises(LabError, match="float64"):
        convert.to_hf(loaded.model, tmp_path / "other", spec=loaded.spec, dtype="float64")
    assert [p.name for p in tmp_path.iterdir()] == ["half"]


def test_verify_tells_equal_from_wrong(tmp_path):
    loaded = adapted("gemma4")
    convert.to_hf(loaded.model, tmp_path / "merged", spec=loaded.spec, files=source("gemma4"))
    same = convert.verify(source("gemma4"), source("gemma4"))
    assert same.equal and same.max_logit_difference == 0 and same.greedy_agreement == 1
    found = convert.verify(source("gemma4"), tmp_path / "merged")
    assert not found.equal and found.different_tensors == 20 and "_proj" in found.worst_tensor
    assert found.max_logit_difference > 0.01 and found.argmax_agreement < 1
    with pytest.raises(LabError, match="shape"):
        convert.verify(source("gemma4"), source("llama3"))


# What is beside the weights


@every_family
def test_the_config_says_what_the_spec_says(tmp_path, name):
    spec = spec_of(name)
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(hf_config(spec, "float32")))
    assert dataclasses.replace(models.spec_from_config(tmp_path / name), licence="none") == spec


@pytest.mark.parametrize("name", models.names())
def test_the_config_of_every_registry_model_reads_back(tmp_path, name):
    spec = models.get(name)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(spec, spec.dtype)))
    origin = {key: getattr(spec, key) for key in ("name", "hub_id", "licence", "gated")}
    assert dataclasses.replace(models.spec_from_config(tmp_path), **origin) == spec


def test_the_spec_wins_over_a_source_of_another_form():
    """A multimodal config of Transformers 5.19 becomes a text config that 5.12 reads alike."""
    spec = spec_of("gemma4")
    text = {"hidden_size": 7, "initializer_range": 0.01, "per_layer_config": {"2": {"head_dim": 64}}}
    outer = {"model_type": "gemma4", "eos_token_id": [1, 106], "vision_config": {}, "text_config": text}
    made = hf_config(spec, "bfloat16", outer)
    assert (made["hidden_size"], made["global_head_dim"], made["num_global_key_value_heads"]) == (32, 16, 1)
    assert (made["initializer_range"], made["eos_token_id"], made["dtype"]) == (0.01, [1, 106], "bfloat16")
    assert made["model_type"] == "gemma4_text" and not {"per_layer_config", "vision_config"} & set(made)


def test_a_config_that_gemma4_cannot_express_is_refused():
    with pytest.raises(LabError, match="95"):
        hf_config(dataclasses.replace(spec_of("gemma4-e2b"), shared_hidden_dim=95), "float32")


def test_what_a_server_needs_is_beside_the_weights(tmp_path):
    loaded, said = adapted("gemma4"), {"recipe": {"rank": 3}}
    convert.to_hf(loaded.model, tmp_path / "out", spec=loaded.spec, files=source("gemma4"), provenance=said)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (source("gemma4") / name).read_bytes()
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [1, 5]
    about = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert (about["model"], about["recipe"], about["adapter"]["alpha"]) == ("gemma4", {"rank": 3}, 6.0)
    assert about["source"] == {"directory": "gemma4"} and "jax" in about["versions"]


def test_without_a_source_the_spec_and_a_tokenizer_do(tmp_path):
    loaded = convert.from_hf(source("gemma4"))
    convert.to_hf(loaded.model, tmp_path / "gemma4", spec=loaded.spec, tokenizer=loaded.tokenizer)
    again = convert.from_hf(tmp_path / "gemma4")
    assert again.spec == loaded.spec
    assert generation_config(again.tokenizer) == generation_config(loaded.tokenizer)
    assert json.loads((tmp_path / "gemma4" / "config.json").read_text())["bos_token_id"] == 2


# Bad input


def test_weights_that_are_not_finite_are_named_or_allowed(tmp_path):
    loaded = convert.from_hf(source("gemma4"))
    kernel = loaded.model.layers[1].mlp.up_proj.kernel
    kernel[...] = kernel[...].at[2, 3].set(jnp.nan)
    with pytest.raises(LabError, match=r"layers\.1\.mlp\.up_proj.* 1 of 1,536"):
        convert.to_hf(loaded.model, tmp_path / "nan", spec=loaded.spec)
    assert not list(tmp_path.iterdir())
    assert convert.to_hf(loaded.model, tmp_path / "nan", spec=loaded.spec, allow_nonfinite=True).verified


def test_only_an_earlier_version_is_replaced(tmp_path):
    loaded = convert.from_hf(source("gemma4"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("mine")
    with pytest.raises(LabError, match="there already"):
        convert.to_hf(loaded.model, tmp_path / "mine", spec=loaded.spec)
    for dtype in ("float32", "bfloat16"):
        convert.to_hf(loaded.model, tmp_path / "out", spec=loaded.spec, dtype=dtype)
    other = dataclasses.replace(loaded.spec, name="other")
    with pytest.raises(LabError, match="no earlier model of other"):
        convert.to_hf(loaded.model, tmp_path / "out", spec=other)
    with pytest.raises(LabError, match="the source itself"):
        convert.to_hf(loaded.model, tmp_path / "out", spec=loaded.spec, files=tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"].dtype.name == "bfloat16"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_conversion_that_broke_off(tmp_path, monkeypatch, error):
    loaded = convert.from_hf(source("gemma4"))
    convert.to_hf(loaded.model, tmp_path / "out", spec=loaded.spec)
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns

    def broken(*args):
        raise error

    monkeypatch.setattr(shards, "check", broken)
    with pytest.raises((LabError, KeyboardInterrupt)) as caught:
        convert.to_hf(loaded.model, tmp_path / "out", spec=loaded.spec)
    assert isinstance(caught.value, KeyboardInterrupt) or "No space left" in caught.value.what
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before


def test_a_model_of_another_spec_is_refused(tmp_path):
    loaded = convert.from_hf(source("gemma4"))
    with pytest.raises(LabError, match="gemma4"):
        convert.to_hf(loaded.model, tmp_path / "out", spec=dataclasses.replace(loaded.spec, hidden_dim=64))
    with pytest.raises(LabError, match="no size"):
        convert.to_hf(loaded.model, tmp_path / "out", spec=loaded.spec, max_shard="big")


def test_a_changed_byte_is_found(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.float16)}
    plan = [shards.Planned(k, v.shape, v.dtype) for k, v in tensors.items()]
    digests = shards.write(tmp_path, "model", plan, lambda name: [tensors[name]], "1GB")
    for name, value in load_file(tmp_path / "model.safetensors").items():
        np.testing.assert_array_equal(value, tensors[name])
    shards.check(tmp_path, digests)
    raw = bytearray((tmp_path / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(LabError, match=r"^b of .*not what was written"):
        shards.check(tmp_path, digests)


@pytest.mark.parametrize("dtype", shards.DTYPES)
@given(raw=st.binary(min_size=4, max_size=400))
def test_values_that_are_not_finite_are_counted(dtype, raw):
    values = np.frombuffer(raw[: len(raw) // 4 * 4], shards.dtype_of(dtype))
    assert shards.count_nonfinite(values) == int((~np.isfinite(values.astype(np.float32))).sum())


def test_memory_holds_a_tensor_and_not_the_model(tmp_path):
    names = [f"t{i}" for i in range(16)]
    plan = [shards.Planned(name, (2**18,), np.dtype(np.float32)) for name in names]
    tracemalloc.start()
    shards.check(tmp_path, shards.write(tmp_path, "model", plan, lambda _: [np.ones(2**18, np.float32)], "1GB"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * plan[0].nbytes


# Adapters


def test_an_adapter_has_k_eq_v_twice(tmp_path):
    loaded = adapted("gemma4")
    assert convert.to_peft(loaded.model, tmp_path / "adapter", spec=loaded.spec, base_name="the/base").verified
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    last = "base_model.model.model.layers.2.self_attn."
    for x in "AB":
        assert np.array_equal(*(tensors[f"{last}{name}_proj.lora_{x}.weight"] for name in "kv"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (3, 6, "the/base")
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_only_adapted_linears_are_targets(tmp_path):
    loaded = convert.from_hf(source("gemma4"))
    with pytest.warns(UserWarning, match="leave"):
        model, _ = lora.inject(loaded.model, 2, 2.0, r"layers/[01]/attn/q_einsum|.*/down_proj")
    convert.to_peft(model, tmp_path / "adapter", spec=loaded.spec, base_name="b")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    names = [f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)]
    assert config["target_modules"] == ["down_proj", *names]


@families("gemma4")
def test_adapters_come_back_as_they_were(tmp_path, name):
    loaded, model = convert.from_hf(source(name)), adapted(name).model
    convert.to_peft(model, tmp_path / "adapter", spec=loaded.spec, base_name="b")
    again, coverage = convert.from_peft(tmp_path / "adapter", loaded.model, loaded.spec)
    assert (coverage.rank, coverage.alpha) == (3, 6.0)
    one, two = flat(model, nnx.LoRAParam), flat(again, nnx.LoRAParam)
    assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)


@pytest.fixture(scope="module")
def peft_folder(tmp_path_factory):
    loaded, folder = adapted("gemma4"), tmp_path_factory.mktemp("peft") / "adapter"
    convert.to_peft(loaded.model, folder, spec=loaded.spec, base_name="b")
    return folder


def spoil(folder: Path, config=lambda c: c, tensors=lambda t: t) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(config(json.loads(path.read_text()))))
    save_file(tensors(load_file(folder / "adapter_model.safetensors")), str(folder / "adapter_model.safetensors"))


def changed(end: str, value):
    return lambda tensors: {k: value(v) if k.endswith(end) else v for k, v in tensors.items()}


K, V = "layers.2.self_attn.k_proj.lora_A.weight", "layers.2.self_attn.v_proj.lora_B.weight"


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"config": lambda c: c | {"use_dora": True}}, "use_dora"),
        ({"config": lambda c: c | {"peft_type": "IA3"}}, "IA3"),
        ({"config": lambda c: {}}, "adapter_config"),
        ({"tensors": lambda t: t | {"x": np.ones(2, np.float32)}}, "x .*no adapter matrix"),
        ({"tensors": changed(K, lambda v: v[:2])}, "k_proj.*rank 3"),
        ({"tensors": changed(K, lambda v: v[:, :9].copy())}, "k_proj"),
        ({"tensors": changed(K, lambda v: v * np.nan)}, "k_proj.*not finite"),
        ({"tensors": changed(V, lambda v: v + 1)}, "v_proj has an adapter other than"),
        ({"tensors": lambda t: {k: v for k, v in t.items() if not k.endswith(K)}}, "k_proj has only lora_B"),
        ({"tensors": lambda t: {k.replace("layers.2", "layers.9"): v for k, v in t.items()}}, r"layers\.9"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(peft_folder, tmp_path, spoiled, message):
    loaded = convert.from_hf(source("gemma4"))
    shutil.copytree(peft_folder, tmp_path / "adapter")
    spoil(tmp_path / "adapter", **spoiled)
    with pytest.raises(LabError, match=message):
        convert.from_peft(tmp_path / "adapter", loaded.model, loaded.spec)


# Parity with Transformers and PEFT


def theirs(folder: Path, tokens, adapter: Path | None = None):
    torch = pytest.importorskip("torch")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = model if adapter is None else PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def same(a, b) -> bool:
    return bool(np.abs(a - b).mean() < 3e-5 and (a.argmax(-1) == b.argmax(-1)).all())


@pytest.mark.parity
@families("gemma4")
def test_merged_and_unmerged_give_tunix_logits(tmp_path, name):
    """The merged directory has its config from the spec alone, so that is compared too."""
    loaded = adapted(name)
    tokens = tokens_of(loaded.spec)
    convert.to_hf(loaded.model, tmp_path / "merged", spec=loaded.spec, tokenizer=loaded.tokenizer)
    convert.to_peft(loaded.model, tmp_path / "adapter", spec=loaded.spec, base_name=str(source(name)))
    ours = logits(loaded.model, tokens)
    assert same(theirs(tmp_path / "merged", tokens), ours)
    assert same(theirs(source(name), tokens, tmp_path / "adapter"), ours)
    assert not same(theirs(source(name), tokens), ours)  # the adapter does something, so the comparison can fail


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "rslora"),
    [
        ("gemma4", True),
        pytest.param("gemma4", False, marks=pytest.mark.slow),
        pytest.param("gemma3-mha-scaled", True, marks=pytest.mark.slow),
        pytest.param("llama3", False, marks=pytest.mark.slow),
    ],
)
def test_an_adapter_that_peft_made_gives_its_logits(tmp_path, name, rslora):
    """PEFT trains K and V apart; Tunix's fused K and V take them at twice the rank."""
    torch = pytest.importorskip("torch")
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(source(name), dtype=torch.float32)
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "down_proj"], use_rslora=rslora,
        init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    loaded = convert.from_hf(source(name))
    model, coverage = convert.from_peft(tmp_path / "adapter", loaded.model, loaded.spec)
    assert coverage.rank == {"gemma4": 8, "gemma3-mha-scaled": 12, "llama3": 4}[name]
    tokens = tokens_of(loaded.spec)
    assert same(theirs(source(name), tokens, tmp_path / "adapter"), logits(model, tokens))
