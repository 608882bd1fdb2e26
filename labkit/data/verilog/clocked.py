"""What the clocked families share: reset and enable styles, the always block around a next state, and its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from labkit.data.verilog.design import Inputs, Model, Names, Params, Port, clock, inp, reset


def control(rng: Random, enable: bool = True) -> dict[str, Any]:
    """Parameters of reset (`style`, `low`) and, if the family takes one, of an enable (`en`)."""
    drawn = {"style": rng.choice(("sync", "async")), "low": rng.randint(0, 1)}
    return drawn | {"en": rng.randint(0, 1)} if enable else drawn


def control_ports(p: Params) -> list[Port]:
    """Clock, then reset and enable where the design has them."""
    ports = [clock()]
    if p.style != "none":
        ports.append(reset(bool(p.low)))
    if getattr(p, "en", 0):
        ports.append(inp("en", 1, "en", "enable", "ce", "clk_en"))
    return ports


def block(statements: str, indent: int, gated: bool = False) -> str:
    """Statements, one a line, as the branch of an `if` that is indented so far.

    Several are wrapped in begin and end. A case or, unless the branch is `gated`, a chain of if and else stays bare.
    """
    lines = statements.strip().split("\n")
    pad = " " * indent
    chain = not gated and all(line.startswith("else") for line in lines[1:])
    if len(lines) == 1 or chain or lines[0].startswith("case"):
        return f"\n{pad}".join([f" {lines[0]}", *lines[1:]])
    inner = "\n".join(f"{pad}  {line}" for line in lines)
    return f" begin\n{inner}\n{pad}end"


def always(p: Params, n: Names, on_reset: str, on_clock: str) -> str:
    """The clocked always block: `on_reset` under reset, else `on_clock`, under the enable if there is one."""
    gate = f"if ({n.en})" if getattr(p, "en", 0) else ""
    if p.style == "none":
        head = f"  always @(posedge {n.clk}) {gate}".rstrip()
        return head + block(on_clock, 2, bool(gate)) + "\n"
    edge = f" or {'negedge' if p.low else 'posedge'} {n.rst}" if p.style == "async" else ""
    then = f"    else {gate}".rstrip() + block(on_clock, 4, bool(gate))
    return f"  always @(posedge {n.clk}{edge})\n    if ({'!' if p.low else ''}{n.rst}){block(on_reset, 4)}\n{then}\n"


class Clocked(Model):
    """A golden model from three functions of a state.

    `start` is the state after reset, `step(state, x)` the next state, `show(state, x)` the outputs. Before the first
    reset the state is None and nothing is compared; a design without reset begins in `start`, whose values may be
    None.
    """

    def __init__(
        self,
        p: Params,
        start: Any,
        step: Callable[[Any, Inputs], Any],
        show: Callable[[Any, Inputs], Mapping[str, int | None]],
    ) -> None:
        self.p, self.start, self.step, self.show = p, start, step, show
        self.state = start if p.style == "none" else None
        self.known = p.style == "none"

    def _in_reset(self, x: Inputs) -> bool:
        return self.p.style != "none" and x.rst != self.p.low

    def settle(self, x: Inputs) -> None:
        """An asynchronous reset acts at once."""
        if self.p.style == "async" and self._in_reset(x):
            self.state, self.known = self.start, True

    def edge(self, x: Inputs) -> None:
        """Reset, or the next state if enabled."""
        if self._in_reset(x):
            self.state, self.known = self.start, True
        elif self.known and getattr(x, "en", 1):
            self.state = self.step(self.state, x)

    def outputs(self, x: Inputs) -> Mapping[str, int | None]:
        """The outputs, undefined before the first reset."""
        return self.show(self.state, x) if self.known else _Undefined()


class _Undefined(dict[str, None]):
    def __missing__(self, role: str) -> None:
        return None


def tell(p: Params, n: Names, on_reset: str, *behaviours: str) -> list[str]:
    """Complete descriptions: each behaviour with a wording of enable and reset.

    `on_reset` is a clause such as ``"q becomes 0"``. Which of the common wordings goes with which behaviour depends on
    the names, so that training sees them mixed; the last behaviour, held out, has held-out ones of its own.
    """
    mix = sum(map(len, vars(n).values()))
    told = []
    for k, behaviour in enumerate(behaviours[:-1]):
        enable, on = _enable(p, n, (k + mix // 4) % 4), _reset(p, n, on_reset, (k + mix) % 4)
        parts = [on, behaviour, enable] if k % 2 else [behaviour, enable, on]
        told.append(" ".join(part for part in parts if part))
    held = [behaviours[-1], _enable(p, n, -1), _reset(p, n, on_reset, -1)]
    return [*told, " ".join(part for part in held if part)]


def _enable(p: Params, n: Names, k: int) -> str:
    if not getattr(p, "en", 0):
        return ""
    return (
        f"Nothing changes while {n.en} is low.",
        f"{n.en} is an enable: when it is 0 the state holds.",
        f"Updates happen only when {n.en} is high.",
        f"With {n.en} at 0 everything keeps its value.",
        f"The enable {n.en} must be high for any change.",
    )[k]


def _reset(p: Params, n: Names, effect: str, k: int) -> str:
    if p.style == "none":
        return "There is no reset."
    level, kind = ("low" if p.low else "high"), {"sync": "synchronous", "async": "asynchronous"}[p.style]
    at_once = p.style == "async"
    return (
        f"{kind.capitalize()} reset: when {n.rst} is {level}, {effect}.",
        f"{n.rst} is {'an' if at_once else 'a'} {kind}, active-{level} reset: {effect}.",
        f"A {level} {n.rst} resets {'at once, without waiting for the clock' if at_once else 'at the clock edge'}: "
        f"{effect}.",
        f"The reset {n.rst} is active {level} and {kind}, and comes before all else: {effect}.",
        f"When {n.rst} goes {level}, {effect}, {'immediately' if at_once else 'on the clock edge'} ({kind}).",
    )[k]
