"""A testbench made ready to judge: only it knows this run's secret word, and no name of it can be guessed."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from labkit.errors import LabError
from labkit.evaluate.lexing import (
    LexError,
    Token,
    declared_modules,
    instances,
    port_directions,
    rename,
    scope_names,
    tokens,
    without_comments,
)
from labkit.evaluate.static import Surroundings

SECRET = "labkit_secret_of_this_run"  # stands for the nonce until `Bench.files` puts one in
_RESULT = re.compile(r'"(\s*Mismatches:\s*%)')


@dataclass(frozen=True)
class Bench:
    """A testbench with its reference, if it uses one.

    `top` is the module that it wants, `roots` are its own top modules, `ports` the directions of the reference's ports
    (empty without a reference).
    """

    testbench: str
    reference: str
    top: str
    roots: tuple[str, ...]
    surroundings: Surroundings
    ports: dict[str, str] = field(default_factory=dict)

    def files(self, nonce: str) -> dict[str, str]:
        """File name to text, in the order of compilation, with the nonce in the result line and in all names."""
        texts = {"testbench.v": self.testbench} | ({"reference.v": self.reference} if self.reference else {})
        return {name: text.replace(SECRET, nonce) for name, text in texts.items()}


@functools.lru_cache(maxsize=1024)
def prepare(testbench: str, reference: str | None = None, top: str | None = None) -> Bench:
    """Read a testbench that prints ``Mismatches: X in Y samples`` once, as labkit's and verilog-eval's do.

    Names of its modules, instances, tasks and blocks get the nonce as a suffix, so that a candidate cannot call a task
    of it, disable a block or reach a signal, which Verilog allows by upward name lookup.

    Raises:
        LabError: there is no such line, or the module under test cannot be told.
    """
    code = _tokens(testbench, "testbench")
    inner, own = {module for module, _ in instances(code)}, declared_modules(code)
    wanted = inner - set(own)
    top = top or _top(wanted, reference)
    reference_code = _tokens(reference or "", "reference")
    used = (wanted - {top}) & set(declared_modules(reference_code))
    ports = port_directions(reference_code, next(iter(sorted(used)), top))
    if not used:
        reference, reference_code = "", []
    text = without_comments(testbench)
    if not _RESULT.search(text):
        raise LabError(
            "The testbench prints no line `Mismatches: X in Y samples`.",
            hint='End it with $display("Mismatches: %0d in %0d samples", errors, samples);',
        )
    names, reference_names = scope_names(code) - {top}, scope_names(reference_code) - {top}
    shared = names | (set(declared_modules(reference_code)) - {top})
    return Bench(
        testbench=_RESULT.sub(rf'"{SECRET} \1', rename(text, shared, f"_{SECRET}")),
        reference=rename(without_comments(reference or ""), reference_names, f"_{SECRET}"),
        top=top,
        roots=tuple(f"{name}_{SECRET}" for name in own if name not in inner),
        surroundings=Surroundings(
            frozenset(names | reference_names), any(t.text == "inout" for t in code + reference_code)
        ),
        ports=ports,
    )


def _tokens(text: str, what: str) -> list[Token]:
    try:
        return tokens(text)
    except LexError as error:
        raise LabError(f"The {what} is not Verilog: {error}.") from error


def _top(wanted: set[str], reference: str | None) -> str:
    """The one module that the testbench instantiates and nobody declares."""
    left = wanted - set(declared_modules(_tokens(reference or "", "reference"))) or wanted
    if len(left) != 1:
        raise LabError(
            f"The testbench uses {', '.join(sorted(left)) or 'no module'}: it is not clear which one is judged.",
            hint="Name it (top=...), or give the reference that declares the others.",
        )
    return next(iter(left))
