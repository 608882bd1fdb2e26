"""The judge, its sandbox and static check, extraction, pass@k, controls and generation."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import evaluate, models
from labkit.data.problems import Problem
from labkit.errors import LabError
from labkit.evaluate import controls, passk, sampling, sandbox
from labkit.evaluate.lexing import port_directions, rename, tokens
from labkit.evaluate.static import inspect
from labkit.evaluate.testbench import prepare
from tests.tiny import make_tiny_gemma4

HEADER = "module adder(input [7:0] a, input [7:0] b, output [7:0] y);\n"
RIGHT = HEADER + "  assign y = a + b;\nendmodule\n"

BENCH = """
module tb;
  reg [7:0] a, b;
  wire [7:0] y;
  integer errors = 0, samples = 0, i;
  adder dut(.a(a), .b(b), .y(y));
  task check(input [7:0] want);
    begin samples = samples + 1; if (y !== want) errors = errors + 1; end
  endtask
  task step(input [7:0] p, input [7:0] q, input [7:0] want);
    begin a = p; b = q; #10 check(want); end
  endtask
  initial begin
    for (i = 0; i < 40; i = i + 1) step(i, 3 * i, 4 * i);
    $display("Mismatches: %0d in %0d samples", errors, samples);
    $finish;
  end
endmodule
"""

# A testbench whose inputs are wires: what a candidate drives back, the reference sees too.
WIRED = """
module drive(output reg [7:0] a, output reg [7:0] b);
  initial begin repeat (20) begin #1 a = $random; b = $random; #1; end $finish; end
endmodule
module tb;
  wire [7:0] a, b, want, y;
  integer errors = 0, samples = 0;
  drive stimulus(.a(a), .b(b));
  RefModule good(.a(a), .b(b), .y(want));
  adder dut(.a(a), .b(b), .y(y));
  always @(a, b) begin
    #0.5 samples = samples + 1;
    if (want !== (want ^ y ^ want)) errors = errors + 1;
  end
  final $display("Mismatches: %0d in %0d samples", errors, samples);
endmodule
"""
WIRED_REFERENCE = RIGHT.replace("adder", "RefModule")

# In the form of verilog-eval v2: RefModule beside TopModule, implicit ports, a `final` block with hints.
UP_DOWN = """`timescale 1 ps/1 ps
`define OK 12
module stimulus_gen (
	input clk,
	output logic [3:0] value, output logic up,
	output reg[511:0] wavedrom_title,
	output reg wavedrom_enable
);
	task wavedrom_start(input[511:0] title = "");
	endtask
	initial begin
		value <= 0; up <= 0;
		@(negedge clk) wavedrom_start("count");
		repeat(60) @(posedge clk, negedge clk) {value, up} <= $random;
		#1 $finish;
	end
endmodule
module tb();
	typedef struct packed { int errors; int errortime; int clocks; } stats;
	stats stats1;
	wire[511:0] wavedrom_title;
	wire wavedrom_enable;
	reg clk=0;
	initial forever #5 clk = ~clk;
	logic [3:0] value; logic up;
	logic [3:0] next_ref;
	logic [3:0] next_dut;
	initial begin
		$dumpfile("wave.vcd");
		$dumpvars(1, stim1.clk, tb_mismatch ,value,up,next_ref,next_dut );
	end
	wire tb_match;		// Verification
	wire tb_mismatch = ~tb_match;
	stimulus_gen stim1 ( .clk, .*, .value, .up );
	RefModule good1 ( .value, .up, .next(next_ref) );
	TopModule top_module1 ( .value, .up, .next(next_dut) );
	final begin
		if (stats1.errors) $display("Hint: First mismatch occurred at time %0d.", stats1.errortime);
		$display("Simulation finished at %0d ps", $time);
		$display("Mismatches: %1d in %1d samples", stats1.errors, stats1.clocks);
	end
	assign tb_match = ( { next_ref } === ( { next_ref } ^ { next_dut } ^ { next_ref } ) );
	always @(posedge clk, negedge clk) begin
		stats1.clocks++;
		if (!tb_match) begin
			if (stats1.errors == 0) stats1.errortime = $time;
			stats1.errors++;
		end
	end
	initial begin
		#1000000
		$display("TIMEOUT");
		$finish();
	end
