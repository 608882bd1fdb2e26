"""`convert.to_hf` from Orbax, adapters merged, against a bare loop that restores each array and writes its bytes.

python benchmarks/convert_speed.py [--gigabytes 4] [--rounds 3] [--work DIR] [--json]

Ours is to have at least 0.6 of the bare loop's speed and at most twice the largest tensor + 200 MB of extra memory.
Each measurement is a process of its own, ours and the bare loop taking turns; the time starts when the libraries are
imported, the memory counts from there. Beside them `cp` of the checkpoint, Tunix's saver and Transformers'
`save_pretrained`, whose models are loaded before the clock starts and count as memory that they need.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
RANK, ALPHA = 16, 32.0
SPEED, SLACK = 0.6, 200e6  # the promises
OTHERS = ("cp", "tunix", "transformers")


def spec_of(gigabytes: float) -> Any:
    """A Qwen 3 of about so many gigabytes in bfloat16: the shape of its 4B, the layers and the vocabulary cut."""
    from labkit import models
    from labkit.models.checkpoints import count_parameters

    base = models.ModelSpec(
        name="synthetic", family="qwen3", hub_id=None, licence="none", gated=False, num_layers=1, embed_dim=2560,
        hidden_dim=9728, num_heads=32, num_kv_heads=8, head_dim=128, vocab_size=151_936, layer_types=("global",),
        tied_embeddings=True, max_positions=4096, norm_eps=1e-6, rope_theta=1e6, parameters=0,
    )  # fmt: skip
    small = gigabytes < 1.5
    base = dataclasses.replace(base, vocab_size=8192, embed_dim=1024, hidden_dim=4096) if small else base
    one = count_parameters(base)
    layer = one - base.vocab_size * base.embed_dim
    layers = max(1, round((gigabytes * 5e8 - (one - layer)) / layer))
    spec = dataclasses.replace(base, num_layers=layers, layer_types=("global",) * layers)
    return dataclasses.replace(spec, parameters=count_parameters(spec))


def make(work: Path, gigabytes: float) -> dict[str, Any]:
    """The checkpoint (base and adapters), and the base as a Hugging Face file for the two others."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    from labkit import convert, lora, models
    from labkit.models.sharding import variables

    spec = spec_of(gigabytes)
    model = models.abstract(spec, dtype=jnp.bfloat16)
    for number, variable in enumerate(variables(model).values()):
        shape = variable.get_value().shape
        noise = np.random.default_rng(number).standard_normal(int(np.prod(shape)), np.float32).reshape(shape)
        variable.set_value(jnp.asarray(noise * 0.02 if len(shape) > 1 else 1 + noise * 0.1, jnp.bfloat16))
        del noise
    convert.to_hf(model, work / "base", spec=spec, max_shard="1000GB")
    model, _ = lora.inject(model, RANK, ALPHA)
    adapters = lora.state(model)
    nnx.update(model, jax.tree.map(lambda x: x + jnp.asarray(1e-3, x.dtype), adapters))
    convert.to_orbax(model, work / "orbax", spec=spec)
    convert.to_peft(model, work / "adapter", spec=spec, base_name=str(work / "base"))
    sizes = [x.nbytes for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    return {"bytes": sum(sizes), "largest": max(sizes), "layers": spec.num_layers}


def ours(work: Path) -> Callable[[], Any]:
    """labkit: read, merge, move the axes, write, read back and compare."""
    from labkit import convert
    from labkit.convert import saving  # noqa: F401  (imported before the clock starts)

    return lambda: convert.to_hf(work / "orbax", work / "ours")


def bare(work: Path) -> Callable[[], Any]:
    """Each array restored by Orbax and its bytes written to one file; nothing merged, moved or checked."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    item = work / "orbax" / "state" / "params"
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def run() -> None:
        checkpointer = ocp.PyTreeCheckpointer()
        tree = checkpointer.metadata(item).item_metadata.tree
        with (work / "bare").open("wb") as out:
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))[0]:
                wanted: Any = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
                for key in reversed(path):
                    wanted = {key.key: wanted}
                args = jax.tree.map(lambda x: ocp.ArrayRestoreArgs(sharding=place, dtype=x.dtype), wanted)
                found = checkpointer.restore(
                    item, args=ocp.args.PyTreeRestore(item=wanted, restore_args=args, partial_restore=True)
                )
                out.write(np.asarray(jax.tree.leaves(found)[0]).reshape(-1).view(np.uint8).data)

    return run


def cp(work: Path) -> Callable[[], Any]:
    """The checkpoint's files copied."""
    return lambda: subprocess.run(["cp", "-r", str(work / "orbax"), str(work / "copy")], check=True)


def tunix(work: Path) -> Callable[[], Any]:
    """Tunix's saver, which merges a live model into the base's file."""
    from tunix.models.qwen3 import params

    from labkit import convert, models

    spec = models.spec_from_config(work / "base")
    model, _ = convert.from_peft(work / "adapter", load_without_tokenizer(work / "base", spec), spec)
    folder = str(work / "tunix")
    return lambda: params.save_lora_merged_model_as_safetensors(str(work / "base"), folder, model, RANK, ALPHA)


def load_without_tokenizer(directory: Path, spec: Any) -> Any:
    """The base live; the synthetic model has no tokenizer."""
    from labkit.convert import opening, probing

    return probing.live(opening.of_directory(directory))


def transformers(work: Path) -> Callable[[], Any]:
    """Transformers: a merged model is saved."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(work / "base", dtype=torch.bfloat16)
    return lambda: model.save_pretrained(work / "transformers")


def rss() -> int:
    """Resident bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name: str, work: Path) -> dict[str, Any]:
    """One of them, timed in this process."""
    from labkit.convert.memory import peak_rss

    at_start = rss()
    call = globals()[name](work)
    before = rss() if name == "ours" or name == "bare" else at_start
    begun = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - begun, "extra": max(0, peak_rss() - before)}


