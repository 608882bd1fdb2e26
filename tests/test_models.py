"""What `labkit.models` promises: exact shapes, honest errors, and logits equal to Transformers'."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from safetensors.numpy import load_file, save_file

from labkit import models, resources
from labkit.data import verilog
from labkit.errors import LabError
from labkit.models import building, checkpoints, hub

ROOT = Path(__file__).resolve().parent.parent
FAST_TO_BUILD = ("tiny-gemma4", "tiny-gemma4-teacher", "gemma3-270m", "llama3.2-1b")
# A layer mix that the published sizes have between them: shared KV, a wider shared MLP, per-layer inputs.
E2B_LIKE = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "attention_k_eq_v": False,
    "num_global_key_value_heads": None,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny.make_tiny_gemma4(tmp_path_factory.mktemp("tiny"), std=0.1)


def copy_with(source: Path, target: Path, change=lambda tensors: tensors, **config) -> Path:
    """A copy of a checkpoint with other tensors or config keys."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            (target / file.name).write_bytes(file.read_bytes())
    old = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(old | config))
    save_file(change(load_file(source / "model.safetensors")), target / "model.safetensors")
    return target


def logits(model: nnx.Module, ids: np.ndarray) -> np.ndarray:
    batch, time = ids.shape
    mask = jnp.tile(jnp.tril(jnp.ones((time, time), bool))[None], (batch, 1, 1))
    positions = jnp.tile(jnp.arange(time)[None], (batch, 1))
    with jax.default_matmul_precision("highest"):
        return np.asarray(model(jnp.asarray(ids), positions, None, mask)[0], np.float32)


def ids_for(vocab: int, shape=(2, 48)) -> np.ndarray:
    return np.random.default_rng(0).integers(6, vocab, shape)


# The registry


def test_the_registry_has_every_model_of_the_course():
    expected = "tiny-gemma4 tiny-gemma4-teacher gemma3-270m gemma3-1b gemma3-4b gemma3-12b gemma4-e2b gemma4-e4b "
    expected += "gemma4-31b qwen3-0.6b qwen3-8b qwen3-14b llama3.2-1b llama3.1-8b llama3.1-70b llama3.1-405b"
    assert models.names() == tuple(expected.split())


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(LabError, match=r"gemma4-31.*gemma4-31b"):
        models.get("gemma4-31")


@pytest.mark.parametrize("name", models.names())
def test_stated_parameters_are_those_of_the_shapes(name):
    spec = models.get(name)
    assert spec.parameters == checkpoints.count_parameters(spec)
    assert f"{spec.parameters:,}" in str(spec)
    assert models.ModelSpec.from_json(spec.to_json()) == spec


def test_parameters_agree_with_published_counts():
    """Model cards: 8,030,261,248 / 70,553,706,496 (Llama 3.1), 8.2 B (Qwen 3 8B), 30.7 B (Gemma 4 31B)."""
    assert models.get("llama3.1-8b").parameters == 8_030_261_248
    assert models.get("llama3.1-70b").parameters == 70_553_706_496
    assert round(models.get("qwen3-8b").parameters / 1e9, 1) == 8.2
    assert round(models.get("gemma4-31b").parameters / 1e9, 1) == 30.7


@pytest.mark.parametrize("name", models.names())
def test_the_stored_state_has_the_stated_parameters(name):
    state = models.abstract_state(name)
    assert sum(param.size for param in state) == models.get(name).parameters
    assert {param.dtype for param in state} == {models.get(name).dtype}
    assert len({param.path for param in state}) == len(state)


@pytest.mark.parametrize("name", FAST_TO_BUILD)
def test_the_stored_state_is_what_tunix_builds(name):
    assert models.abstract_state(name) == building.parameters_of(models.get(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in models.names() if n not in FAST_TO_BUILD])
def test_the_stored_state_is_what_tunix_builds_large(name):
    assert models.abstract_state(name) == building.parameters_of(models.get(name))