endmodule
"""
UP_DOWN_REFERENCE = """
module RefModule (input [3:0] value, input up, output [3:0] next);
  assign next = up ? value + 4'd1 : value - 4'd1;
endmodule
"""


def test_the_job_sees_the_whole_installation_of_its_programs(tmp_path):
    """Of a Homebrew keg that is the folder of all kegs, where its libraries are; of others what is above bin."""
    keg = tmp_path / "brew" / "Cellar" / "icarus-verilog" / "12" / "bin" / "iverilog"
    plain = tmp_path / "opt" / "iverilog" / "bin" / "iverilog"
    for program in (keg, plain):
        program.parent.mkdir(parents=True)
        program.touch()
    linked = tmp_path / "brew" / "bin" / "iverilog"
    linked.parent.mkdir()
    linked.symlink_to(keg)
    assert sandbox._prefix(str(linked)) == str(tmp_path / "brew")
    assert sandbox._prefix(str(plain)) == str(tmp_path / "opt" / "iverilog")


@pytest.fixture(scope="module")
def box():
    with sandbox.Sandbox() as opened:
        yield opened


@pytest.fixture(scope="module")
def plain_box():
    """A sandbox as on a machine without namespaces."""
    root = os.geteuid() == 0
    with sandbox.Sandbox(sandbox._Mode(drop_user=root, namespace=False, limit_processes=root)) as opened:
        yield opened


def verdict(candidate: str, box, testbench: str = BENCH, **options) -> evaluate.Verdict:
    return evaluate.judge(candidate, testbench, timeout=1, sandbox=box, **options)


def test_judging_needs_no_jax():
    script = "import sys; from labkit.evaluate import judge, protections; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# Verdicts


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (RIGHT, "pass"),
        (RIGHT.replace("+", "-"), "wrong_result"),
        ("", "no_module"),
        ("There is no module here.", "no_module"),
        ("// module adder(input a);\n", "no_module"),
        (RIGHT.replace("a + b;", "a + ;"), "syntax_error"),
        (RIGHT.replace("endmodule", ""), "syntax_error"),
        (RIGHT + "/* no end", "syntax_error"),
        (RIGHT.replace("adder", "add"), "port_mismatch"),
        (RIGHT.replace("[7:0] a,", "[7:0] x,").replace("a +", "x +"), "port_mismatch"),
        (RIGHT.replace("[7:0] a,", "[2:0] a,"), "port_mismatch"),
        (RIGHT.replace("input [7:0] b", "output [7:0] b").replace("a + b", "a"), "port_mismatch"),
        (RIGHT.replace("a + b", "a + c"), "compile_error"),
        (HEADER + "  foo f(a, b, y);\nendmodule", "compile_error"),
        (HEADER + "  always @* y = a + b;\nendmodule", "compile_error"),
        (HEADER + "  integer i; initial for (i = 0; i >= 0; i = 0) ;\n  assign y = a + b;\nendmodule", "timeout"),
        (HEADER + "  reg r = 0; always @(r) r <= ~r; initial r = 1;\n  assign y = a + b;\nendmodule", "timeout"),
        (HEADER + "  genvar i; generate for (i = 0; i < 99999999; i = i + 1) begin : g wire w; end endgenerate\n"
         "endmodule", "timeout"),
    ],
)  # fmt: skip
def test_verdicts(body, expected, box):
    found = verdict(body, box)
    assert found.verdict == expected, found


def test_detail_names_what_is_wrong(box):
    assert "candidate.v:2" in verdict(RIGHT.replace("a + b;", "a + ;"), box).detail
    assert "add" in verdict(RIGHT.replace("adder", "add"), box).detail
    assert verdict(RIGHT.replace("+", "-"), box).detail == "39 mismatches in 40 samples"


def test_verilog_eval_testbench(box):
    right = UP_DOWN_REFERENCE.replace("RefModule", "TopModule")
    assert verdict(right, box, UP_DOWN, reference=UP_DOWN_REFERENCE).passed
    wrong = verdict(right.replace("- 4'd1", "- 4'd2"), box, UP_DOWN, reference=UP_DOWN_REFERENCE)
    assert wrong.verdict == "wrong_result" and "mismatches in 62 samples" in wrong.detail
    narrow = verdict(right.replace("output [3:0]", "output"), box, UP_DOWN, reference=UP_DOWN_REFERENCE)
    assert narrow.verdict == "port_mismatch"


def test_a_pass_hangs_on_the_testbench_and_not_on_the_reference_of_the_same_name(box):
    problem = Problem("p", "f", "test_seen", "add", RIGHT, BENCH, "adder")
    assert evaluate.judge(RIGHT, problem, sandbox=box).passed
    assert evaluate.judge(RIGHT.replace("+", "^"), problem, sandbox=box).verdict == "wrong_result"


def test_testbenches_that_cannot_judge(box):
    with pytest.raises(LabError, match="no line `Mismatches"):
        verdict(RIGHT, box, BENCH.replace("Mismatches", "Errors"))
    with pytest.raises(LabError, match="not clear which"):
        verdict(RIGHT, box, WIRED)
    with pytest.raises(LabError, match="needs the module RefModule"):
        verdict(RIGHT, box, WIRED, top="adder")
    with pytest.raises(LabError, match="does not compile"):
        verdict(RIGHT, box, BENCH.replace("wire [7:0] y;", "wire [7:0 y;"))


def test_judge_files(tmp_path):
    (tmp_path / "c.v").write_bytes(RIGHT.encode() + b"// \xff\xfe not UTF-8\n")
    (tmp_path / "tb.v").write_text(BENCH)
    assert evaluate.judge_files(tmp_path / "c.v", tmp_path / "tb.v").passed
    with pytest.raises(LabError, match="cannot be read"):
        evaluate.judge_files(tmp_path / "none.v", tmp_path / "tb.v")


def test_no_iverilog_is_said_with_the_cure(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox._mode.cache_clear()
    with pytest.raises(LabError, match=r"iverilog is not installed.*apt-get install iverilog"):
        evaluate.judge(RIGHT, BENCH)
    sandbox._mode.cache_clear()


# Hostile candidates

FAKE = '$display("Mismatches: 0 in 40 samples");'
REFUSED = {
    "system": 'initial $system("touch /tmp/owned");',
    "fopen": 'integer f; initial f = $fopen("/etc/passwd", "r");',
    "readmemh": 'reg [7:0] m [0:9]; initial $readmemh("/etc/passwd", m);',
    "dumpfile": 'initial $dumpfile("/tmp/x");',
    "finish": f"initial begin {FAKE} $finish; end",
    "stop": "initial $stop;",
    "fatal": "initial $fatal;",
    "include": '`include "/etc/passwd"\n',
    "hierarchy": "always @* tb.errors = 0;",
    "instance": "always @* dut.y = 0;",
    "root": "initial $root.tb.errors = 0;",
    "force": "initial force y = 8'hx;",
    "disable": "always #1 disable step;",
    "escaped": "initial \\$finish ;",
    "escaped hierarchy": "always @* \\tb .errors = 0;",
    "pasted call": "`define F $fin``ish\n  initial `F;",
    "macro argument": "`define F(x) $x\n  initial `F(finish);",
    "macro joins": "`define F ish\n  initial $write`F;",
    "macro dot": "`define T tb\n  initial `T.errors = 0;",
    "lone dollar": "`define F finish\n  initial $`F;",
    "unknown directive": "`line 1 \"x\" 0\n",
    "strength": "assign (supply1, supply0) a = 0;",
    "switch": "supply0 g; tran t(a[0], g);",
    "import": 'import "DPI-C" function int system(string s);',
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_static_check_refuses(name, box):
    candidate = f"{HEADER}  {REFUSED[name]}\n  assign y = a + b;\nendmodule\n"
    found = verdict(candidate, box)
    assert found.verdict == "refused", found
    assert found.detail


def test_null_bytes_and_megabytes_are_refused(box):
    assert verdict(RIGHT + "\0", box).verdict == "refused"
    assert verdict(RIGHT + "// x\n" * 300_000, box).verdict == "refused"


def test_comment_tricks_do_not_hide_code(box):
    hidden = HEADER + "  assign y = a + b; // harmless \r initial $finish;\nendmodule\n"
    assert verdict(hidden, box).verdict == "refused"
    skipped = HEADER + "`ifdef X\n/*\n`endif\n  initial $finish; /* */\n  assign y = a + b;\nendmodule\n"
    assert verdict(skipped, box).verdict != "pass"


HOSTILE = {
    "prints a pass": HEADER + f"  assign y = 0;\n  initial begin {FAKE} #9 {FAKE} end\nendmodule",
    "declares tb": "module tb; initial " + FAKE + " endmodule\n" + HEADER + "  assign y = 0;\nendmodule",
    "calls a task of the testbench": HEADER + "  assign y = 0;\n  initial #1 check(8'hx);\nendmodule",
    "runs a step of the testbench": HEADER + "  assign y = 0;\n  always #1 step(0, 0, 8'hx);\nendmodule",
    "uses the reference": HEADER + "  RefModule r(a, b, y);\nendmodule",
    "prints without end": HEADER + f"  assign y = 0;\n  initial forever {FAKE}\nendmodule",
    "prints without end, right": HEADER + f"  assign y = a + b;\n  initial forever {FAKE}\nendmodule",
    "wants 13 GB": HEADER + "  reg [1023:0] m [0:99999999]; initial m[9] = 1;\n  assign y = a + b;\nendmodule",
    "loops in a function": HEADER
    + "  function [7:0] f(input [7:0] x); begin while (x >= 0) x = x; f = x; end endfunction\n"
    + "  assign y = f(a);\nendmodule",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["box", "plain_box"])
def test_hostile_candidates_never_pass(name, where, request):
    found = verdict(HOSTILE[name], request.getfixturevalue(where))
    assert found.verdict in ("wrong_result", "compile_error", "timeout", "refused"), found


DRIVES_BACK = {
    "assigns its input": HEADER + "  assign a = 8'hx; assign b = 8'hx; assign y = 0;\nendmodule",
    "inout": HEADER.replace("input", "inout") + "  assign a = 8'hx; assign b = 8'hx; assign y = 0;\nendmodule",
    "output for input": HEADER.replace("input", "output")
    + "  assign a = 8'hx; assign b = 8'hx; assign y = 0;\nendmodule",
    "by a submodule": "module h(output [7:0] z); assign z = 8'hx; endmodule\n"
    + HEADER
    + "  h p(a); h q(b); assign y = 0;\nendmodule",
}


@pytest.mark.parametrize("name", DRIVES_BACK)
def test_driving_the_testbench_through_an_input_is_no_pass(name, box):
    assert verdict(RIGHT, box, WIRED, reference=WIRED_REFERENCE).passed
    found = verdict(DRIVES_BACK[name], box, WIRED, reference=WIRED_REFERENCE)
    assert found.verdict in ("refused", "port_mismatch"), found


def test_an_ordinary_module_passes_the_static_check(box):
    candidate = """`timescale 1ns/1ps
`default_nettype none
`define WIDTH 8
`ifndef GUARD
`define GUARD
/* an adder with "everything": module x; $finish */
module half #(parameter W = `WIDTH)(input wire [W-1:0] p, input wire [W-1:0] q, output wire [W-1:0] r);
  assign r = $signed(p) + $signed(q); // sum
