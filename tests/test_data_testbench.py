"""Testbenches: they pass the reference, catch mutants and x, and print one line."""

from __future__ import annotations

import json
import re
import shutil
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.data.problems import Problem
from labkit.data.verilog import generate
from labkit.data.verilog.design import FAMILIES
from labkit.data.verilog.mutants import mutants
from labkit.data.verilog.scoring import mutation_score, passes, same, simulate, total
from labkit.data.verilog.testbench import build
from labkit.errors import LabError
from labkit.resources import data_dir

pytestmark = pytest.mark.skipif(shutil.which("iverilog") is None, reason="needs iverilog: apt-get install iverilog")

CLOCKED = sorted(
    name for name, family in FAMILIES.items() if type(family).__module__.rpartition(".")[2] in (
        "sequential", "counters", "periodic", "detectors", "fsm", "timing", "streams", "memories"
    )
)  # fmt: skip
LINE = '    $display("Mismatches: %0d in %0d samples", errors, samples);'


@pytest.fixture(scope="module")
def some() -> dict[str, list[Problem]]:
    """Two problems of every family."""
    found: dict[str, list[Problem]] = {}
    for split in ("train", "test_unseen"):
        for problem in generate.problems(split, 2 * len(generate.families(split)), seed=7):
            found.setdefault(problem.family, []).append(problem)
    return found


def test_there_are_enough_clocked_families() -> None:
    assert len(CLOCKED) >= 24


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_reference_passes_its_own_testbench(name: str, some: dict[str, list[Problem]]) -> None:
    for problem in some[name]:
        assert simulate(problem.reference, problem.testbench)[-1].startswith("Mismatches: 0 in "), problem.reference


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_testbench_prints_one_plain_line(name: str, some: dict[str, list[Problem]]) -> None:
    for problem in some[name]:
        assert problem.testbench.count("$display") == 1
        assert LINE in problem.testbench.splitlines()
        assert not re.search(r"\$(write|monitor|strobe|f\w*open|system|error|fatal)", problem.testbench)
        assert "module tb;" in problem.testbench


def test_the_number_of_samples_is_the_number_of_comparisons(some: dict[str, list[Problem]]) -> None:
    for name in ("counter", "mux2"):
        problem = some[name][0]
        steps = len(re.findall(r"^    step\(", problem.testbench, re.M))
        each = 2 if name == "counter" else 1
        assert simulate(problem.reference, problem.testbench) == [f"Mismatches: 0 in {each * steps} samples"]


def test_the_same_seed_gives_the_same_text() -> None:
    assert generate.problems("train", 5, seed=3) == generate.problems("train", 5, seed=3)


@pytest.mark.parametrize("name", ["d_register", "fifo_level", "register_file", "timer"])
def test_x_and_z_outputs_are_mismatches(name: str, some: dict[str, list[Problem]]) -> None:
    problem = some[name][0]
    head = problem.reference[: problem.reference.index(");\n") + 3].replace("output reg", "output")
    for value in ("'bx", "'bz"):
        drives = "".join(f"  assign {p.name} = {value};\n" for p in problem.ports if p.direction == "output")
        assert passes(f"{head}{drives}endmodule\n", problem.testbench) is False


def test_an_empty_module_fails_and_a_wrong_port_does_not_compile(some: dict[str, list[Problem]]) -> None:
    problem = some["counter"][0]
    head = problem.reference[: problem.reference.index(");\n") + 3]
    assert passes(head + "endmodule\n", problem.testbench) is False
    name = problem.ports[-1].name
    assert passes(re.sub(rf"\b{name}\b", "other_name", problem.reference), problem.testbench) is None


