"""How many mutants of its reference a testbench notices."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.data.problems import Problem
from labkit.data.verilog.mutants import mutants
from labkit.errors import LabError
from labkit.records import Record

SECONDS = 2  # of processor time; a mutant that runs longer is killed
LONG_SECONDS = 60  # for the long comparison with the reference
PHASES, CYCLES = 120, 200  # of the long random comparison; each phase has its own share of ones for every input


@dataclass(frozen=True)
class MutationScore(Record):
    """What a testbench did to mutants: `score` is killed / (mutants - equivalent); invalid ones were not counted.

    A mutant is equivalent if a long random comparison with the reference found no difference. `survivors` are the
    mutants that differ from the reference and still passed.
    """

    mutants: int
    killed: int
    equivalent: int
    invalid: int
    score: float
    survivors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.killed} of {self.mutants - self.equivalent} mutants killed ({self.equivalent} equivalent)"


def total(scores: Iterable[MutationScore]) -> MutationScore:
    """Several scores as one, each mutant with equal weight."""
    scores = list(scores)
    made, killed, alike, bad = (
        sum(getattr(s, k) for s in scores) for k in ("mutants", "killed", "equivalent", "invalid")
    )
    score = killed / (made - alike) if made > alike else 1.0
    return MutationScore(made, killed, alike, bad, score, tuple(text for s in scores for text in s.survivors))


def mutation_score(problem: Problem, limit: int = 20, seed: int = 0) -> MutationScore:
    """Run the problem's testbench on at most `limit` mutants of its reference.

    Needs `iverilog`. Runs what the generator wrote, so it takes no precautions against hostile code.
    """
    made = mutants(problem.reference, limit, seed)
    passed = dict(zip(made, _verdicts(problem, made), strict=True))
    survivors = [mutant for mutant in made if passed[mutant]]
    differing = tuple(mutant for mutant in survivors if not same(problem, mutant, seed))
    valid = [mutant for mutant in made if passed[mutant] is not None]
    equivalent = len(survivors) - len(differing)
    killed = len(valid) - len(survivors)
    score = killed / (len(valid) - equivalent) if len(valid) > equivalent else 1.0
    return MutationScore(len(valid), killed, equivalent, len(made) - len(valid), score, differing)


def _verdicts(problem: Problem, modules: list[str]) -> list[bool | None]:
    """`passes` of each module, in one simulation of them all if that works."""
    copies, benches = [], []
    for k, module in enumerate(modules):
        copies.append(re.sub(rf"\b{problem.top}\b", f"{problem.top}_{k}_", module))
        bench = re.sub(rf"\b{problem.top}\b", f"{problem.top}_{k}_", problem.testbench)
        bench = re.sub(r"\bmodule tb\b", f"module tb_{k}_", bench).replace("$finish;", "")
        benches.append(bench.replace('"Mismatches:', f'"{k} Mismatches:'))
    lines = simulate(*copies, *benches, seconds=2 * SECONDS) or []
    found = {
        int(m[1]): m[2] == "0" for line in lines if (m := re.fullmatch(r"(\d+) Mismatches: (\d+) in \d+ .*", line))
    }
    if len(found) == len(modules):
        return [found[k] for k in range(len(modules))]
    return [passes(module, problem.testbench) for module in modules]  # one does not compile, or never ends


def passes(module: str, testbench: str) -> bool | None:
    """Does the testbench find no mismatch? None if the two do not compile together; too long is a failure."""
    lines = simulate(module, testbench)
    if lines is None:
        return None
    return any(re.fullmatch(r"Mismatches: 0 in [1-9]\d* samples", line) for line in lines)


def simulate(*sources: str, seconds: int = SECONDS) -> list[str] | None:
    """The lines that the Verilog texts print when run together; [] after too long; None if they do not compile.

    `seconds` of processor time are given to each of the two steps. A text whose elaboration takes longer, such as an
    endless generate loop, does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{i}.v" for i in range(len(sources))]
        for name, text in zip(names, sources, strict=True):
            Path(folder, name).write_text(text)
        if _run(["iverilog", "-g2012", "-o", "run", *names], folder, seconds) is None:
            return None
        return (_run(["vvp", "-n", "run"], folder, seconds) or "").splitlines()


