"""Judge a module by simulation: `judge` and its verdicts."""

from __future__ import annotations

import math
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import LabError
from labkit.evaluate.sandbox import Finished, Limits, Sandbox
from labkit.evaluate.static import inspect
from labkit.evaluate.testbench import SECRET, Bench, prepare
from labkit.records import Record

if TYPE_CHECKING:
    from labkit.data.problems import Problem

VERDICTS = (
    "pass",
    "no_module",
    "syntax_error",
    "port_mismatch",
    "compile_error",
    "wrong_result",
    "timeout",
    "refused",
)
_SYNTAX = re.compile(
    r"syntax error|I give up|unmatched character|[Mm]alformed|Invalid (?:module|character)|expects? a "
)
_PORTS = re.compile(
    r"is not a port of|too many|Wrong number of ports|cannot be driven by|Output port expression must|"
    r"Inout port expression must|not enough ports|missing port|Unable to assign to unresolved wires"
)

_OWN_INPUT = "the candidate drives one of its own inputs, which the testbench and the reference see too"


@dataclass(frozen=True)
class Verdict(Record):
    """What became of one candidate.

    `verdict` is one of `VERDICTS`, `detail` says why in one line, `seconds` is the time that the judge took.
    """

    verdict: str
    detail: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether it is a pass."""
        return self.verdict == "pass"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.detail} ({self.seconds:.2f} s)"


def judge(
    candidate: str,
    testbench: str | Problem,
    *,
    reference: str | None = None,
    top: str | None = None,
    timeout: float = 3.0,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """Compile a candidate with a testbench, simulate, and say what came out.

    A pass is believed only from the testbench's own result line, which carries a random word of this run.

    Args:
        candidate: Verilog and nothing else; `extract_module` takes it out of a model's answer.
        testbench: a testbench that prints ``Mismatches: X in Y samples`` once, or a `Problem`, which brings its own.
        reference: modules that the testbench compares with; ignored where the testbench uses none of them.
        top: the module under test; by default the one that the testbench uses and nobody declares.
        timeout: CPU seconds for compiling, and again for simulating; ten times that in wall time.
        sandbox: an open one to run in; by default one is opened for this call (about 40 ms).

    Raises:
        LabError: iverilog is missing, or the testbench is not usable.
    """
    start = time.perf_counter()
    if isinstance(testbench, str):
        bench = prepare(testbench, reference, top)
    else:
        bench = prepare(testbench.testbench, testbench.reference, testbench.top)
    verdict, detail = _judge(candidate, bench, timeout, sandbox)
    return Verdict(verdict, detail, time.perf_counter() - start)


def judge_files(candidate: str | Path, testbench: str | Path, reference: str | Path | None = None) -> Verdict:
    """`judge` for files; bytes that are not UTF-8 become replacement characters.

    Raises:
        LabError: a file cannot be read, and as `judge`.
    """
    return judge(_read(candidate), _read(testbench), reference=None if reference is None else _read(reference))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from error


def _judge(candidate: str, bench: Bench, timeout: float, sandbox: Sandbox | None) -> tuple[str, str]:
    seen = inspect(candidate, bench.surroundings)
    if seen.verdict:
        return seen.verdict, seen.reason
    if bench.top not in seen.modules:
        return "port_mismatch", f"the module is called {', '.join(seen.modules)}; {bench.top} is wanted"
    mismatch = _directions(seen.ports[bench.top], bench.ports)
    if mismatch:  # not only a wrong answer: an output in place of an input could drive the reference's inputs
        return "port_mismatch", mismatch
    nonce = f"n{secrets.token_hex(12)}"
    if sandbox is None:
        with Sandbox() as own:
            finished = _simulate(seen.code, bench, nonce, timeout, own)
    else:
        finished = _simulate(seen.code, bench, nonce, timeout, sandbox)
    if finished.done == 0:
        return _not_compiled(_plain(finished.stderr, nonce), finished, bench.top)
    verdict, detail = _simulated(finished, bench.top, nonce)
    if verdict == "wrong_result" and bench.ports and set(seen.ports[bench.top]) != set(bench.ports):
        return "port_mismatch", f"the ports are {', '.join(seen.ports[bench.top])}; {', '.join(bench.ports)} are wanted"
    return verdict, detail


def _directions(ports: dict[str, str], wanted: dict[str, str]) -> str:
    """The first port whose direction is not the reference's, in words."""
    for name, direction in ports.items():
        if name in wanted and wanted[name] != direction:
            return f"port {name} is an {direction}; an {wanted[name]} is wanted"
    return ""


