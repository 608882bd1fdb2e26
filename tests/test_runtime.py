"""`labkit.start`: simulated devices before JAX starts, a clear error after, and hands off a TPU that is held."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit import runtime
from labkit.errors import LabError
from labkit.runtime import chips

ROOT = Path(__file__).resolve().parents[1]


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=os.environ | env)


def test_simulated_devices_and_one_line():
    done = run("import labkit; labkit.start(devices=4); import jax; assert len(jax.devices()) == 4")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "4 simulated CPU devices" in done.stdout


def test_too_late_is_a_clear_error():
    done = run("import jax; jax.devices(); import labkit; labkit.start(devices=3)")
    assert "after JAX had started" in done.stderr and "Restart the kernel" in done.stderr


def test_unknown_scales_and_impossible_devices():
    with pytest.raises(LabError, match="no scale"):
        labkit.start("laptpo")
    with pytest.raises(LabError, match="devices=0"):
        labkit.start(devices=0)


def test_the_scale_decides_the_model(capsys):
    assert labkit.start("laptop").model == "tiny-gemma4"
    assert labkit.start("colab").model == "qwen3-0.6b"
    assert labkit.start("slice").model == "gemma4-31b"
    assert runtime.Runtime.from_json(labkit.start().to_json()).platform == "cpu"


def make_tpu(root: Path, count: int = 4) -> None:
    for i in range(count):
        device = root / "sys/bus/pci/devices" / f"0000:00:0{i}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1ae0\n")
        (device / "device").write_text("0x0063\n")


def test_chips_are_counted_from_files(tmp_path):
    assert chips.tpu(tmp_path).count == 0 and not chips.gpu(tmp_path)
    make_tpu(tmp_path)
    assert chips.tpu(tmp_path) == chips.Chips(4, "v5e")


def test_checkpoints_go_where_they_are_told(tmp_path):
    assert runtime.checkpoint_dir("lab", root=tmp_path).startswith(str(tmp_path))
    assert runtime.checkpoint_dir("lab", root="gs://bucket/here") == "gs://bucket/here/lab"
