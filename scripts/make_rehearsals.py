"""Compile all rehearsals of `data/rehearsals` again, and say where they differ from those that are stored.

Bytes must agree within 1 %, cycles within 3 %. What is not stored yet is stored; `--update` stores all anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from labkit import rehearse, resources
from labkit.rehearse import cache

FOLDER = resources.data_dir() / "rehearsals"
BYTES, CYCLES = 0.01, 0.03
TRAIN: dict[str, Any] = {"step": "lora_sft", "rank": 16, "targets": "all", "remat": "decoder", "accumulation": 1,
                         "loss_chunk": 512, "qlora": None}  # fmt: skip
SMALL = TRAIN | {"model": "gemma3-270m", "slice": "v5e-4", "axes": "fsdp=4", "seq": 1024, "batch": 4}
LARGE = TRAIN | {"model": "gemma4-31b", "slice": "v5p-8", "seq": 2048, "batch": 1}
PRODUCT: dict[str, Any] = {"step": "matmul", "slice": "v5e-4", "axes": "tp=4", "m": 4096, "k": 8192, "n": 8192}
JOBS: tuple[dict[str, Any], ...] = (
    *(PRODUCT | {"layout": layout} for layout in ("column", "row", "whole")),
    *(SMALL | {"remat": remat} for remat in ("none", "block", "decoder")),
    SMALL | {"loss_chunk": 1024},
    LARGE,
    *(LARGE | {"layers": layers} for layers in ([1, 1], [2, 1], [1, 2])),
    LARGE | {"slice": "v5e-4"},
)


def main() -> int:
    """Compile each job; the exit status says whether all agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--update", action="store_true", help="store what is compiled, whatever was stored")
    parser.add_argument("--only", default="", help="jobs whose text has this")
    given = parser.parse_args()
    begun, wrong = time.monotonic(), 0
    for job in JOBS:
        if given.only in str(job):
            wrong += _again(job, given.update)
    print(f"{time.monotonic() - begun:,.0f} s, {wrong} differ", file=sys.stderr)
    return 1 if wrong else 0


def _again(job: dict[str, Any], update: bool) -> bool:
    """Whether a job's rehearsal differs from the stored one."""
    made = rehearse.rehearse(**job, use_cache=False, tell=lambda stage: print(f"  {stage}", file=sys.stderr))
    name = cache.key(made.job)
    stored = [rehearse.Report.from_json(path.read_text()) for path in FOLDER.glob(f"{name}-*.json")]
    found = list(differences(stored[0], made)) if stored else []
    print(f"{made}: {'; '.join(found) or ('as stored' if stored else 'new')}", flush=True)
    if update or not stored:
        for path in FOLDER.glob(f"{name}-*"):
            path.unlink()
        cache.keep(name, made, rehearse.schedule(made) if made.compiles else None, into=FOLDER)
    return bool(found)


def differences(stored: rehearse.Report, made: rehearse.Report) -> Iterator[str]:
    """In words, what is further off than it may be."""
    if stored.compiles != made.compiles:
        yield f"compiles: {stored.compiles} -> {made.compiles}"
    pairs = {name: (size, made.bytes_per_chip.get(name, 0), BYTES) for name, size in stored.bytes_per_chip.items()}
    if stored.failure and made.failure:
        pairs["needed"] = (stored.failure.needed, made.failure.needed, BYTES)
    pairs["cycles"] = (stored.cycles, made.cycles, CYCLES)
    for name, (old, new, off) in pairs.items():
        if abs(new - old) > off * max(old, 1):
            yield f"{name}: {old:,} -> {new:,}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["LABKIT_CACHE"] = scratch
        sys.exit(main())
