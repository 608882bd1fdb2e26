"""Conversions between all kinds of checkpoints: Orbax, runs, adapters alone; what merging costs; commands."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tunix.sft.checkpoint_manager import CheckpointManager

from labkit import convert, lora, models
from labkit.convert import adapters as pairing
from labkit.convert import merging, quantization, runs, sources
from labkit.convert.opening import open_source
from labkit.errors import LabError
from labkit.models import checkpoints, headers
from tests.conversions import adapted, families, flat, source, spec_of

ROOT = Path(__file__).resolve().parents[1]


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def same(a: Path, b: Path) -> bool:
    x, y = weights(a), weights(b)
    return x.keys() == y.keys() and all(x[k].dtype == y[k].dtype and x[k].tobytes() == y[k].tobytes() for k in x)


def with_optimizer(model):
    import optax

    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.LoRAParam)
    noise = jax.tree.map(lambda x: x + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape), nnx.state(optimizer))
    nnx.update(optimizer, noise)
    return optimizer


# From everything to everything


@families("gemma4")
def test_all_sources_give_the_same_merged_model(tmp_path, name):
    live = adapted(name)
    convert.to_hf(live, tmp_path / "live", max_shard="50KB")
    convert.to_orbax(live, tmp_path / "orbax")
    convert.to_peft(live, tmp_path / "adapter", base=source(name))
    for kind in ("orbax", "adapter"):
        done = convert.to_hf(tmp_path / kind, tmp_path / f"from-{kind}")
        assert done.verified and done.merge is not None
        assert same(tmp_path / "live", tmp_path / f"from-{kind}")
    convert.to_peft(tmp_path / "orbax", tmp_path / "again", base_name=str(source(name)))
    assert same(tmp_path / "adapter", tmp_path / "again")
    assert open_source(tmp_path / "orbax").adapters.base == open_source(tmp_path / "again").adapters.base


@families("gemma4")
def test_a_plain_model_goes_through_orbax_bit_exact(tmp_path, name):
    convert.to_orbax(source(name), tmp_path / "orbax")
    convert.to_hf(tmp_path / "orbax", tmp_path / "hf")
    assert same(source(name), tmp_path / "hf")
    again = convert.from_orbax(tmp_path / "orbax")
    one, two = flat(convert.from_hf(source(name)).model), flat(again.model)
    assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
    assert again.tokenizer.bos_token == "<bos>" and again.spec.family == spec_of(name).family


def test_adapters_and_optimizer_come_back_from_orbax(tmp_path):
    live = adapted("gemma4")
    optimizer = with_optimizer(live.model)
    convert.to_orbax(live, tmp_path / "orbax", optimizer=optimizer)
    again = convert.from_orbax(tmp_path / "orbax")
    for kind in (nnx.Param, nnx.LoRAParam):
        one, two = flat(live.model, kind), flat(again.model, kind)
        assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
    assert dataclasses.replace(lora.settings(again.model)) == lora.settings(live.model)
    fresh = with_optimizer(again.model)
    nnx.update(fresh, jax.tree.map(jnp.zeros_like, nnx.state(fresh)))
    convert.restore_optimizer(tmp_path / "orbax", fresh)
    one, two = (jax.tree.leaves(nnx.state(x, nnx.optimizer.OptState)) for x in (optimizer, fresh))
    assert len(one) > 70 and all(map(np.array_equal, one, two))
    convert.to_orbax(live, tmp_path / "orbax")
    with pytest.raises(LabError, match="no optimizer"):
        convert.restore_optimizer(tmp_path / "orbax", fresh)


def test_the_folder_of_a_run_is_a_source(tmp_path):
    """What `labkit sft` leaves: adapters alone in steps, the recipe beside them."""
    live = adapted("gemma4")
    recipe = {"model": str(source("gemma4")), "rank": 3, "alpha": 6.0, "targets": "all"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"recipe": recipe, "data": "y"}))
    manager = CheckpointManager(str(tmp_path / "run" / "checkpoints"))
    for step in (1, 2):
        manager.save(step, live.model, save_only_lora_params=True, force=True)
    manager.close()
    convert.to_hf(live, tmp_path / "live")
    for place in ("run", "run/checkpoints", "run/checkpoints/2"):
        convert.to_hf(tmp_path / place, tmp_path / "out")
        assert same(tmp_path / "live", tmp_path / "out")
    found = convert.from_orbax(tmp_path / "run")
    one, two = flat(live.model, nnx.LoRAParam), flat(found.model, nnx.LoRAParam)
    assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
    assert convert.inspect(tmp_path / "run").tensors[0].name.endswith("lora_a")


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", ["gemma4-e2b", "llama3"])
def test_a_run_knows_its_base(name, dtype):
    """The fingerprint in `run.json` is that of the directory, as `labkit sft` makes it of the live model."""
    from labkit import sft
    from labkit.sft.run import _identity

    live = convert.from_hf(source(name), dtype=dtype)
    model, _ = lora.inject(live.model, 2, 2.0)
    assert runs.identity(source(name), live.spec, dtype) == _identity(model, None, sft.Recipe()).model


def test_a_run_on_another_base_is_refused(tmp_path):
    live = adapted("gemma4")
    recipe = {"model": str(source("gemma4")), "rank": 3, "alpha": 6.0, "targets": "all"}
    for name, base in (("right", runs.identity(source("gemma4"), live.spec)), ("wrong", "Gemma4-0123456789ab")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"recipe": recipe, "model": base}))
        manager = CheckpointManager(str(tmp_path / name / "checkpoints"))
        manager.save(1, live.model, save_only_lora_params=True, force=True)
        manager.close()
    assert convert.to_hf(tmp_path / "right", tmp_path / "out").verified
    with pytest.raises(LabError, match="trained on other weights"):
        convert.to_hf(tmp_path / "wrong", tmp_path / "out")
    assert convert.to_hf(tmp_path / "wrong", tmp_path / "out", allow_other_base=True).verified


def test_what_is_no_model_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    for call in (convert.load, convert.inspect, lambda p: convert.to_hf(p, tmp_path / "out")):
        with pytest.raises(LabError):
            call(tmp_path / "empty")
    with pytest.raises(LabError, match="no adapters"):
        convert.to_peft(source("gemma4"), tmp_path / "out")
    with pytest.raises(LabError, match="needs its spec"):
        convert.to_hf(adapted("gemma4").model, tmp_path / "out")
    convert.to_orbax(source("gemma4"), tmp_path / "orbax")
    with pytest.raises(LabError, match="there already"):
        convert.to_orbax(source("qwen3"), tmp_path / "orbax")
    shutil.move(tmp_path / "orbax" / "state" / "params", tmp_path / "bare")
    with pytest.raises(LabError, match="does not say of which model"):
        convert.to_hf(tmp_path / "bare", tmp_path / "out")
    with pytest.raises(LabError, match="gemma4-e2b"):
        convert.to_hf(tmp_path / "bare", tmp_path / "out", base=source("gemma4-e2b"))
    assert convert.to_hf(tmp_path / "bare", tmp_path / "out", base=source("gemma4")).verified


# What merging costs


def exact_merge(weight, a, b, scale, dtype):
    """The merge in float64 with its one rounding, and the figures of its report."""
    change = scale * (b.astype(np.float64) @ a.astype(np.float64))
    exact = weight.astype(np.float64) + change
    written = exact.astype(np.float32).astype(dtype)
    error = written.astype(np.float64) - exact
    unchanged = written == weight.astype(dtype)
    lost = np.abs(change)[unchanged].sum() / np.abs(change).sum()
    return written, float(np.linalg.norm(error) / np.linalg.norm(change)), float(lost)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["float32", "bfloat16", "float16"]), st.floats(-4, 0), st.integers(0, 99))
def test_the_merge_is_that_of_float64_rounded_once(dtype, size, seed):
    rng = np.random.default_rng(seed)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weight = rng.normal(0, 0.1, (24, 16)).astype(kind)
    a, b = rng.normal(0, 1, (4, 16)).astype(np.float32), rng.normal(0, 10**size, (24, 4)).astype(np.float32)
    written, _, sums = merging.merge(jnp.asarray(weight), a, b, jnp.float32(0.5), kind)
    expected, error, lost = exact_merge(weight, a, b, 0.5, kind)
    off = np.asarray(written).astype(np.float32) - expected.astype(np.float32)
    if dtype == "float32":
        np.testing.assert_allclose(off, 0, atol=1e-6 * (1 + 10**size))
        return
    assert (np.abs(off) <= np.abs(expected.astype(np.float32)) / 128).all() and (off == 0).mean() > 0.97
    squares, errors, change, swallowed = np.asarray(sums, np.float64).sum(-1)
    np.testing.assert_allclose(np.sqrt(errors / squares), error, rtol=0.02)
    np.testing.assert_allclose(swallowed / change, lost, atol=0.02)


def small_adapter(name: str, factor: float):
    """The adapted model in bfloat16 with adapters of another size."""
    live = adapted(name)
    loaded = convert.from_hf(source(name), dtype=jnp.bfloat16)
    model, _ = lora.inject(loaded.model, 3, 6.0)
    values = jax.tree.map(lambda x: x, lora.state(live.model))
    for path, variable in nnx.to_flat_state(values):
        variable.set_value(variable.get_value() * (factor if path[-1].endswith("_b") else 1))
    nnx.update(model, values)
    return dataclasses.replace(loaded, model=model)


def test_updates_that_bfloat16_swallows_are_reported_and_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="swallowed"):
        small = convert.to_hf(small_adapter("gemma4", 1e-3), tmp_path / "small").merge
    large = convert.to_hf(small_adapter("gemma4", 1.0), tmp_path / "large").merge
    assert small.dtype == "bfloat16" and len(small.linears) == 20 and small.worst in small.linears
    assert small.swallowed > 0.5 > 0.05 > large.swallowed
    assert small.rounding_error > large.rounding_error > 0
    kept = convert.to_hf(small_adapter("gemma4", 1e-3), tmp_path / "kept", dtype="float32").merge
    assert kept.swallowed < 1e-3 and kept.rounding_error < 1e-3
    assert convert.MergeReport.from_json(small.to_json()) == small


def test_a_wrong_scale_is_found_by_verify(tmp_path):
    """alpha / r twice as large: what a script that forgets the rank does."""
    live = adapted("gemma4")
    convert.to_hf(live, tmp_path / "right")
    convert.to_peft(live, tmp_path / "adapter", base=source("gemma4"))
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 12}))
    assert not convert.verify(tmp_path / "right", tmp_path / "adapter").equal
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 6}))
    found = convert.verify(tmp_path / "right", tmp_path / "adapter")
    assert found.equal and found.max_logit_difference < 1e-3
    found.write_report(tmp_path / "report.html")
    assert "equal, bit for bit" in (tmp_path / "report.html").read_text()


def test_rslora_scales_by_the_root_of_the_rank():
    plain, root = (convert_scale(rslora) for rslora in (False, True))
    assert (plain, root) == (2.0, 6.0 / 3**0.5)


def convert_scale(rslora: bool) -> float:
    return pairing.Adapters(3, 6.0, {}, rslora).scale


def test_a_fingerprint_is_that_of_the_weights_however_they_are_read(tmp_path):
    name = "gemma4-e2b"
    live = convert.from_hf(source(name))
    half = convert.from_hf(source(name), dtype=jnp.bfloat16)
    found = {sources.fingerprint(open_source(x).tensors) for x in (source(name), live, half)}
    assert len(found) == 1
    live.model.layers[1].mlp.up_proj.kernel[...] += 0.01
    assert sources.fingerprint(open_source(live).tensors) not in found


# Looking without loading


def test_inspect_says_what_is_in_each_kind(tmp_path):
    live = adapted("gemma4")
    convert.to_hf(live, tmp_path / "hf", max_shard="60KB")
    convert.to_peft(live, tmp_path / "peft", base="b")
    convert.to_orbax(live, tmp_path / "orbax")
    kinds = {name: convert.inspect(tmp_path / name) for name in ("hf", "peft", "orbax")}
    assert {name: found.format for name, found in kinds.items()} == {name: name for name in kinds}
    shapes = {row.name: row.shape for row in kinds["hf"].tensors}
    assert shapes == checkpoints.tensor_shapes(live.spec)
    assert kinds["hf"].bytes == sum(value.nbytes for value in weights(tmp_path / "hf").values())
    assert {row.file for row in kinds["hf"].tensors} == {p.name for p in (tmp_path / "hf").glob("*.safetensors")}
    assert kinds["peft"].about["r"] == "3" and len(kinds["peft"].tensors) == 42
    assert {row.file for row in kinds["orbax"].tensors} == {"params", "adapters"}
    assert {branch.prefix for branch in kinds["hf"].branches("model")} == {
        "model.embed_tokens",
        "model.layers",
        "model.norm",
    }
    assert sum(branch.bytes for branch in kinds["hf"].branches()) == kinds["hf"].bytes
    assert convert.Inspection.from_json(kinds["orbax"].to_json()) == kinds["orbax"]
    single = convert.inspect(source("gemma4") / "model.safetensors")
    assert single.format == "safetensors" and single.about == {"format": "pt"} and "43 tensors" in str(single)


def sparse(folder: Path, spec: models.ModelSpec) -> int:
    """The spec's checkpoint as files that take no disk: headers, and holes for the tensors."""
    folder.mkdir()
    shapes, mapped, total = list(checkpoints.tensor_shapes(spec).items()), {}, 0
    parts = [shapes[i::13] for i in range(13)]
    for number, part in enumerate(parts, 1):
        file, end, entries = f"model-{number:05}-of-{len(parts):05}.safetensors", 0, {}
        for name, shape in part:
            start, end = end, end + int(np.prod(shape)) * 2
            entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
            mapped[name] = file
        raw = json.dumps(entries).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            out.truncate(8 + len(raw) + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapped}))
    return total