RESETS = {
    "sync": "always @(posedge clk) if (rst) q <= 0; else q <= d;",
    "async": "always @(posedge clk or posedge rst) if (rst) q <= 0; else q <= d;",
    "low": "always @(posedge clk) if (!rst) q <= 0; else q <= d;",
    "async low": "always @(posedge clk or negedge rst) if (!rst) q <= 0; else q <= d;",
    "falling clock": "always @(negedge clk) if (rst) q <= 0; else q <= d;",
    "latch": "always @* if (rst) q = 0; else if (clk) q = d;",
    "none": "always @(posedge clk) q <= d;",
}


@pytest.mark.parametrize(("style", "low", "right"), [("sync", 0, "sync"), ("async", 0, "async"), ("sync", 1, "low"),
                                                     ("async", 1, "async low")])  # fmt: skip
def test_every_reset_style_is_told_from_the_others(style: str, low: int, right: str) -> None:
    family = FAMILIES["d_register"]
    p = SimpleNamespace(style=style, low=low, en=0, width=4, value=0)
    n = SimpleNamespace(clk="clk", rst="rst", d="d", q="q")
    bench = build(family, p, n, "dff", family.ports(p), seed=1)
    head = "module dff(input clk, input rst, input [3:0] d, output reg [3:0] q);\n"
    verdicts = {name: passes(f"{head}{body}\nendmodule\n", bench) for name, body in RESETS.items()}
    assert verdicts == {name: name == right for name in RESETS}


@pytest.mark.parametrize("name", CLOCKED[::3])
def test_a_testbench_kills_mutants(name: str, some: dict[str, list[Problem]]) -> None:
    score = mutation_score(some[name][0], limit=8, seed=2)
    assert score.mutants >= 4
    assert score.score >= 0.85, score.survivors


def test_a_testbench_without_comparisons_kills_nothing(some: dict[str, list[Problem]]) -> None:
    problem = some["counter"][0]
    blind = problem.testbench.replace("errors = errors + 1", "errors = 0")
    score = mutation_score(Problem.from_dict(problem.to_dict() | {"testbench": blind}), limit=8)
    assert score.killed == 0 and len(score.survivors) == score.mutants - score.equivalent > 0


def test_equivalent_mutants_are_left_out(some: dict[str, list[Problem]]) -> None:
    problem = some["counter"][0]
    assert same(problem, problem.reference.replace("endmodule", "  wire spare = 0;\nendmodule"))
    assert not same(problem, problem.reference.replace("posedge", "negedge", 1))


def test_scores_add_up() -> None:
    one = total([])
    assert one.score == 1.0 and one.mutants == 0


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 10_000), st.integers(1, 60))
def test_mutants_are_different_single_changes(name: str, seed: int, limit: int) -> None:
    try:
        reference = generate.draft(FAMILIES[name], "train", Random(seed)).reference
    except LabError:
        reference = generate.draft(FAMILIES[name], "test_unseen", Random(seed)).reference
    found = mutants(reference, limit, seed)
    assert found == mutants(reference, limit, seed)
    assert len(found) <= limit and len(set(found)) == len(found) and reference not in found


def test_most_mutants_compile(some: dict[str, list[Problem]]) -> None:
    tried = [
        (problem, m) for problem in list(v[0] for v in some.values())[::4] for m in mutants(problem.reference, 5, 1)
    ]
    bad = [m for problem, m in tried if passes(m, problem.testbench) is None]
    assert len(bad) <= len(tried) // 50, bad


def test_the_stored_scores_hold() -> None:
    stored = json.loads((data_dir() / "verilog" / "mutation_scores.json").read_text())
    assert set(stored["families"]) == set(FAMILIES)
    assert stored["mean"] >= 0.95
    assert all(row["score"] >= 0.85 and row["mutants"] >= 20 for row in stored["families"].values())


def test_what_never_ends_is_stopped() -> None:
    endless = "module m; genvar i; for (i = 0; i < 4; i = i - 1) wire w; endmodule\n"
    assert simulate(endless, seconds=1) is None
    assert simulate("module m; initial while (1) ; endmodule\n", seconds=1) == []
