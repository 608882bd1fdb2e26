"""The command line as scripts see it: one JSON object on stdout, one line of error, an exit code, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.data import verilog

ROOT = Path(__file__).resolve().parents[1]


def labkit(*words: str) -> subprocess.CompletedProcess[str]:
    code = "from labkit.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def problem():
    return verilog.problems("test_seen", 1, seed=0)[0]


def test_help_of_every_command_has_an_example():
    top = labkit("--help")
    assert top.returncode == 0
    for name in ("doctor", "run", "sft", "eval", "judge", "lab"):
        assert name in top.stdout
        assert "Example:" in labkit(name, "--help").stdout, name


def test_judge_says_the_verdict(problem, tmp_path):
    (tmp_path / "tb.v").write_text(problem.testbench)
    (tmp_path / "good.v").write_text(problem.reference)
    (tmp_path / "bad.v").write_text("module nothing; endmodule\n")
    for name, verdict in (("good.v", "pass"), ("bad.v", "port_mismatch")):
        done = labkit("judge", str(tmp_path / name), "--testbench", str(tmp_path / "tb.v"), "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["verdict"] == verdict and found["seconds"] > 0 and "detail" in found


def test_doctor_is_one_json_object():
    done = labkit("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["cores"] >= 1 and found["versions"] and "protections" in found


@pytest.mark.parametrize(
    "words",
    [
        ("judge", "nowhere.v", "--testbench", "nothing.v"),
        ("eval", "--model", "no-such-model"),
        ("sft", "--out", "build/never", "--set", "rnak=3"),
        ("sft", "--out", "build/never", "--set", "steps=0"),
        ("sft", "--out", "build/never", "--set", "data=nowhere.jsonl"),
        ("sft", "--out", "build/never", "--recipe", "nowhere.toml"),
        ("run", "--out", "labkit"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(words):
    done = labkit(*words, "--json")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1 and "Traceback" not in done.stderr
    assert set(json.loads(done.stdout)) == {"error", "hint"}
    assert not (ROOT / "build" / "never").exists()


def test_a_wrong_call_exits_with_two():
    assert labkit("nonsense").returncode == 2
    assert labkit("judge").returncode == 2