def test_the_stored_state_of_the_31b():
    """Its ten global layers have one projection for keys and values, of 4 heads of 512."""
    state = {param.path: param for param in models.abstract_state("gemma4-31b")}
    assert state["layers.5.attn.k_einsum.w"].shape == (4, 5376, 512)
    assert state["layers.5.attn.k_einsum.w"].axes == ("tp", "fsdp", None)
    assert sum(".k_einsum." in path for path in state) == 10
    assert sum(param.nbytes for param in state.values()) == 2 * 30_697_345_340
    with pytest.raises(LabError, match="float16"):
        models.abstract_state("gemma4-31b", "floaty16")


def tunix_config_of(name: str):
    family, size = name.split("-")[0], name.split("-")[1].replace(".", "p")
    built = building.config(models.get(name))
    attribute = {"gemma3": f"gemma3_{size}", "gemma4": f"gemma4_{size}", "qwen3": f"qwen3_{size}"}.get(
        family, f"{family.replace('.', 'p')}_{size}"
    )
    attribute = {"gemma3_1b": "gemma3_1b_it", "gemma3_4b": "gemma3_4b_it", "gemma3_12b": "gemma3_12b_it"}.get(
        attribute, attribute
    )
    return built, getattr(type(built), attribute)()


@pytest.mark.parametrize("name", [n for n in models.names() if not n.startswith("tiny")])
def test_registry_agrees_with_tunix_own_configs(name):
    """Every field but dtypes, the padded vocabulary of Gemma 3's multimodal sizes, and equivalent spellings."""
    ours, theirs = tunix_config_of(name)
    different = {
        f.name
        for f in dataclasses.fields(theirs)
        if hasattr(theirs, f.name) and getattr(ours, f.name, None) != getattr(theirs, f.name)
    }
    allowed = {"param_dtype", "attention_pattern", "frac_shared_layers", "rope_scaling"}
    if name in ("gemma3-4b", "gemma3-12b"):
        allowed |= {"num_embed"}
    assert different <= allowed


def test_specs_need_no_jax():
    code = (
        "import sys, labkit.models as m; m.names(); m.get('gemma4-31b'); m.abstract_state('gemma4-31b');"
        "heavy = {'jax', 'flax', 'tunix', 'transformers', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# Configs


def test_a_model_is_cut_to_a_part_of_its_layers():
    whole = models.get("gemma4-31b")
    assert whole.cut(6).layer_types == whole.layer_types[:6]
    assert whole.cut(2, 1).layer_types == ("local", "local", "global") and whole.cut(2, 1).num_layers == 3
    assert whole.cut(60).layer_types == whole.layer_types
    for layers in ((0,), (60, 1)):
        with pytest.raises(LabError, match="cannot be cut"):
            whole.cut(*layers)


def test_config_refuses_an_unknown_field():
    with pytest.raises(LabError, match="remat_config"):
        models.config(models.get("tiny-gemma4"), remat_confg=1)


def test_abstract_allocates_nothing_and_has_the_dtype():
    leaves = jax.tree.leaves(nnx.state(models.abstract(models.get("llama3.2-1b"), dtype=jnp.bfloat16)))
    assert {type(leaf) for leaf in leaves} == {jax.ShapeDtypeStruct}
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}


def test_a_directory_of_the_tiny_shape_has_the_registry_spec(checkpoint):
    spec = models.spec_from_config(checkpoint)
    known = models.get("tiny-gemma4")
    origin = {k: getattr(known, k) for k in ("name", "licence")}
    assert dataclasses.replace(spec, **origin) == known


def test_both_forms_of_global_sizes_are_read(checkpoint, tmp_path):
    raw = json.loads((checkpoint / "config.json").read_text())
    del raw["global_head_dim"], raw["num_global_key_value_heads"]
    raw["per_layer_config"] = {"3": {"head_dim": 96, "num_key_value_heads": 1}}
    (tmp_path / checkpoint.name).mkdir()
    (tmp_path / checkpoint.name / "config.json").write_text(json.dumps(raw))
    assert models.spec_from_config(tmp_path / checkpoint.name) == models.spec_from_config(checkpoint)


