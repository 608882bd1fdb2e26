"""Runs mesh_on_eight.py on eight simulated devices, and what needs several processes or a compile-only slice."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from labkit import lora, mesh, models, resources, sft
from labkit.data.pipeline import Pipeline
from labkit.errors import LabError
from labkit.mesh import distributed, layout
from tests.test_sft import SHAPE, samples
from tests.tiny import make_tiny_gemma4

ROOT = Path(__file__).resolve().parents[1]
EIGHT = Path(__file__).with_name("mesh_on_eight.py")
RECIPE = sft.Recipe(steps=3, batch_size=8, seq_len=16, save_every=9, warmup=0, learning_rate=1e-3, packing="pad")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# Eight devices in one process


@pytest.fixture(scope="module")
def on_eight() -> str:
    """The report of the tests that need eight devices: JAX of this process has started with one."""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", str(EIGHT)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", EIGHT.read_text(), re.M))
def test_on_eight_devices(on_eight, name):
    results = set(re.findall(rf"::{name}(?:\[.*\])? (\w+)", on_eight))
    assert results == {"PASSED"}, on_eight[-6000:]


# Slices that are not there


@pytest.mark.parametrize(
    ("name", "axes"),
    [("v5p-8", "fsdp=1,tp=4"), ("v4-8", "fsdp=2,tp=4"), ("v5e-16", "fsdp=4,tp=4"), ("tpu7x-8", "tp=8")],
)
def test_a_mesh_over_a_slice_to_compile_for(name, axes):
    pytest.importorskip("libtpu", reason="compiling for TPUs needs libtpu")
    made = mesh.make_mesh(axes, name)
    assert made.devices.flat[0].platform == "tpu" and len(set(made.devices.flat)) == made.size
    with pytest.raises(LabError, match="A mesh of fsdp 3"):
        mesh.make_mesh("fsdp=3", name)


def test_on_several_slices_one_axis_goes_over_the_slow_network():
    pytest.importorskip("libtpu", reason="compiling for TPUs needs libtpu")
    made = mesh.make_mesh("fsdp=8,tp=4", "2xv5e-16")
    owners = np.vectorize(lambda device: device.slice_index)(made.devices)
    assert (owners == np.repeat([0, 1], 4)[:, None]).all()
    with pytest.raises(LabError, match="3 slices do not divide any of fsdp=4, tp=4"):
        layout.across_slices({"fsdp": 4, "tp": 4}, 3)


def test_axes_lie_along_the_torus():
    """tp=4 of a v5e-16 is a row or a column of neighbours, not a scatter."""
    pytest.importorskip("libtpu", reason="compiling for TPUs needs libtpu")
    for ring in mesh.make_mesh("fsdp=4,tp=4", "v5e-16").devices:
        steps = [np.abs(np.subtract(a.coords, b.coords)).sum() for a, b in itertools.pairwise(ring)]
        assert steps == [1, 1, 1]


# Two processes

TWO = """
import json, sys
import jax, labkit
from labkit import lora, mesh, sft
from labkit.data.pipeline import Pipeline
from tests.test_mesh_devices import RECIPE, samples
directory, out, timeout = sys.argv[1:]
here = mesh.initialize(timeout=float(timeout))
print(here, file=sys.stderr)
labkit.start(devices=4)
grid = mesh.make_mesh("fsdp=4,tp=2")
model = mesh.load(directory, grid, on_indivisible="replicate").model
model, _ = lora.inject(model, 2, 4.0)
data = Pipeline(samples(24), seq_len=16, batch_size=8, packing="pad", shard=mesh.data_shard(grid))
kept = []
plain = sft.run.SftTrainer
sft.run.SftTrainer = lambda *a, **k: kept.append(plain(*a, **k)) or kept[-1]
result = sft.train(model, data, RECIPE, out=out, mesh=grid)
weights, states = mesh.assert_sharded_like(model), mesh.assert_sharded_like(kept[-1].optimizer, model)
held = mesh.inspect(model)["layers.0.mlp.up_proj.kernel"]
print(json.dumps({
    "losses": [row.loss for row in kept[-1].rows], "sharded": [weights.sharded, states.sharded],
    "processes": sorted({part.process for part in held.parts}), "cluster": here.cluster, "data": mesh.data_shard(grid),
}))
"""


def two(directory: Path, out: Path) -> list[dict]:
    """The script in two processes that JAX takes for a Slurm job on this machine."""
    job = free_port()
    runs = []
    for rank in range(2):
        slurm = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_TASKS": "2"}
        slurm |= {"SLURM_NTASKS": "2", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        env = os.environ | slurm | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", TWO, str(directory), str(out), "200"]
        runs.append(
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    ends = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ends[0][1][-3000:] + ends[1][1][-3000:]
    return [json.loads(said.strip().rpartition("\n")[2]) for said, _ in ends]


def alone(directory: Path, out: Path) -> list[float]:
    data = Pipeline(samples(24), seq_len=16, batch_size=8, packing="pad")
    model, _ = lora.inject(models.load(directory).model, 2, 4.0)
    return [row.loss for row in sft.train(model, data, RECIPE, out=out).curve()]


def two_processes_equal_one_device(directory: Path, tmp_path: Path) -> list[dict]:
    found, expected = two(directory, tmp_path / "two"), alone(directory, tmp_path / "alone")
    for one in found:
        np.testing.assert_allclose(one["losses"], expected, rtol=2e-5)
        assert one["processes"] == [0, 1] and one["cluster"] == "Slurm"
    assert [one["data"] for one in found] == [[0, 2], [1, 2]]
    assert len((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()) == RECIPE.steps
    return found


def test_lora_sft_on_two_processes_has_the_losses_of_one_device(tmp_path):
    directory = make_tiny_gemma4(tmp_path / "tiny", **SHAPE | {"num_hidden_layers": 1})
    found = two_processes_equal_one_device(directory, tmp_path)
    assert [one["sharded"] for one in found] == [[25, 22], [25, 22]]


@pytest.mark.slow
def test_lora_sft_of_the_shipped_tiny_model_on_two_processes(tmp_path):
    two_processes_equal_one_device(resources.path("models", "tiny-gemma4"), tmp_path)


# The roll call


def call(roll: list[tuple[int, int, int]], timeout: float) -> dict[int, str]:
    """What each of (place in the list -> process, processes) is told, all in threads of this process."""
    port, told = free_port(), {}

    def take(place: int, process: int, processes: int) -> None:
        try:
            distributed.roll_call(f"127.0.0.1:{port}", processes, process, timeout)
            told[place] = ""
        except LabError as error:
            told[place] = error.what

    threads = [threading.Thread(target=take, args=entry) for entry in roll]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_all_there():
    assert call([(0, 2, 3), (1, 0, 3), (2, 1, 3)], 20) == {0: "", 1: "", 2: ""}


def test_everybody_is_told_who_is_missing():
    told = call([(0, 0, 4), (1, 2, 4)], 1.5)
    assert told[0] == told[1] == "Processes 1, 3 of 4 did not come within 1.5 s (2 of 4 are here)."


def test_a_missing_coordinator_is_named():
    assert "Process 0 of 2 (the coordinator, 127.0.0.1:" in call([(0, 1, 2)], 0.5)[0]


@pytest.mark.parametrize(
    ("roll", "message"),
    [
        ([(0, 0, 3), (1, 1, 3), (2, 1, 3)], "Two processes call themselves process 1."),
        ([(0, 0, 3), (1, 1, 2)], "Process 1 expects 2 processes, process 0 expects 3."),
    ],
)
def test_processes_that_disagree_are_told(roll, message):
    assert set(call(roll, 20).values()) == {message}


def test_a_stranger_on_the_port_does_not_count():
    port, said = free_port(), []
    one = threading.Thread(target=lambda: said.append(distributed._take_roll(port, 2, 10)))
    one.start()
    for _ in range(50):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            break
        except OSError:
            threading.Event().wait(0.05)
    assert distributed._report("127.0.0.1", port, 2, 1, 10) == ""
    one.join()
    assert said == [""]


def test_a_missing_peer_ends_initialize_with_an_error_and_not_with_an_abort():
    code = f"""
