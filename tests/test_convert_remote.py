"""Orbax checkpoints in a bucket: the real clients (etils by gcsfs, TensorStore) against an emulator on this machine.

The emulator is the package gcp-storage-emulator, a stand-in for Google's service: it speaks the same HTTP, and says
nothing about speed, permissions or consistency there. Both come with the extra `gcs`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import convert
from tests.conversions import adapted, source

ROOT = Path(__file__).resolve().parents[1]
MISSING = [name for name in ("gcsfs", "gcp_storage_emulator") if importlib.util.find_spec(name) is None]

# In a process of its own: TensorStore reads the emulator's address once, when it is imported.
SCRIPT = """
import os, sys, socket
from gcp_storage_emulator.server import create_server
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
server = create_server("127.0.0.1", port, in_memory=True, default_bucket="lab")
server.start()
os.environ |= {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "TENSORSTORE_GCS_HTTP_URL": f"http://127.0.0.1:{port}",
               "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none"}
from labkit import convert
from labkit.errors import LabError
from tests.conversions import adapted, source
try:
    where = "gs://lab/models/tuned"
    assert convert.to_orbax(adapted("gemma4"), where).verified
    found = convert.inspect(where)
    assert found.format == "orbax" and {row.file for row in found.tensors} == {"params", "adapters"}
    assert convert.to_hf(where, sys.argv[1] + "/merged").verified
    assert convert.to_peft(where, sys.argv[1] + "/adapter", base_name=str(source("gemma4"))).verified
    assert convert.from_orbax(where).tokenizer.bos_token == "<bos>"
    assert convert.to_orbax(source("gemma4"), where).verified
    assert {row.file for row in convert.inspect(where).tensors} == {"params"}
    for call in (lambda: convert.inspect("gs://lab/nowhere"), lambda: convert.to_orbax(source("qwen3"), where)):
        try:
            call()
        except LabError as error:
            print("refused", error.what)
finally:
    server.stop()
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install 'tpu-labkit[gcs]'")
def test_a_bucket_is_written_read_and_replaced(tmp_path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("done") and done.stdout.count("refused") == 2, done.stdout + done.stderr[-4000:]
    convert.to_hf(adapted("gemma4"), tmp_path / "live")
    files = [tmp_path / name / "model.safetensors" for name in ("merged", "live")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (tmp_path / "merged" / "tokenizer.json").read_bytes() == (source("gemma4") / "tokenizer.json").read_bytes()