def test_nested_text_config_is_read(checkpoint, tmp_path):
    text = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / checkpoint.name).mkdir()
    nested = {"model_type": "gemma4", "text_config": text, "vision_config": {}}
    (tmp_path / checkpoint.name / "config.json").write_text(json.dumps(nested))
    assert models.spec_from_config(tmp_path / checkpoint.name) == models.spec_from_config(checkpoint)


def test_old_and_new_rope_keys_give_one_spec(tmp_path):
    common = {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    specs = []
    for form, rope in (("old", old), ("new", new)):
        directory = tmp_path / form / "model"
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(common | rope))
        specs.append(models.spec_from_config(directory))
    assert specs[0] == specs[1]
    assert specs[0].rope_scale == 8.0


def test_defaults_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    from labkit.models.hf_config import DEFAULTS

    classes = {
        "gemma3": "Gemma3TextConfig",
        "gemma4": "Gemma4TextConfig",
        "qwen3": "Qwen3Config",
        "llama3": "LlamaConfig",
    }
    for family, defaults in DEFAULTS.items():
        made = getattr(transformers, classes[family])()
        assert {key: getattr(made, key) for key in defaults} == defaults, family


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ({"enable_moe_block": True}, "enable_moe_block"),
        ({"model_type": "mamba"}, "mamba"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"hidden_size": None}, "hidden_size"),
        ({"use_bidirectional_attention": "all"}, "bidirectional"),
    ],
)
def test_a_config_that_tunix_cannot_compute_is_refused(checkpoint, tmp_path, change, message):
    directory = copy_with(checkpoint, tmp_path / "model", **change)
    with pytest.raises(LabError, match=message):
        models.spec_from_config(directory)


def test_broken_json_names_the_file(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LabError, match=r"config\.json"):
        models.load(tmp_path)


# Loading


