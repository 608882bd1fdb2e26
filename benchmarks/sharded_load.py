"""Peak host memory of a sharded load beyond the arrays that it makes: at most twice the largest tensor.

The tiny model, and a synthetic one of 2 GB in bfloat16 that is made in a temporary folder, are loaded onto eight
simulated devices (fsdp=4, tp=2), whose memory is the host's; each in a process of its own that has loaded the tiny
model before, so that imports do not count, nor does the tokenizer. The peak is the kernel's own (VmHWM): resident
memory, mapped files included. Beside it, for the synthetic one, the loader that comes with Tunix. Linux only.

python benchmarks/sharded_load.py [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "data" / "models" / "tiny-gemma4"
TARGET = 2.0
# A Gemma 4 text model of 1.0 G parameters, whose embedding is its largest tensor.
LARGE = {
    "vocab_size": 32_768,
    "hidden_size": 2048,
    "intermediate_size": 10_240,
    "num_hidden_layers": 13,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_global_key_value_heads": 2,
    "global_head_dim": 256,
}


def make(folder: Path) -> Path:
    """A checkpoint of the large shape: the same megabytes of noise again and again, written in pieces."""
    import ml_dtypes
    import numpy as np

    sys.path.insert(0, str(ROOT))
    from tests import tiny

    config = tiny.gemma4_config(**LARGE, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    tiny.write_tokenizer(folder)
    header, end = {}, 0
    for name, shape in tiny.gemma4_tensor_shapes(config).items():
        start, end = end, end + 2 * int(np.prod(shape))
        # The one prefix that Tunix's loader takes too.
        header[name.replace("model.", "model.language_model.", 1)] = {
            "dtype": "BF16", "shape": list(shape), "data_offsets": [start, end],
        }  # fmt: skip
    raw = json.dumps(header).encode()
    noise = np.random.default_rng(0).normal(0, 0.02, 2**20).astype(ml_dtypes.bfloat16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for start in range(0, end, len(noise)):
            file.write(noise[: end - start])
    return folder


def memory(field: str) -> int:
    """VmRSS or VmHWM (the highest so far) of this process, in bytes."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def load(directory: Path, loader: str) -> dict[str, Any]:
    """Load in this process, and say what it took."""
    import labkit

    with contextlib.redirect_stdout(sys.stderr):
        labkit.start(devices=8)
    import jax
    from flax import nnx

    from labkit import mesh, models
    from labkit.models import checkpoints, reading

    spec = models.spec_from_config(directory)
    largest = max(info.end - info.start for info in checkpoints.check(directory, spec).values())
    grid = mesh.make_mesh("fsdp=4,tp=2")
    kept = mesh.load(TINY, grid, on_indivisible="replicate")
    model = models.abstract(spec, dtype=spec.dtype)
    places = models.partition(model, grid, on_indivisible="replicate")
    tensors = checkpoints.check(directory, spec)
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from here
    before, begun = memory("VmRSS"), time.monotonic()
    model = tunix(directory, spec, grid) if loader == "tunix" else reading.fill(model, spec, tensors, places)
    leaves = jax.block_until_ready(jax.tree.leaves(nnx.state(model)))
    seconds, peak = time.monotonic() - begun, memory("VmHWM")
    arrays = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
    del kept
    return {"seconds": seconds, "arrays": arrays, "largest": largest, "beyond": peak - before - arrays}


def tunix(directory: Path, spec: Any, grid: Any) -> Any:
    """The same by the loader that comes with Tunix."""
    import jax.numpy as jnp
    from tunix.models.gemma4 import params_safetensors

    from labkit.models import building

    dtype = jnp.dtype(spec.dtype)
    config = building.config(spec, dtype=dtype)
    return params_safetensors.create_model_from_safe_tensors(str(directory), config, mesh=grid, dtype=dtype)


def in_a_process(directory: Path, loader: str) -> dict[str, Any]:
    """The same in a new process."""
    command = [sys.executable, __file__, "--one", str(directory), loader]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found | {"ratio": found["beyond"] / found["largest"]}


def main() -> None:
    """Load each checkpoint, and print the peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(load(Path(options.one[0]), options.one[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        large = make(Path(folder))
        found = {
            "tiny-gemma4, labkit": in_a_process(TINY, "labkit"),
            "synthetic 2 GB, labkit": in_a_process(large, "labkit"),
            "synthetic 2 GB, Tunix": in_a_process(large, "tunix"),
        }
    if options.json:
        print(json.dumps({"loads": found, "target": TARGET}))
        return
    for name, row in found.items():
        arrays, beyond = row["arrays"] / 1e6, row["beyond"] / 1e6
        print(f"{name}: {arrays:,.1f} MB of arrays in {row['seconds']:.1f} s, peak {beyond:,.1f} MB beyond them")
        print(f"    {row['ratio']:.2f} of the largest tensor (target of labkit: at most {TARGET:g})")


if __name__ == "__main__":
    main()