def child(*words: str) -> dict[str, Any]:
    """This script in a process of its own; its last line is JSON."""
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def run(work: Path, gigabytes: float, rounds: int) -> dict[str, Any]:
    """All measurements, the outputs removed after each."""
    made = child("--part", "make", "--work", str(work), "--gigabytes", str(gigabytes))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ("ours", "bare", *OTHERS)}
    for name in ["bare", "ours"] * rounds + list(OTHERS):
        try:
            found[name].append(child("--part", name, "--work", str(work)))
            last = found[name][-1]
            print(f"{name}: {last['seconds']:.1f} s, {last['extra'] / 1e6:,.0f} MB", file=sys.stderr)
        except subprocess.CalledProcessError:
            print(f"{name}: not possible here (is its library installed?)", file=sys.stderr)
        for left in ("ours", "bare", "copy", "tunix", "transformers"):
            path = work / left
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    seconds = {name: statistics.median(x["seconds"] for x in rows) for name, rows in found.items() if rows}
    extra = {name: max(x["extra"] for x in rows) for name, rows in found.items() if rows}
    return made | {
        "seconds": seconds,
        "extra_bytes": extra,
        "speed": seconds["bare"] / seconds["ours"],
        "memory_limit": 2 * made["largest"] + SLACK,
        "kept": seconds["bare"] / seconds["ours"] >= SPEED and extra["ours"] <= 2 * made["largest"] + SLACK,
    }


def report(found: dict[str, Any]) -> str:
    """The table for a reader."""
    lines = [f"{found['bytes'] / 1e9:.2f} GB in bfloat16, largest tensor {found['largest'] / 1e6:.0f} MB"]
    for name, seconds in found["seconds"].items():
        rate = found["bytes"] / seconds / 1e6
        lines.append(f"{name:13} {seconds:7.1f} s  {rate:6.0f} MB/s  {found['extra_bytes'][name] / 1e6:8,.0f} MB extra")
    lines.append(f"speed {found['speed']:.2f} of the bare loop (promise {SPEED})")
    lines.append(f"memory {found['extra_bytes']['ours'] / 1e6:,.0f} MB (promise {found['memory_limit'] / 1e6:,.0f})")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a folder on the disk to measure, removed afterwards")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        said = make(args.work, args.gigabytes) if args.part == "make" else measure(args.part, args.work)
        print(json.dumps(said))
        return
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        found = run(Path(work), args.gigabytes, args.rounds)
    print(json.dumps(found) if args.json else report(found))
    sys.exit(0 if found["kept"] else 1)


if __name__ == "__main__":
    main()