def test_a_local_directory_never_touches_the_network(checkpoint, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    loaded = models.load(checkpoint)
    assert loaded.spec.parameters == sum(p.size for p in jax.tree.leaves(nnx.state(loaded.model)))
    text = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<bos><|turn>user\nhi<turn|>\n"
    assert len(loaded.tokenizer) == 1024


def test_loaded_weights_are_the_files(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    attention = models.load(checkpoint).model.layers[3].attn
    keys = tensors["model.layers.3.self_attn.k_proj.weight"].reshape(1, 96, 192).transpose(0, 2, 1)
    np.testing.assert_array_equal(np.asarray(attention.k_einsum.w[...]), keys)


@pytest.mark.parametrize("prefix", checkpoints.PREFIXES)
def test_every_prefix_loads_alike(checkpoint, tmp_path, prefix):
    def rename(tensors):
        return {prefix + checkpoints.canonical(k)[len("model.") :]: v for k, v in tensors.items()}

    ids = ids_for(1024)
    other = models.load(copy_with(checkpoint, tmp_path / "model", rename))
    np.testing.assert_array_equal(logits(other.model, ids), logits(models.load(checkpoint).model, ids))


def test_towers_beside_the_text_model_are_left_out(checkpoint, tmp_path):
    extra = {"model.vision_tower.patch.weight": np.ones((2, 2), np.float32)}
    models.load(copy_with(checkpoint, tmp_path / "model", lambda t: t | extra))


def test_a_file_of_mixed_dtypes_loads_right(checkpoint, tmp_path):
    def half(tensors):
        return {k: v.astype(np.float16) if "mlp" in k else v for k, v in tensors.items()}

    ids = ids_for(1024)
    mixed = logits(models.load(copy_with(checkpoint, tmp_path / "model", half)).model, ids)
    np.testing.assert_allclose(mixed, logits(models.load(checkpoint).model, ids), atol=0.1)


def test_sharded_files_load_alike(checkpoint, tmp_path):
    directory = copy_with(checkpoint, tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file({k: tensors[k] for k in chosen}, directory / f"model-{part + 1:05}-of-00002.safetensors")
    (directory / "model.safetensors").unlink()
    ids = ids_for(1024)
    np.testing.assert_array_equal(logits(models.load(directory).model, ids), logits(models.load(checkpoint).model, ids))


def test_dtype_is_of_weights_and_computation(checkpoint):
    loaded = models.load(checkpoint, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(loaded.model))} == {jnp.dtype(jnp.bfloat16)}
    assert loaded.model.config.dtype == jnp.bfloat16


def drop(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def reshape(name, shape):
    return lambda tensors: tensors | {name: np.zeros(shape, np.float32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("model.layers.3.self_attn.k_proj.weight"), r"layers\.3\.self_attn\.k_proj.*missing"),
        (reshape("model.norm.weight", (191,)), r"model\.norm\.weight.*\(191,\).*\(192,\)"),
        (reshape("model.layers.9.mlp.up_proj.weight", (2, 2)), r"layers\.9.*does not have"),
        (lambda t: t | {"model.norm.weight": np.zeros(192, np.int8)}, r"norm\.weight.*I8"),
    ],
)
def test_wrong_tensors_name_tensor_and_file(checkpoint, tmp_path, change, message):
    directory = copy_with(checkpoint, tmp_path / "model", change)
    with pytest.raises(LabError, match=message) as caught:
        models.load(directory)
    assert str(directory) in caught.value.what


@pytest.mark.parametrize("size", [0, 5, 100, 100_000])
def test_a_truncated_file_is_named(checkpoint, tmp_path, size):
    directory = copy_with(checkpoint, tmp_path / "model")
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(LabError, match=r"model\.safetensors.*(truncated|not a complete)"):
        models.load(directory)


def test_missing_weights_and_tokenizer_are_named(checkpoint, tmp_path):
    directory = copy_with(checkpoint, tmp_path / "model")
    (directory / "tokenizer.json").unlink()
    with pytest.raises(LabError, match=r"tokenizer\.json"):
        models.load(directory)
    (directory / "model.safetensors").unlink()
    with pytest.raises(LabError, match=r"no \.safetensors"):
        models.load(directory)


@pytest.mark.parametrize("given", ["gemma4-31", "no/such/directory", Path("nowhere")])
def test_what_is_neither_name_nor_directory_is_an_error(given):
    with pytest.raises(LabError, match="There is no"):
        models.load(given)


def hub_error(kind):
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(401, request=httpx.Request("GET", "https://huggingface.co"))
    return {
        "gated": errors.GatedRepoError("gated", response=response),
        "missing": errors.RepositoryNotFoundError("missing", response=response),
        "offline": errors.OfflineModeIsEnabled("offline"),
        "unreachable": httpx.ConnectError("no route"),
        "full": OSError(28, "No space left on device"),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("gated", "hf auth login"),
        ("missing", "HF_TOKEN"),
        ("offline", "HF_HUB_OFFLINE"),
        ("unreachable", "hf download"),
        ("full", "local directory"),
    ],
)
def test_a_failed_download_says_what_to_do(monkeypatch, kind, hint):
    from huggingface_hub import errors

    def download(hub_id, local_files_only=False, **options):
        raise errors.LocalEntryNotFoundError("not cached") if local_files_only else hub_error(kind)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(LabError) as caught:
        models.load("gemma3-270m")
    assert "google/gemma-3-270m-it" in caught.value.what
    assert hint in caught.value.hint


def test_a_cached_model_is_not_asked_for_again(monkeypatch, checkpoint):
    def download(hub_id, local_files_only=False, **options):
        assert local_files_only
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    directory, spec = hub.locate("gemma4-31b")
    assert directory == checkpoint
    assert spec.hub_id == "google/gemma-4-31B-it"


SHARDED = """
import sys, jax, numpy as np
from labkit import models, resources
from labkit.data import verilog
from labkit.errors import LabError
mesh = lambda fsdp, tp: jax.make_mesh((fsdp, tp), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
loaded = models.load(sys.argv[1], mesh=mesh(4, 2))
whole = models.load(sys.argv[1])
mlp = loaded.model.layers[0].mlp.up_proj.kernel[...]
assert mlp.addressable_shards[0].data.shape == (48, 256), mlp.sharding
np.testing.assert_array_equal(np.asarray(mlp), np.asarray(whole.model.layers[0].mlp.up_proj.kernel[...]))
for wrong in (mesh(2, 4), jax.make_mesh((8,), ("x",))):
    try:
        models.load(sys.argv[1], mesh=wrong)
    except LabError as error:
        print(error.what)
"""


def test_a_mesh_shards_the_weights_or_says_what_does_not_divide(tmp_path):
    checkpoint = tiny.make_tiny_gemma4(tmp_path, num_global_key_value_heads=2)
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SHARDED, str(checkpoint)]
    done = subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "Dimension 1 of layers.0.attn.kv_einsum.w (2, 2, 192, 48) is 2, which mesh axis 'tp' of 4" in done.stdout
    assert "sharded over" in done.stdout