def _simulate(code: str, bench: Bench, nonce: str, timeout: float, sandbox: Sandbox) -> Finished:
    """The candidate is compiled last: no directive or macro of it can act on the testbench."""
    files = bench.files(nonce) | {"default.v": "`default_nettype wire\n", "candidate.v": code}
    roots = [part for root in bench.roots for part in ("-s", root.replace(SECRET, nonce))]
    compile_ = ["iverilog", "-g2012", "-Wportbind", *roots, "-o", "job.vvp", *files]
    limits = Limits(cpu_seconds=max(1, math.ceil(timeout)), wall_seconds=10 * max(1.0, timeout))
    run = ["vvp", "-n", "job.vvp", "-none"]  # never wait for a person at $stop; write no wave file
    return sandbox.run([compile_, run], files, limits)


def _plain(messages: str, nonce: str) -> str:
    return messages.replace(f"_{nonce}", "").replace(nonce, "")


def _not_compiled(messages: str, finished: Finished, top: str) -> tuple[str, str]:
    if finished.stopped in ("cpu", "wall"):
        return "timeout", "the compiler did not come to an end"
    if "is coerced to inout" in messages:
        return "refused", _OWN_INPUT
    errors = [m for m in messages.splitlines() if "warning:" not in m and "error(s) during" not in m]
    own = [m for m in errors if m.startswith("candidate.v:")]
    if finished.stopped == "output":
        return "compile_error", "the compiler printed without end"
    if any(_SYNTAX.search(m) for m in errors if not m.startswith("candidate.v:")) and not own:
        raise LabError(f"The testbench or its reference does not compile: {errors[0]}")
    if any(_SYNTAX.search(m) for m in own):
        return "syntax_error", own[0]
    _blame_testbench(errors, top)
    for message in errors:
        if _PORTS.search(message) and not message.startswith("candidate.v:"):
            return "port_mismatch", message
    return "compile_error", (own or errors or [f"the compiler ended with status {finished.status}"])[0]


def _blame_testbench(errors: list[str], top: str) -> None:
    for message in errors:
        missing = re.search(r"Unknown module type: (\w+)", message)
        if missing and missing[1] != top and not message.startswith("candidate.v:"):
            raise LabError(
                f"The testbench needs the module {missing[1]}, which nobody declares.",
                hint="Give the file that declares it as the reference.",
            )


def _simulated(finished: Finished, top: str, nonce: str) -> tuple[str, str]:
    messages = _plain(finished.stderr, nonce)
    if "is coerced to inout" in messages:
        return "refused", _OWN_INPUT
    if finished.stopped in ("cpu", "wall"):
        return "timeout", "the simulation did not come to an end"
    if finished.stopped == "output":
        return "wrong_result", "the simulation printed without end"
    results = re.findall(rf"{nonce} \s*Mismatches:\s*(\d+) in\s*(\d+) samples", finished.stdout)
    if not results:
        return "wrong_result", f"the simulation ended without its result (status {finished.status})"
    wrong, samples = (max(int(r[0]) for r in results), max(int(r[1]) for r in results))
    if re.search(r"^TIMEOUT", finished.stdout, re.MULTILINE):
        return "timeout", f"the testbench gave up waiting after {samples} samples"
    if wrong == 0 and samples > 0 and finished.status == 0:
        return "pass", f"0 mismatches in {samples} samples"
    ports = re.search(rf"warning: (Port \d+ \(\w+\) of {re.escape(top)} expects .*)", messages)
    if ports:
        return "port_mismatch", ports[1]
    return "wrong_result", f"{wrong} mismatches in {samples} samples" if samples else "no sample was taken"