def test_sixty_gigabytes_are_inspected_in_a_second_and_200_mb(tmp_path):
    total = sparse(tmp_path / "big", models.get("gemma4-31b"))
    assert total > 60e9
    code = (
        "import sys, time; b = time.process_time()\n"
        "from labkit.convert.inspection import inspect; found = inspect(sys.argv[1])\n"
        "from labkit.convert.memory import peak_rss\n"
        "print(found.bytes, len(found.tensors), time.process_time() - b, peak_rss(), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "big")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    size, tensors, seconds, peak, jax_there = done.stdout.split()
    assert int(size) == total and int(tensors) == len(checkpoints.tensor_shapes(models.get("gemma4-31b")))
    assert float(seconds) < 1 and int(peak) < 200e6 and jax_there == "False"


# Broken off

SLOW = """
import signal, sys, time
from labkit import convert
from labkit.convert import shards
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
plain = shards._ahead
def slowly(pieces):
    for i, piece in enumerate(plain(pieces)):
        if i == 5:
            print("half", flush=True)
            time.sleep(600)
        yield piece
shards._ahead = slowly
convert.to_hf(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_in_the_middle_leaves_no_folder_of_that_name(tmp_path, number):
    command = [sys.executable, "-c", SLOW, str(source("gemma4")), str(tmp_path / "out")]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert run.stdout.readline().strip() == "half"
    run.send_signal(number)
    run.wait()
    left = [p.name for p in tmp_path.iterdir()]
    assert "out" not in left
    assert left == [] if number == signal.SIGINT else all(name.startswith(".out.") for name in left)
    assert convert.to_hf(source("gemma4"), tmp_path / "out").verified


FULL = """
import resource, sys
from labkit.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
main(sys.argv[1:])
"""


def test_a_full_disk_is_one_line_and_no_folder(tmp_path):
    command = [sys.executable, "-c", FULL, "convert", str(source("gemma4")), str(tmp_path / "out"), "--to", "hf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "could not be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


# Eight bits


def raw_weights(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file by its header: safetensors' NumPy side has no float8."""
    kinds = {"F32": np.float32, "I8": np.int8, "F8_E4M3": ml_dtypes.float8_e4m3fn}
    return {x.name: np.fromfile(file, kinds[x.dtype], int(np.prod(x.shape)), offset=x.start).reshape(x.shape)
            for x in headers.read(file)}  # fmt: skip


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_a_quantized_export_holds_what_its_report_says(tmp_path, scheme):
    live = adapted("gemma4")
    found = convert.quantize(live, tmp_path / "out", scheme=scheme)
    convert.to_hf(live, tmp_path / "merged")
    plain, eight = weights(tmp_path / "merged"), raw_weights(tmp_path / "out" / "model.safetensors")
    linears = [name for name in eight if f"{name}_scale" in eight]
    assert len(linears) == len(found.linears) == 20
    errors = squares = 0.0
    for name in linears:
        back = eight[name].astype(np.float32) * eight[f"{name}_scale"]
        errors += float(((back - plain[name]) ** 2).sum())
        squares += float((plain[name] ** 2).sum())
    np.testing.assert_allclose(found.error, (errors / squares) ** 0.5, rtol=1e-3)
    assert {eight[name].dtype for name in linears} == {quantization._STORED[scheme]}
    untouched = [name for name in eight if name in plain and name not in linears]
    assert all(np.array_equal(eight[name], plain[name]) for name in untouched)
    assert found.error < (0.01 if scheme == "int8" else 0.04) and found.argmax_agreement > 0.8
    assert 0 < found.mean_logit_difference < found.max_logit_difference
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and "lm_head" in config["ignore"]
    with pytest.raises(LabError, match="no scheme"):
        convert.quantize(live, tmp_path / "other", scheme="int3")
    with pytest.raises(LabError, match="quantized weights"):
        convert.load(tmp_path / "out")


# The commands


def labkit(*words: str) -> subprocess.CompletedProcess[str]:
    code = "from labkit.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)


def test_the_commands_say_their_records(tmp_path):
    convert.to_peft(adapted("gemma4"), tmp_path / "adapter", base=source("gemma4"))
    done = labkit("convert", str(tmp_path / "adapter"), str(tmp_path / "hf"), "--to", "hf", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert {"out", "tensors", "bytes", "seconds", "peak_rss_bytes", "verified"} <= found.keys() and found["verified"]
    done = labkit("verify", str(tmp_path / "adapter"), str(tmp_path / "hf"), "--json")
    found = json.loads(done.stdout)
    assert found["equal"] and found["max_abs_difference"] == 0 and found["max_logit_difference"] < 1e-3
    done = labkit("inspect", str(tmp_path / "hf"), "--json")
    assert convert.Inspection.from_json(done.stdout).format == "hf"


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "nowhere", "out", "--to", "hf"),
        ("convert", "data/models/tiny-gemma4", "out", "--to", "onnx"),
        ("convert", "data/models/tiny-gemma4", "out", "--to", "peft"),
        ("convert", "data/models/tiny-gemma4", "out", "--to", "orbax", "--dtype", "bfloat16"),
        ("inspect", "nowhere"),
        ("inspect", "labkit"),
        ("verify", "data/models/tiny-gemma4", "nowhere"),
    ],
)
def test_wrong_calls_are_one_line(words, tmp_path):
    given = [str(tmp_path / word) if word == "out" else word for word in words]
    done = labkit(*given, "--json")
    assert done.returncode == 1 and set(json.loads(done.stdout)) == {"error", "hint"}
    assert sum(line.startswith("error:") for line in done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


# As documentation


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "llama3", "qwen3"])
def test_the_table_shows_itself(family):
    found = convert.table(family)
    assert len(found.rules) == len(convert.TABLES[family])
    for shown in (str(found), found.to_markdown(), found._repr_html_()):
        assert all(rule.hf in shown for rule in found.rules)
    assert convert.LayoutTable.from_json(found.to_json()) == found
    with pytest.raises(LabError, match="no family"):
        convert.table("gemma5")


