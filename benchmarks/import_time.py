"""How long `import labkit` and `labkit --help` take, in new processes: at most 0.5 s and 1 s.

python benchmarks/import_time.py [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {
    "python -c pass": ["-c", "pass"],
    "import labkit": ["-c", "import labkit, sys; sys.exit('jax' in sys.modules)"],
    "labkit --help": ["-c", "from labkit.cli import main; main(['--help'])"],
}


def seconds(arguments: list[str]) -> float:
    """Wall seconds of one new process; a failure ends the benchmark."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """Time all cases in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(args.rounds):
        for name, arguments in CASES.items():
            times[name].append(seconds(arguments))
    medians = {name: statistics.median(values) for name, values in times.items()}
    if args.json:
        print(json.dumps({"median_seconds": medians}))
        return
    for name, median in medians.items():
        print(f"{name:16} {median:.3f} s")


if __name__ == "__main__":
    main()
