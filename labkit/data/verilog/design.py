"""What a family of Verilog problems is made of: ports, parameters, wordings, a reference body and a golden model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

Names = SimpleNamespace  # role -> the identifier drawn for it: n.a, n.sum, n.clk
Params = SimpleNamespace  # parameter -> value: p.width, p.signed
Inputs = SimpleNamespace  # role -> the unsigned integer driven on it


@dataclass(frozen=True)
class Port:
    """One port of a module.

    `role` is how the family's code calls it; `pool` are the identifiers that it may get in a problem.
    """

    role: str
    direction: Literal["input", "output"]
    width: int
    pool: tuple[str, ...]
    kind: Literal["data", "clock", "reset"] = "data"
    reg: bool = False  # an output that is assigned in an always block
    active_low: bool = False  # of a reset


def inp(role: str, width: int, *pool: str) -> Port:
    """A data input."""
    return Port(role, "input", width, pool or (role,))


def out(role: str, width: int, *pool: str, reg: bool = False) -> Port:
    """A data output; `reg` if an always block assigns it."""
    return Port(role, "output", width, pool or (role,), reg=reg)


def clock() -> Port:
    """The clock input, role `clk`."""
    return Port("clk", "input", 1, ("clk", "clock", "ck"), kind="clock")


def reset(active_low: bool = False) -> Port:
    """The reset input, role `rst`."""
    pool = ("rst_n", "reset_n", "aresetn", "nrst") if active_low else ("rst", "reset", "clear", "srst")
    return Port("rst", "input", 1, pool, kind="reset", active_low=active_low)


class Model:
    """The golden model of one design in Python, written independently of the Verilog.

    The testbench drives new inputs while the clock is low, calls `settle` and compares `outputs`; then comes the
    rising edge: `edge`, and `outputs` are compared again. A combinational design overrides only `outputs`.
    Values are unsigned integers, already within the port's width (the testbench masks what `outputs` returns).
    """

    def settle(self, x: Inputs) -> None:
        """Asynchronous effects of new inputs on the state, such as an asynchronous reset."""

    def edge(self, x: Inputs) -> None:
        """The rising clock edge: compute the next state."""

    def outputs(self, x: Inputs) -> Mapping[str, int | None]:
        """Role of each output -> its value now; None where it is not defined yet and must not be compared."""
        raise RuntimeError(f"{type(self).__name__} has no outputs")


class Combinational(Model):
    """A model with no state: `function` maps inputs to outputs."""

    def __init__(self, function: Callable[[Inputs], Mapping[str, int]]) -> None:
        self._function = function

    def outputs(self, x: Inputs) -> Mapping[str, int]:
        """The function's values."""
        return self._function(x)


class Family:
    """A parametrised family of designs; one subclass a family, registered with `@register`.

    `says` gives at least five complete descriptions of the behaviour, clearly different in wording. Each names every
    port that matters by its identifier and every parameter that matters; the last one is held out of training.
    The opening sentence with the module's name and the sentence that lists the ports are added by the generator.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]  # at least six module names to draw from

    def sample(self, rng: Random) -> dict[str, Any]:
        """Draw parameters; at least a few dozen different settings wherever the family has them."""
        raise RuntimeError(f"{type(self).__name__} has no sample")

    def ports(self, p: Params) -> list[Port]:
        """The ports in the order of the header: clock and reset first."""
        raise RuntimeError(f"{type(self).__name__} has no ports")

    def says(self, p: Params, n: Names) -> list[str]:
        """Descriptions of the behaviour, the last one held out."""
        raise RuntimeError(f"{type(self).__name__} has no says")

    def body(self, p: Params, n: Names) -> str:
        """The Verilog between header and `endmodule`, indented by two spaces; short, one idiomatic way."""
        raise RuntimeError(f"{type(self).__name__} has no body")

    def model(self, p: Params) -> Model:
        """The golden model in its power-up state."""
        raise RuntimeError(f"{type(self).__name__} has no model")

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        """Directed input vectors (role -> value, missing roles are random) driven before the random ones."""
        return []


FAMILIES: dict[str, Family] = {}


def register(cls: type[Family]) -> type[Family]:
    """Class decorator: add one instance of the family to `FAMILIES`."""
    FAMILIES[cls.name] = cls()
    return cls


def width(bits: int) -> str:
    """The range of a declaration: ``"[7:0] "``, or nothing for one bit."""
    return f"[{bits - 1}:0] " if bits > 1 else ""


def header(top: str, ports: list[Port], n: Names) -> str:
    """The module header in ANSI style, one port a line."""
    lines = [f"  {p.direction} {'reg ' if p.reg else ''}{width(p.width)}{getattr(n, p.role)}" for p in ports]
    return f"module {top}(\n" + ",\n".join(lines) + "\n);\n"
