"""Score every family's testbenches by mutation and store the result in data/verilog/mutation_scores.json.

Example: python scripts/score_testbenches.py --problems 4 --mutants 20

Killed and run again it goes on with the families that are missing; `--fresh` starts anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labkit.data.problems import Problem
from labkit.data.verilog.generate import families, problems
from labkit.data.verilog.scoring import MutationScore, mutation_score, total
from labkit.records import write_atomic

OUT = Path(__file__).resolve().parent.parent / "data" / "verilog" / "mutation_scores.json"
FLOOR = 0.95


def drawn(per_family: int, seed: int) -> dict[str, list[Problem]]:
    """So many problems of every family."""
    found: dict[str, list[Problem]] = defaultdict(list)
    for split in ("train", "test_unseen"):
        for problem in problems(split, per_family * len(families(split)), seed):
            found[problem.family].append(problem)
    return dict(sorted(found.items()))


def score_family(batch: list[Problem], mutants: int, seed: int, pool: ThreadPoolExecutor) -> MutationScore:
    """The family's problems together."""
    return total(pool.map(lambda problem: mutation_score(problem, mutants, seed), batch))


def load(path: Path, settings: dict[str, int]) -> dict[str, Any]:
    """The families scored so far with the same settings."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    return stored["families"] if stored["settings"] == settings else {}


def save(path: Path, settings: dict[str, int], scored: dict[str, Any]) -> float:
    """Write the file and return the mean score."""
    mean = sum(row["score"] for row in scored.values()) / len(scored)
    content = {"settings": settings, "mean": round(mean, 4), "families": dict(sorted(scored.items()))}
    write_atomic(path, json.dumps(content, indent=1) + "\n")
    return mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=4, help="problems of each family")
    parser.add_argument("--mutants", type=int, default=20, help="mutants of each problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--fresh", action="store_true", help="forget what is stored")
    parser.add_argument("--show", action="store_true", help="print the mutants that survive")
    parser.add_argument("families", nargs="*", help="only these (scored again)")
    args = parser.parse_args()
    settings = {"problems": args.problems, "mutants": args.mutants, "seed": args.seed}
    scored = {} if args.fresh else load(args.out, settings)
    batches = drawn(args.problems, args.seed)
    todo = args.families or [name for name in batches if name not in scored]
    with ThreadPoolExecutor(args.jobs) as pool:
        for name in todo:
            score = score_family(batches[name], args.mutants, args.seed, pool)
            row = score.to_dict()
            survivors = row.pop("survivors")
            scored[name] = row
            save(args.out, settings, scored)
            print(f"{name}: {score.score:.3f}, {score}", file=sys.stderr, flush=True)
            if args.show:
                print("\n".join(survivors), file=sys.stderr)
    mean = save(args.out, settings, {name: row for name, row in scored.items() if name in batches})
    print(f"mean {mean:.4f} over {len(scored)} families, at least {FLOOR} wanted", file=sys.stderr)
    return int(mean < FLOOR)


if __name__ == "__main__":
    raise SystemExit(main())