# Parity with Transformers


def hf_logits(directory: Path, ids: np.ndarray, attention: str) -> np.ndarray:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention).eval()
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def parity_problems(model: nnx.Module, directory: Path, mean: float, ids: np.ndarray | None = None) -> list[str]:
    """What fails of: mean difference, max against Transformers' own eager-sdpa difference, argmax."""
    ids = ids_for(models.spec_from_config(directory).vocab_size) if ids is None else ids
    ours, eager, sdpa = logits(model, ids), hf_logits(directory, ids, "eager"), hf_logits(directory, ids, "sdpa")
    difference, own = np.abs(ours - sdpa), np.abs(eager - sdpa).max()
    problems = [f"mean {difference.mean()}"] if difference.mean() > mean else []
    problems += [f"max {difference.max()} against {own}"] if difference.max() > 3 * own else []
    return problems + (["argmax"] if (ours.argmax(-1) != sdpa.argmax(-1)).any() else [])


def write_hf(directory: Path, config) -> Path:
    """A checkpoint of any family, saved by Transformers, with weights large enough that every part matters."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise) if parameter.ndim > 1 else parameter.add_(0.1 * noise)
    model.save_pretrained(directory)
    tiny.write_tokenizer(directory)
    return directory


def small(**overrides):
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
    return sizes | heads | {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2} | overrides


def gemma3_small(**rope):
    from transformers import Gemma3TextConfig

    full = {"rope_type": "default", "rope_theta": 1e6} | rope
    ropes = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    shape = small(num_hidden_layers=7, sliding_window=16, query_pre_attn_scalar=16)
    return Gemma3TextConfig(**shape, rope_parameters=ropes)


def qwen3_small(theta, tied):
    from transformers import Qwen3Config

    return Qwen3Config(
        **small(), tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": theta}
    )


def llama3_small(tied=False, **rope):
    from transformers import LlamaConfig

    return LlamaConfig(
        **small(),
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5} | rope,
    )


LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parity
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(lambda: gemma3_small(), id="gemma3"),
        pytest.param(lambda: gemma3_small(rope_type="linear", factor=8.0), id="gemma3-scaled"),
        pytest.param(lambda: qwen3_small(1e6, tied=True), id="qwen3-tied"),
        pytest.param(lambda: qwen3_small(5e3, tied=False), id="qwen3-other-theta"),
        pytest.param(lambda: llama3_small(), id="llama3"),
        pytest.param(lambda: llama3_small(tied=True, **LLAMA31), id="llama3.1-scaled"),
    ],
)
def test_logits_equal_transformers(tmp_path, config):
    pytest.importorskip("torch")
    directory = write_hf(tmp_path / "model", config())
    assert not parity_problems(models.load(directory).model, directory, mean=3e-5)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    return tiny.make_tiny_gemma4(tmp_path_factory.mktemp("windowed"), std=0.2, sliding_window=16)


@pytest.mark.parity
def test_gemma4_logits_equal_transformers(windowed):
    pytest.importorskip("torch")
    assert not parity_problems(models.load(windowed).model, windowed, mean=2e-5)


@pytest.mark.parity
@pytest.mark.parametrize(
    "control",
    [
        {"sliding_window": 15},
        {"sliding_window": 17},
        {"rope_proportion": 1.0},
        {"final_logit_softcap": None},
        {"rope_theta": 1e4},
    ],
    ids=str,
)
def test_a_gemma4_of_another_constant_fails_the_gate(windowed, control):
    pytest.importorskip("torch")
    loaded = models.load(windowed)
    other = dataclasses.replace(loaded.spec, **control)
    graph, _ = nnx.split(models.abstract(other))
    model = nnx.merge(graph, nnx.state(loaded.model))
    assert len(parity_problems(model, windowed, mean=2e-5)) >= 2


@pytest.fixture(scope="module", params=["tiny-gemma4", "tiny-gemma4-sft"])
def shipped(request):
    """A stored model, and rows of specifications and modules that are longer than its window."""
    directory = resources.path("models", request.param)
    loaded = models.load(directory)
    text = "\n".join(p.spec + "\n" + p.reference for p in verilog.problems("test_seen", 46, seed=0))
    ids = np.asarray(loaded.tokenizer(text)["input_ids"])
    length = loaded.spec.sliding_window + 64
    return loaded, directory, ids[: 4 * length].reshape(4, length)


@pytest.mark.parity
def test_stored_weights_give_the_logits_of_transformers(shipped):
    pytest.importorskip("torch")
    loaded, directory, ids = shipped
    assert not parity_problems(loaded.model, directory, mean=2e-5, ids=ids)


@pytest.mark.parity
@pytest.mark.parametrize(
    "control", [{"sliding_window": 255}, {"sliding_window": 257}, {"rope_proportion": 1.0}, {"rope_theta": 1e4}],
    ids=str,
)  # fmt: skip
def test_stored_weights_with_another_constant_do_not(shipped, control):
    pytest.importorskip("torch")
    loaded, directory, ids = shipped
    graph, _ = nnx.split(models.abstract(dataclasses.replace(loaded.spec, **control)))
    assert parity_problems(nnx.merge(graph, nnx.state(loaded.model)), directory, mean=2e-5, ids=ids)


@pytest.mark.parity
def test_gemma4_with_shared_kv_and_per_layer_inputs_equals_transformers(tmp_path):
    pytest.importorskip("torch")
    config = tiny.gemma4_config(**E2B_LIKE, sliding_window=16)
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = checkpoints.tensor_shapes(models.spec_from_config(tmp_path))
    save_file(tiny.random_tensors(shapes, std=0.1), tmp_path / "model.safetensors", metadata={"format": "pt"})
    tiny.write_tokenizer(tmp_path)
    assert not parity_problems(models.load(tmp_path).model, tmp_path, mean=2e-5)


@pytest.mark.parity
@pytest.mark.parametrize("theta", [5e5, 1e6])
def test_tunix_alone_would_rotate_llama3_by_one_million(tmp_path, theta):
    """Why `compat.repair_rope` exists: without the config's theta the gate fails unless theta is 1,000,000."""
    pytest.importorskip("torch")
    directory = write_hf(tmp_path / "model", llama3_small(rope_theta=theta))
    loaded = models.load(directory)
    graph, _ = nnx.split(models.abstract(dataclasses.replace(loaded.spec, rope_theta=1e6)))
    model = nnx.merge(graph, nnx.state(loaded.model))
    assert bool(parity_problems(model, directory, mean=3e-5)) == (theta != 1e6)