def _run(command: list[str], folder: str, seconds: int) -> str | None:
    """What a command prints; None if it fails or takes too long. Processor time, for a busy machine changes nothing."""
    if not shutil.which(command[0]):
        raise LabError(f"{command[0]} is not installed.", hint="Install Icarus Verilog: apt-get install iverilog.")
    limited = ["sh", "-c", f'ulimit -t {seconds}; exec "$@"', "sh", *command]
    done = subprocess.run(limited, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout if done.returncode == 0 else None


def same(problem: Problem, mutant: str, seed: int = 0) -> bool:
    """Do reference and mutant agree in a long random simulation, wherever the reference's outputs are defined?"""
    renamed = re.sub(rf"\bmodule\s+{problem.top}\b", "module reference_", problem.reference, count=1)
    return simulate(renamed, mutant, _comparison(problem, seed), seconds=LONG_SECONDS) == ["same"]


def _comparison(problem: Problem, seed: int) -> str:
    """A testbench that feeds both modules alike and prints `same` or `different`."""
    inputs = [p for p in problem.ports if p.direction == "input"]
    outputs = [p for p in problem.ports if p.direction == "output"]
    found = re.search(r"@\s*\(\s*posedge\s+(\w+)", problem.reference)
    clock = found.group(1) if found else None
    declared = [f"reg [{p.width - 1}:0] {p.name} = 0; integer odds_{p.name} = 8;" for p in inputs]
    declared += [f"wire [{p.width - 1}:0] {p.name}_0, {p.name}_1;" for p in outputs]
    draws = [f"      {p.name} = {_draw(p.name, p.width)};" for p in inputs if p.name != clock]
    phases = [
        f"    case ($random(seed) & 7) 0: odds_{p.name} = 0; 1: odds_{p.name} = 1; 2: odds_{p.name} = 15; "
        f"3: odds_{p.name} = 16; default: odds_{p.name} = 8; endcase"
        for p in inputs
    ]
    ins = ", ".join(f".{p.name}({p.name})" for p in inputs)
    ports = [ins + "".join(f", .{p.name}({p.name}_{k})" for p in outputs) for k in (0, 1)]
    old, new = (", ".join(f"{p.name}_{k}" for p in outputs) for k in (0, 1))
    tick = f"{clock} = 1; #1 compare; {clock} = 0; #1;" if clock else ""
    return (
        "module tb_;\n  integer seed = "
        + str(seed + 1)
        + ", phase_, cycle_, bad_ = 0;\n  "
        + "\n  ".join(declared)
        + f"\n  reference_ one_({ports[0]});\n  {problem.top} two_({ports[1]});\n"
        + f"  task compare; if ({{{old}}} !== ({{{old}}} ^ {{{new}}} ^ {{{old}}})) bad_ = 1; endtask\n"
        + f"  initial begin\n  for (phase_ = 0; phase_ < {PHASES}; phase_ = phase_ + 1) begin\n"
        + "\n".join(phases)
        + f"\n    for (cycle_ = 0; cycle_ < {CYCLES}; cycle_ = cycle_ + 1) if (!bad_) begin\n"
        + "\n".join(draws)
        + f"\n      #1 compare; {tick}\n    end\n  end\n"
        + '  if (bad_) $display("different"); else $display("same");\n  $finish;\n  end\nendmodule\n'
    )


def _draw(name: str, width: int) -> str:
    """One bit: 1 with the phase's odds of 16. A word: random, or near its ends or a single bit, by the odds."""
    if width == 1:
        return f"($random(seed) & 15) < odds_{name}"
    word = "{" + ", ".join(["$random(seed)"] * ((width + 31) // 32)) + "}"
    shift = f"($random(seed) & 1 ? 0 : {{$random(seed)}} % {width})"
    return f"($random(seed) & 15) < odds_{name} ? ($random(seed) & 3) - 2 : {word} >> {shift}"