endmodule
module adder (input wire [`WIDTH-1:0] a, b, output reg [`WIDTH-1:0] y);
  localparam integer LAST = $clog2(256) - 1;
  wire [7:0] sum;
  reg [7:0] none;
  genvar i;
  half #(.W(8)) stage(.p(a), .q(b), .r(sum));
  generate for (i = 0; i < 2; i = i + 1) begin : lane wire t; assign t = stage.r[i]; end endgenerate
  function automatic [7:0] same(input [7:0] x); same = x; endfunction
  initial begin y = 0; none = 8'b0; end
  always @(*) begin : copy integer k; for (k = 0; k <= LAST; k = k + 1) y[k] = same(sum) >> k; end
endmodule
`endif
`default_nettype wire
"""
    found = verdict(candidate, box)
    assert found.passed, found


def test_a_helper_may_have_a_name_of_the_testbench(box):
    candidate = "module drive(input [7:0] p, output [7:0] q); assign q = p; endmodule\n" + RIGHT.replace(
        "assign y = a + b;", "wire [7:0] w; drive stimulus(a + b, y);"
    )
    assert verdict(candidate, box, WIRED, reference=WIRED_REFERENCE).passed


def test_the_testbench_keeps_its_names_to_itself():
    bench = prepare(BENCH)
    assert bench.top == "adder" and "adder dut_" in bench.testbench and ".a(a)" in bench.testbench
    for name in ("tb", "check", "step", "dut"):
        assert name in bench.surroundings.names
        assert not any(t.text == name for t in tokens(bench.testbench))
    assert bench.files("n1")["testbench.v"] != bench.files("n2")["testbench.v"]


def test_rename_leaves_connections_and_strings_alone():
    text = 'step u(.step(step), .x(step)); step.z = `step; $step(stepped, "step");'
    renamed = 'step_s u(.step(step_s), .x(step_s)); step_s.z = `step; $step(stepped, "step");'
    assert rename(text, {"step"}, "_s") == renamed


def test_port_directions_of_both_styles():
    ansi = "module m #(parameter W = 4)(input clk, input [W-1:0] a, b, output reg q = 0); endmodule"
    old = (
        "module m(clk, a, q); input clk; input [3:0] a; output q; reg q; "
        "function f(input g); f = g; endfunction endmodule"
    )
    assert port_directions(tokens(ansi), "m") == {"clk": "input", "a": "input", "b": "input", "q": "output"}
    assert port_directions(tokens(old), "m") == {"clk": "input", "a": "input", "q": "output"}


@given(st.text(alphabet=st.sampled_from(list("module adder();$`\"\\/*\n .tbx'h1{}[]@#")), max_size=80))
@settings(max_examples=200, deadline=None)
def test_the_check_survives_any_text(text):
    assert inspect("module " + text).verdict in ("", "no_module", "syntax_error", "refused")


# The sandbox itself

SMALL = sandbox.Limits(cpu_seconds=1, wall_seconds=2, file_bytes=2**20, disk_bytes=2**22, output_bytes=10_000)


def shell(box, script: str, limits: sandbox.Limits = SMALL) -> sandbox.Finished:
    return box.run([["sh", "-c", script]], {"given.txt": "hello\n"}, limits)


@pytest.mark.parametrize("where", ["box", "plain_box"])
def test_limits_hold(where, request):
    opened = request.getfixturevalue(where)
    assert shell(opened, "cat given.txt; pwd >&2").stdout == "hello\n"
    assert shell(opened, "while :; do :; done").stopped == "cpu"
    assert shell(opened, "sleep 60").stopped == "wall"
    assert shell(opened, "yes").stopped == "output"
    assert len(shell(opened, "yes").stdout) <= 10_000
    big = shell(opened, "head -c 50000000 /usr/bin/env /usr/bin/* > big; ls -l big | awk '{print $5}'")
    assert int(big.stdout or 0) <= 2**20
    memory = shell(opened, "awk 'BEGIN { t = \"x\"; while (1) t = t t }'")
    assert memory.status != 0


@pytest.mark.parametrize("where", ["box", "plain_box"])
def test_nothing_outlives_a_job(where, request):
    opened = request.getfixturevalue(where)
    begun = time.monotonic()
    mark = f"9{os.getpid() % 10_000}.{random.randrange(10**6)}"
    shell(opened, f"sleep {mark} & setsid sleep {mark} & (setsid sleep {mark} &) ; echo x")
    shell(opened, "f() { f | f & }; f; sleep 60")
    assert time.monotonic() - begun < 10
    assert mark not in subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout


def test_a_namespace_hides_files_and_network(box):
    if not evaluate.protections().namespace:
        pytest.skip("no namespaces on this machine")
    assert shell(box, "cat /etc/passwd").stdout == ""
    assert shell(box, "echo /home/* /root/* /etc/*; ls /tmp").stdout.split() == [
        "/home/*",
        "/root/*",
        "/etc/*",
        "given.txt",
    ]
    assert shell(box, "touch /usr/labkit_was_here").status != 0
    assert shell(box, "cat < /dev/tcp/1.1.1.1/80").status != 0
    assert "lo" not in shell(box, "cat /proc/net/dev").stdout
    full = shell(
        box, "for i in 1 2 3 4 5 6 7 8 9; do head -c 900000 /usr/bin/env /usr/bin/* > f$i; done; cat f* | wc -c"
    )
    assert int(full.stdout) <= 2**22


def test_no_environment_goes_in(box, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    with sandbox.Sandbox() as fresh:
        assert "secret" not in shell(fresh, "env").stdout


def test_file_names_are_plain_and_programs_exist(box):
    with pytest.raises(LabError, match="cannot hold a file"):
        box.run([["true"]], {"../x": ""})
    with pytest.raises(LabError, match="no-such-program is not installed"):
        box.run([["no-such-program"]], {})


def test_closing_kills_the_job_that_runs():
    opened = sandbox.Sandbox()
    wait = sandbox.Limits(cpu_seconds=30, wall_seconds=60)
    ended: list[float] = []

    def hang() -> None:
        with pytest.raises(LabError):
            shell(opened, "sleep 61.5", wait)
            shell(opened, "true")
        ended.append(time.monotonic())

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    opened.close()
    thread.join(5)
    assert ended and ended[0] - begun < 3
    assert "sleep 61.5" not in subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_parent_leaves_no_job(how):
    script = (
        "import signal\n"
        "from labkit.evaluate import sandbox\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored\n"
        "def work(box, item):\n"
        "    return box.run([['sleep', '62.5']], {}, sandbox.Limits(cpu_seconds=30, wall_seconds=60))\n"
        "print('ready', flush=True)\n"
        "sandbox.in_parallel(work, [1, 2, 3], workers=2)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        time.sleep(1.5)
        parent.send_signal(how)
        parent.wait(10)
    time.sleep(0.3)
    assert "sleep 62.5" not in subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout


def test_in_parallel_keeps_the_order_and_hands_errors_on(box):
    def work(opened, item):
        time.sleep(0.02 * (item % 3))
        if item == 99:
            raise LabError("item 99")
        return item, shell(opened, f"echo {item}").stdout.strip()

    items = list(range(7))
    seen: list[int] = []
    found = sandbox.in_parallel(work, items, workers=3, progress=lambda: seen.append(1))
    assert found == [(i, str(i)) for i in items] and len(seen) == 7
    with pytest.raises(LabError, match="item 99"):
        sandbox.in_parallel(work, [1, 99, 2], workers=2)


def test_protections_are_said():
    found = evaluate.protections()
    assert found.static_check and {"cpu", "wall", "file_size"} <= set(found.limits)
    assert json.loads(found.to_json())["namespace"] == list(found.namespace)
    assert "static_check" in str(found)


# Extraction

FENCED = f"Here it is:\n\n```verilog\n{RIGHT}```\nIt adds."


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (RIGHT, "a + b"),
        (FENCED, "a + b"),
        (f"<think>module adder(input x); endmodule</think>\n{RIGHT}", "a + b"),
        (f"I think so. </think> <answer>\n{FENCED}\n</answer>", "a + b"),
        (f"<answer>module x(input q); endmodule</answer><answer>{RIGHT}</answer>", "a + b"),
        (f"The module adder (see below) is simple.\n// module adder(input z);\n{RIGHT}", "a + b"),
        (f"/* module adder(input z);\nendmodule */ {RIGHT}", ""),
        (f"```\nmodule other(input q); endmodule\n```\nbetter:\n```\n{RIGHT}```\n", "a + b"),
        (f"```verilog\n{RIGHT}", "a + b"),
        (RIGHT.replace("endmodule", ""), "a + b"),
        (RIGHT + "\nmodule tb; initial $finish; endmodule\n", "a + b"),
        (f"module first(input q); endmodule\n{RIGHT}", "a + b"),
    ],
)
def test_generous_extraction(text, has):
    found = evaluate.extract_module(text, "adder")
    assert has in found
    assert "input z" not in found and "$finish" not in found and "```" not in found and "input q" not in found


def test_extraction_keeps_what_the_module_needs():
    text = "`timescale 1ns/1ps\ntypedef enum {A, B} s_t;\nmodule h(input p); endmodule\nmodule g(input p); endmodule\n"
    found = evaluate.extract_module(text + "module adder(input a); h one(a); endmodule", "adder")
    assert "timescale" in found and "typedef" in found and "module h" in found and "module g" not in found


def test_strict_extraction():
    assert evaluate.extract_module(RIGHT, "adder", "strict") and evaluate.extract_module(
        f"```verilog\n{RIGHT}```\n", "adder", "strict"
    )
    for text in (FENCED, "Sure: " + RIGHT, RIGHT.replace("endmodule", ""), RIGHT + "\nThat is it.", ""):
        assert evaluate.extract_module(text, "adder", "strict") == ""


PIECES = st.sampled_from(
    "module a(input x);|endmodule|\n|```|```verilog\n|// |/*|*/|<think>|</think>|text |<answer>|</answer>|"
    '`define X 1\n|b u(x);|module b(|);|"|typedef enum {A} t;| '.split("|")
)


@given(st.lists(PIECES, max_size=25))
@settings(max_examples=400, deadline=None)
def test_extraction_is_idempotent(pieces):
    once = evaluate.extract_module("".join(pieces), "a")
    assert evaluate.extract_module(once, "a") == once


# pass@k


@given(st.integers(1, 30), st.data())
def test_pass_at_k_is_the_closed_form(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert passk.pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)


def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass():
    samples = [True, True, False, False, False]
    draws = list(itertools.combinations(samples, 3))
    assert passk.pass_at_k(5, 2, 3) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(LabError, match="at least k samples"):
        passk.pass_at_k(2, 1, 3)


def test_wilson_against_published_values():
    # Newcombe 1998, Statistics in Medicine 17, table I (method 3).
    for passes, trials, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]:
        assert passk.wilson(passes / trials, trials) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 400), st.data())
def test_wilson_holds_its_share(trials, data):
    share = data.draw(st.integers(0, trials)) / trials
    low, high = passk.wilson(share, trials)
    assert 0 <= low <= share <= high <= 1 and low < high


def test_bootstrap_is_seeded_and_near_the_normal_interval():
    values = [1.0] * 120 + [0.0] * 80
    low, high = passk.bootstrap(values, seed=1)
    assert (low, high) == passk.bootstrap(values, seed=1)
    assert low == pytest.approx(0.6 - 1.96 * math.sqrt(0.24 / 200), abs=0.015)
    assert high == pytest.approx(0.6 + 1.96 * math.sqrt(0.24 / 200), abs=0.015)


def test_macro_interval_equals_wilson_for_equal_families():
    by_family = {name: [1.0, 0.0, 0.0, 0.0, 1.0] for name in "abcd"}
    assert passk.macro_interval(by_family) == pytest.approx(passk.wilson(0.4, 20))


# Controls


def made(count: int) -> list[Problem]:
    return [Problem(f"p{i}", "f", "test_seen", f"spec {i}", RIGHT, BENCH, "adder") for i in range(count)]


@given(st.integers(2, 30), st.integers(0, 1000))
@settings(max_examples=30)
def test_shuffled_leaves_no_problem_its_own_specification(count, seed):
    before = made(count)
    after = controls.shuffled(before, seed)
    assert sorted(p.spec for p in after) == sorted(p.spec for p in before)
    assert all(a.spec != b.spec and a.id == b.id for a, b in zip(after, before, strict=True))


# Generation


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "sliding_window": 16}
    return models.load(make_tiny_gemma4(folder, std=0.3, **sizes))


def prompts(count: int) -> list[str]:
    rng = random.Random(0)
    return ["<bos>" + "".join(rng.choice("abc xyz") for _ in range(rng.randrange(3, 60))) for _ in range(count)]


def test_greedy_generation_equals_full_forward_passes(tiny, monkeypatch):
    texts = prompts(3)
    monkeypatch.setattr(sampling, "_ROUND", 7)  # two rounds
    found = evaluate.generate(tiny.model, tiny.tokenizer, texts, max_new_tokens=20)
    stops = sampling.stop_ids(tiny.tokenizer)
    graph, state = nnx.split(tiny.model)
    length = 80
    positions, causal = jnp.arange(length)[None], jnp.tril(jnp.ones((1, length, length), bool))
    forward = jax.jit(lambda tokens: nnx.merge(graph, state)(tokens, positions, None, causal)[0])
    for text, completion in zip(texts, found, strict=True):
        ids = list(tiny.tokenizer.encode(text, add_special_tokens=False))
        start = len(ids)
        while len(ids) < start + 20 and (len(ids) == start or ids[-1] not in stops):
            padded = jnp.asarray([ids + [0] * (length - len(ids))])  # a causal model does not see what follows
            ids.append(int(jnp.argmax(forward(padded)[0, len(ids) - 1])))
        ended = ids[-1] in stops
        assert completion.text == tiny.tokenizer.decode(ids[start:], skip_special_tokens=True)
        assert completion.stopped == ended


DRAWN = {"max_new_tokens": 10, "temperature": 1.0, "top_k": 50, "top_p": 0.95}


def test_order_and_batches_do_not_matter(tiny):
    texts = prompts(7)
    first = evaluate.generate(tiny.model, tiny.tokenizer, texts, **DRAWN)
    other = evaluate.generate(tiny.model, tiny.tokenizer, texts[::-1], batch_size=2, **DRAWN)[::-1]
    assert [c.text for c in first] == [c.text for c in other]


def test_repeated_prompts_are_independent_samples_and_seeds_matter(tiny):
    def drawn(seed: int) -> list[str]:
        found = evaluate.generate(tiny.model, tiny.tokenizer, prompts(1) * 6, seed=seed, **DRAWN)
        return [c.text for c in found]

    assert len(set(drawn(0))) > 1
    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_another_sampler_of_the_same_shape_compiles_nothing(tiny):
    first = evaluate.generate(tiny.model, tiny.tokenizer, prompts(7), **DRAWN)
    compiled = sampling._prefill._cache_size(), sampling._decode._cache_size()
    state = jax.tree.map(lambda x: x * 1.5, nnx.state(tiny.model))
    other = nnx.merge(nnx.graphdef(tiny.model), state)
    assert evaluate.generate(other, tiny.tokenizer, prompts(7), **DRAWN) != first
    assert (sampling._prefill._cache_size(), sampling._decode._cache_size()) == compiled


def test_draws_follow_the_filtered_distribution():
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))
    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(4000))
    rows = jnp.tile(logits, (4000, 1))

    def shares(drawing: sampling.Drawing) -> np.ndarray:
        drawn = jnp.argmax(sampling._perturbed(rows, keys, jnp.full(4000, 5), drawing), axis=-1)
        return np.bincount(np.asarray(drawn), minlength=4) / 4000

    assert shares(sampling.Drawing(1.0)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)
    assert shares(sampling.Drawing(1.0, top_k=2)) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert shares(sampling.Drawing(1.0, top_p=0.7)) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    half = np.sqrt([0.5, 0.3, 0.15, 0.05])
    assert shares(sampling.Drawing(2.0)) == pytest.approx(half / half.sum(), abs=0.03)


def test_what_does_not_fit_the_window_is_said(tiny):
    with pytest.raises(LabError, match="do not fit the window of 1024"):
        evaluate.generate(tiny.model, tiny.tokenizer, ["a"], max_new_tokens=1024)
    with pytest.raises(LabError, match="empty"):
        evaluate.generate(tiny.model, tiny.tokenizer, [""], max_new_tokens=4)


def test_controls_prompts(tiny):
    problem = made(1)[0]
    assert controls.question(problem, tiny.tokenizer).text.endswith("spec 0<turn|>\n<|turn>model\n")
    header = controls.complete_header(problem, tiny.tokenizer)
    assert header.opening == HEADER and header.text.endswith(HEADER)
    shots = controls.few_shot(made(3))(problem, tiny.tokenizer).text
    assert shots.count("endmodule") == 3 and shots.endswith("// spec 0\n")
    assert controls.few_shot(made(3), chat=True)(problem, tiny.tokenizer).text.count("<|turn>model") == 4