from labkit import mesh
from labkit.errors import LabError
try:
    mesh.initialize("127.0.0.1:{free_port()}", 2, 0, timeout=1)
except LabError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Process 1 of 2 did not come within 1 s" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("10.0.0.2:1", None, None), "must all be given"),
        (("10.0.0.2:1", 2, 2), "Process 2 of 2 does not exist"),
        (("10.0.0.2", 2, 1), "no host and port"),
    ],
)
def test_arguments_that_make_no_cluster(arguments, message, monkeypatch):
    monkeypatch.setattr(distributed.runtime, "jax_started", lambda: False)
    with pytest.raises(LabError, match=message):
        mesh.initialize(*arguments, timeout=1)


def test_no_cluster_is_one_process_and_says_so(monkeypatch):
    monkeypatch.setattr(distributed.runtime, "jax_started", lambda: False)
    assert str(mesh.initialize()) == "Process 0 of 1 (cluster: none, no coordinator)"


def test_after_jax_has_started_it_is_too_late():
    jax.devices()
    with pytest.raises(LabError, match="after JAX had started"):
        mesh.initialize("127.0.0.1:1", 2, 0)


def test_processes_of_this_machine_make_one_mesh_and_say_who_is_missing():
    first, second = mesh.run_processes(2, devices=2, axes="fsdp=4")
    assert first.joined and second.joined
    assert "numbers 0 to 1" in first.text and "numbers 2 to 3" in second.text and "sum of all is 6" in second.text
    (alone,) = mesh.run_processes(2, devices=2, axes="fsdp=4", absent={1}, timeout=2)
    assert not alone.joined and "Process 1" in alone.text
