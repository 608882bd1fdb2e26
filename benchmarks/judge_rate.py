"""The judge's rate against a bare loop of iverilog and vvp, on the same files and cores, by turns in one run.

The bare side does what a script would: write the files, compile, simulate, look for the result line. Ours also checks
the text, isolates the job and believes only a line with this run's secret. Target: at least 0.6 of the bare rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit.data import verilog
from labkit.data.problems import Problem
from labkit.evaluate import judge
from labkit.evaluate.sandbox import cores, in_parallel, protections
from labkit.evaluate.testbench import prepare


def bare(problems: list[Problem]) -> list[bool]:
    """A pool of threads that runs iverilog and vvp with nothing around them."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda item: _bare_one(Path(folder) / str(item[0]), item[1]), enumerate(problems)))


def _bare_one(folder: Path, problem: Problem) -> bool:
    folder.mkdir()
    (folder / "testbench.v").write_text(problem.testbench)
    (folder / "candidate.v").write_text(problem.reference)
    files = ["-o", "job.vvp", "testbench.v", "candidate.v"]
    subprocess.run(["iverilog", "-g2012", *files], cwd=folder, check=True, capture_output=True)
    ran = subprocess.run(["vvp", "-n", "job.vvp"], cwd=folder, check=True, capture_output=True, text=True)
    return "Mismatches: 0 in" in ran.stdout


def harness(problems: list[Problem]) -> list[bool]:
    """labkit's judge, in parallel, with no testbench read before."""
    prepare.cache_clear()
    return in_parallel(lambda box, problem: judge(problem.reference, problem, sandbox=box).passed, problems)


def rate(side: Callable[[list[Problem]], list[bool]], problems: list[Problem]) -> float:
    """Modules a second, start of the sandboxes included."""
    start = time.perf_counter()
    if not all(side(problems)):
        raise SystemExit(f"{side.__name__}: a reference did not pass its own testbench.")
    return len(problems) / (time.perf_counter() - start)


def measure(count: int, rounds: int) -> dict[str, object]:
    """Rates of both sides, each round one after the other, and the ratio of each round."""
    problems = verilog.problems("test_seen", count, seed=0)
    said = str(protections())  # also finds out what this machine can do, once
    harness(problems[:10]), bare(problems[:10])  # programs and libraries are in memory after that
    pairs = [(rate(harness, problems), rate(bare, problems)) for _ in range(rounds)]
    ratios = [ours / theirs for ours, theirs in pairs]
    return {
        "modules": len(problems),
        "cores": cores(),
        "labkit_per_second": statistics.median(ours for ours, _ in pairs),
        "bare_per_second": statistics.median(theirs for _, theirs in pairs),
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "target": 0.6,
        "protections": said,
    }


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.modules, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['modules']} modules on {found['cores']} cores; {found['protections']}")
    print(f"labkit {found['labkit_per_second']:.1f}/s, bare loop {found['bare_per_second']:.1f}/s")
    print(f"ratio {found['ratio']:.2f} (target at least 0.6); each round: "
          + ", ".join(f"{r:.2f}" for r in found["ratios"]))  # type: ignore[attr-defined]  # fmt: skip


if __name__ == "__main__":
    main()
