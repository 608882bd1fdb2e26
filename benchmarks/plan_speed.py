"""How long a plan takes: the whole command from a cold process, a warm call, the explorer's callback.

The limits are 1 s, 30 ms and 100 ms. Wall time and this process' own CPU time are both shown: other programs on the
machine lengthen the first alone.

python benchmarks/plan_speed.py [--model gemma4-31b] [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")

from labkit import hardware, mesh, widgets

SLICES = ("v5p-8", "v5e-16", "v6e-8", "v5e-256", "v5p-512")
COMMAND = "from labkit.cli import main; main('plan --model {} --slice {} --seq 4096 --batch 256 --json'.split())"


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    wall, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - own


def command(model: str, slice_name: str) -> tuple[float, float]:
    """Wall and CPU seconds of the command in a new process."""
    before, wall = os.times(), time.perf_counter()
    code = COMMAND.format(model, slice_name)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    own = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - wall, own


def warm(model: str, slice_name: str) -> tuple[float, float]:
    """Wall and CPU seconds of a plan whose model and slice are known already."""
    return timed(lambda: mesh.plan(model, slice_name, seq=4096, batch=256))


def main() -> None:
    """Time every case in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gemma4-31b")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    panels = {name: widgets.mesh_explorer(model=args.model, slice_name=name, batch=256) for name in SLICES}
    ranks = itertools.cycle((8, 32, 64, 128))
    cases: dict[str, Callable[[str], tuple[float, float]]] = {
        "command, cold": lambda name: command(args.model, name),
        "plan, warm": lambda name: warm(args.model, name),
        "explorer's callback": lambda name: timed(lambda: panels[name].set(rank=next(ranks))),
    }
    rows = []
    for name, (case, call) in itertools.product(SLICES, cases.items()):
        times = [call(name) for _ in range(args.rounds)]
        wall, own = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append({"case": case, "slice": name, "wall_seconds": wall, "cpu_seconds": own})
    if args.json:
        print(json.dumps({"model": args.model, "rows": rows}))
        return
    for row in rows:
        chips, times = hardware.slice(row["slice"]).chips, (row["wall_seconds"], row["cpu_seconds"])
        print(f"{row['case']:20} {row['slice']:8} {chips:4} chips {times[0]:7.3f} s, CPU {times[1]:.3f} s")


if __name__ == "__main__":
    main()
