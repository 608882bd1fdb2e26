"""Clocked families: registers and shift registers."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Model, Names, Params, Port, inp, out, register

DATA = ("d", "din", "data_in", "data", "d_in", "value")
STATE = ("q", "dout", "data_out", "q_out", "reg_out", "state")
SERIAL = ("sin", "serial_in", "si", "bit_in", "s_in")


def _maybe(word: bool | int, text: str, otherwise: str = "") -> str:
    return text if word else otherwise


@register
class DRegister(Family):
    """A D register with its reset and enable styles."""

    name = "d_register"
    modules = ("d_register", "dff", "data_reg", "reg_unit", "flop", "store", "holding_reg")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((1, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16))
        drawn = control(rng) | {"width": width, "value": rng.choice((0, 0, 1, (1 << width) - 1, rng.getrandbits(width)))}
        return drawn if rng.random() < 0.85 else drawn | {"style": "none", "low": 0, "value": 0}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), inp("d", p.width, *DATA), out("q", p.width, *STATE, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        size = f"{p.width}-bit" if p.width > 1 else "one-bit"
        return tell(
            p,
            n,
            f"{n.q} becomes {p.value}",
            f"It is a {size} D register. On every rising edge of {n.clk}, {n.q} takes the value of {n.d}.",
            f"At the rising edge of {n.clk} the {size} input {n.d} is stored, and {n.q} shows the stored value until the next edge.",
            f"Copy {n.d} into the {size} register {n.q} whenever {n.clk} rises.",
            f"The output {n.q} is a flip-flop of {p.width} bit{_maybe(p.width > 1, 's')} clocked by the rising edge of {n.clk}; its next value is {n.d}.",
            f"A {size} storage element: {n.q} follows {n.d} with each positive edge of {n.clk} and holds in between.",
        )

    def body(self, p: Params, n: Names) -> str:
        return always(p, n, f"{n.q} <= {p.value};", f"{n.q} <= {n.d};")

    def model(self, p: Params) -> Model:
        start = None if p.style == "none" else p.value
        return Clocked(p, start, lambda s, x: x.d, lambda s, x: {"q": s})