# Meshes


def on_mesh(work: Path, verb: str, devices: int, axes: str, processes: int = 1) -> dict:
    """`convert_on_mesh.py` in as many processes, each with its devices; what the first said."""
    command = [sys.executable, "-m", "tests.convert_on_mesh", verb, str(work), str(devices), axes]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [[port, str(rank)] if processes > 1 else [] for rank in range(processes)]
    runs = [subprocess.Popen([*command, *rank], cwd=ROOT, env=env, **pipes) for rank in ranks]
    ends = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0] * processes, "\n".join(said[-3000:] for _, said in ends)
    return json.loads(ends[0][0].strip().rpartition("\n")[2])


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_is_the_same_on_one_and_on_four_by_two(tmp_path):
    """Base, adapters and optimizer, bit for bit; and each device really holds a part."""
    shutil.copytree(source("gemma4"), tmp_path / "source")
    saved = on_mesh(tmp_path, "save", 8, "fsdp=8,tp=1")
    one, grid = on_mesh(tmp_path, "restore", 1, "one"), on_mesh(tmp_path, "restore", 8, "fsdp=4,tp=2")
    assert saved["sums"] == one["sums"] == grid["sums"] and len(saved["sums"]) > 140
    assert (saved["shards"], one["shards"], grid["shards"]) == ([[4, 48]], [[32, 48]], [[8, 24]])
    assert convert.to_hf(tmp_path / "checkpoint", tmp_path / "hf").verified


@pytest.mark.slow
def test_two_processes_save_and_restore_together(tmp_path):
    shutil.copytree(source("gemma4"), tmp_path / "source")
    saved = on_mesh(tmp_path, "save", 4, "fsdp=4,tp=2", processes=2)
    one = on_mesh(tmp_path, "restore", 1, "one")
    two = on_mesh(tmp_path, "restore", 4, "fsdp=8,tp=1", processes=2)
    assert saved["sums"] == one["sums"] == two["sums"]
    assert saved["devices"] == two["devices"] == 8 and (saved["shards"], two["shards"]) == ([[8, 24]], [[4, 48]])
