"""Clocked families: registers and shift registers."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register, width

DATA = ("d", "din", "data_in", "data", "d_in", "value")
STATE = ("q", "dout", "data_out", "q_out", "reg_out", "state")
SERIAL = ("sin", "serial_in", "si", "bit_in", "s_in")


@register
class DRegister(Family):
    """A D register with its reset and enable styles."""

    name = "d_register"
    modules = ("d_register", "dff", "data_reg", "reg_unit", "flop", "store", "holding_reg")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((1, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16))
        drawn = control(rng) | {
            "width": width,
            "value": rng.choice((0, 0, 1, (1 << width) - 1, rng.getrandbits(width))),
        }
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
            f"At the rising edge of {n.clk} the {size} input {n.d} is stored; {n.q} shows the stored value until the "
            "next edge.",
            f"Copy {n.d} into the {size} register {n.q} whenever {n.clk} rises.",
            f"The output {n.q} is a {size} flip-flop clocked by the rising edge of {n.clk}; its next value is {n.d}.",
            f"A {size} storage element: {n.q} follows {n.d} with each positive edge of {n.clk} and holds in between.",
        )

    def body(self, p: Params, n: Names) -> str:
        return always(p, n, f"{n.q} <= {p.value};", f"{n.q} <= {n.d};")

    def model(self, p: Params) -> Model:
        start = None if p.style == "none" else p.value
        return Clocked(p, start, lambda s, x: x.d, lambda s, x: {"q": s})


@register
class ToggleFlop(Family):
    """A T flip-flop, with or without the complement as a second output."""

    name = "toggle"
    modules = ("toggle", "t_flip_flop", "tff", "toggle_unit", "flip_bit", "toggler")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng, enable=False) | {"value": rng.randint(0, 1), "both": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        found = [*control_ports(p), inp("t", 1, "t", "toggle_in", "t_in", "flip", "tog"), out("q", 1, *STATE, reg=True)]
        return [*found, out("qn", 1, "qn", "q_n", "q_bar", "inv_out")] if p.both else found

    def says(self, p: Params, n: Names) -> list[str]:
        more = f" {n.qn} is always the inverse of {n.q}." if p.both else ""
        return tell(
            p,
            n,
            f"{n.q} becomes {p.value}",
            f"On each rising edge of {n.clk}, {n.q} inverts if {n.t} is 1 and holds if {n.t} is 0.{more}",
            f"A T flip-flop: with {n.t} high the bit {n.q} flips at every rising edge of {n.clk}, otherwise it "
            f"stays.{more}",
            f"Invert {n.q} at the rising edge of {n.clk} whenever {n.t} is set; keep it when {n.t} is clear.{more}",
            f"{n.t} says whether {n.q} changes to its opposite (1) or stays the same (0) when {n.clk} rises.{more}",
            f"The stored bit {n.q} toggles with every positive edge of {n.clk} at which {n.t} is high.{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        text = f"  assign {n.qn} = ~{n.q};\n" if p.both else ""
        return text + always(p, n, f"{n.q} <= {p.value};", f"if ({n.t}) {n.q} <= ~{n.q};")

    def model(self, p: Params) -> Model:
        return Clocked(p, p.value, lambda s, x: s ^ x.t, lambda s, x: {"q": s, "qn": 1 - s})


@register
class Flag(Family):
    """A flag with set and clear inputs, one of which wins."""

    name = "flag"
    modules = ("flag", "status_flag", "sr_flag", "set_clear", "latch_flag", "sr_register")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"first": rng.choice(("set", "clr"))}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("set", 1, "set", "set_in", "raise_in", "s", "mark"),
            inp("clr", 1, "clr", "clear_in", "drop", "r", "ack"),
            out("q", 1, "flag_out", "q", "status", "pending", "busy", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        win, lose, bit = (n.set, n.clr, 1) if p.first == "set" else (n.clr, n.set, 0)
        return tell(
            p,
            n,
            f"{n.q} is 0",
            f"At each rising edge of {n.clk}, {n.set} makes {n.q} 1 and {n.clr} makes it 0. If both are high, {win} "
            "wins. If neither is high, nothing changes.",
            f"{n.q} goes to {bit} on the rising edge of {n.clk} if {win} is high; else to {1 - bit} if {lose} is "
            "high; else it holds.",
            f"A flag {n.q}, set by {n.set} and cleared by {n.clr} on rising edges of {n.clk}, where {win} has "
            "priority.",
            f"Check {win} first: when it is 1, {n.q} becomes {bit}. Otherwise, when {lose} is 1, {n.q} becomes "
            f"{1 - bit}. This happens at rising edges of {n.clk}.",
            f"The bit {n.q} remembers: {n.set} turns it on, {n.clr} turns it off, with {n.clk} rising, and {win} "
            f"beats {lose} when both are 1.",
        )

    def body(self, p: Params, n: Names) -> str:
        set_, clr = f"({n.set}) {n.q} <= 1;", f"({n.clr}) {n.q} <= 0;"
        one, two = (set_, clr) if p.first == "set" else (clr, set_)
        return always(p, n, f"{n.q} <= 0;", f"if {one}\nelse if {two}")

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            if x.set and x.clr:
                return int(p.first == "set")
            return 1 if x.set else 0 if x.clr else s

        return Clocked(p, 0, step, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        moves = [(1, 0), (1, 1), (0, 1), (1, 1), (1, 0), (0, 0), (0, 1), (0, 0)]
        held = [(1, 0, 1), (0, 1, 0), (1, 1, 0), (0, 0, 1)]  # the enable first: cleared, kept, set, kept
        return [
            *({"en": 1, "set": one, "clr": zero} for one, zero in moves),
            *({"en": en, "set": one, "clr": zero} for en, one, zero in held),
        ]


@register
class ShiftRegister(Family):
    """A shift register with a serial input."""

    name = "shift_register"
    modules = ("shift_register", "shifter", "shift_reg", "serial_shift", "shift_unit", "sreg")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(3, 10), "left": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), inp("sin", 1, *SERIAL), out("q", p.width, *STATE, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        top = p.width - 1
        way, enter, leave = ("left", 0, top) if p.left else ("right", top, 0)
        return tell(
            p,
            n,
            f"all bits of {n.q} become 0",
            f"On each rising edge of {n.clk} the {p.width}-bit register {n.q} shifts {way} by one; {n.sin} enters at "
            f"bit {enter}.",
            f"A {p.width}-bit {way} shift register: at the rising edge of {n.clk}, {n.sin} goes into {n.q}[{enter}] "
            f"and {n.q}[{leave}] is lost.",
            f"Shift {n.q} ({p.width} bits) one place to the {way} whenever {n.clk} rises, and take {n.sin} as the new "
            f"bit {enter}.",
            f"{n.q} holds the last {p.width} samples of {n.sin}, taken on rising edges of {n.clk}, with the newest in "
            f"bit {enter} and the oldest in bit {leave}.",
            f"Serial data {n.sin} moves through the {p.width} bits of {n.q} towards the {way}, one bit a rising edge "
            f"of {n.clk}, starting at bit {enter}.",
        )

    def body(self, p: Params, n: Names) -> str:
        shifted = f"{{{n.q}[{p.width - 2}:0], {n.sin}}}" if p.left else f"{{{n.sin}, {n.q}[{p.width - 1}:1]}}"
        return always(p, n, f"{n.q} <= 0;", f"{n.q} <= {shifted};")

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            return (2 * s + x.sin) % 2**p.width if p.left else s // 2 + x.sin * 2 ** (p.width - 1)

        return Clocked(p, 0, step, lambda s, x: {"q": s})


@register
class ShiftLoad(Family):
    """A shift register with parallel load."""

    name = "shift_load"
    modules = ("shift_load", "piso", "load_shift", "par_shift", "shift_load_reg", "loadable_shift")

    def sample(self, rng: Random) -> dict[str, Any]:
        fill = rng.choice(("zero", "one", "sin"))
        return control(rng, enable=False) | {"width": rng.randint(3, 9), "left": rng.randint(0, 1), "fill": fill}

    def ports(self, p: Params) -> list[Port]:
        serial = [inp("sin", 1, *SERIAL)] if p.fill == "sin" else []
        load = inp("load", 1, "load", "ld", "load_en", "par_load")
        return [*control_ports(p), load, inp("d", p.width, *DATA), *serial, out("q", p.width, *STATE, reg=True)]

    def _fill(self, p: Params, n: Names) -> str:
        return n.sin if p.fill == "sin" else "0" if p.fill == "zero" else "1"

    def says(self, p: Params, n: Names) -> list[str]:
        fill, way, bit = self._fill(p, n), "left" if p.left else "right", 0 if p.left else p.width - 1
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"At each rising edge of {n.clk}, if {n.load} is 1 then {n.q} takes the {p.width}-bit value {n.d}; "
            f"otherwise it shifts {way} by one and {fill} enters at bit {bit}.",
            f"{n.load} high copies {n.d} into {n.q} ({p.width} bits). With {n.load} low, {n.q} moves one bit to the "
            f"{way} on each rising edge of {n.clk}, and bit {bit} becomes {fill}.",
            f"A {p.width}-bit register {n.q} that is loaded from {n.d} when {n.load} is set and else shifts {way}, "
            f"filling bit {bit} with {fill}, with each rising {n.clk}.",
            f"On the rising edge of {n.clk} either load {n.d} in parallel ({n.load} is 1) or shift {n.q} {way} with "
            f"{fill} as the new bit {bit} ({n.load} is 0); it is {p.width} bits wide.",
            f"Parallel load has priority: {n.q} gets {n.d} if {n.load}, else its {p.width} bits shift one place {way} "
            f"and {fill} fills bit {bit}, as {n.clk} rises.",
        )

    def body(self, p: Params, n: Names) -> str:
        fill = n.sin if p.fill == "sin" else f"1'b{self._fill(p, n)}"
        shifted = f"{{{n.q}[{p.width - 2}:0], {fill}}}" if p.left else f"{{{fill}, {n.q}[{p.width - 1}:1]}}"
        return always(p, n, f"{n.q} <= 0;", f"if ({n.load}) {n.q} <= {n.d};\nelse {n.q} <= {shifted};")

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            bit = {"zero": 0, "one": 1}.get(p.fill)
            bit = x.sin if bit is None else bit
            shifted = (2 * s + bit) % 2**p.width if p.left else s // 2 + bit * 2 ** (p.width - 1)
            return x.d if x.load else shifted

        return Clocked(p, 0, step, lambda s, x: {"q": s})


@register
class DelayLine(Family):
    """A word delayed by a few clock cycles."""

    name = "delay_line"
    modules = ("delay_line", "delay", "pipe", "word_delay", "pipeline", "delay_unit")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(1, 12), "stages": rng.randint(2, 4)}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), inp("d", p.width, *DATA), out("q", p.width, *STATE, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        size, k = (f"{p.width}-bit" if p.width > 1 else "one-bit"), p.stages
        cycles = f"{k} enabled clock cycles" if p.en else f"{k} clock cycles"
        return tell(
            p,
            n,
            "all stages become 0",
            f"{n.q} is the {size} input {n.d} delayed by {cycles}: {k} registers in a row, clocked by the rising edge "
            f"of {n.clk}.",
            f"A chain of {k} {size} registers moves one step at each rising edge of {n.clk}; the first takes {n.d} "
            f"and the last is {n.q}.",
            f"Delay {n.d} ({size}) by {k} stages of registers and put it out on {n.q}; all move when {n.clk} rises.",
            f"A pipeline with {k} stages: a {size} value of {n.d} sampled at a rising edge of {n.clk} reaches {n.q} "
            f"after {cycles}.",
            f"The {size} output {n.q} repeats {n.d} with {k} registers between them, all on the positive edge of "
            f"{n.clk}.",
        )

    def _stages(self, p: Params, n: Names) -> list[str]:
        return [n.d, *(f"s{i}" for i in range(1, p.stages)), n.q]

    def body(self, p: Params, n: Names) -> str:
        chain = self._stages(p, n)
        moves = "\n".join(f"{b} <= {a};" for a, b in pairwise(chain))
        clear = "\n".join(f"{b} <= 0;" for b in chain[1:])
        return f"  reg {width(p.width)}{', '.join(chain[1:-1])};\n" + always(p, n, clear, moves)

    def model(self, p: Params) -> Model:
        return Clocked(p, [0] * p.stages, lambda s, x: [x.d, *s[:-1]], lambda s, x: {"q": s[-1]})


@register
class Lfsr(Family):
    """A Fibonacci LFSR with two taps."""

    name = "lfsr"
    modules = ("lfsr", "prng", "random_gen", "lfsr_gen", "noise_gen", "prbs")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.randint(3, 9)
        left = rng.randint(0, 1)
        tap = rng.randint(0, width - 2) if left else rng.randint(1, width - 1)
        return control(rng) | {"width": width, "left": left, "tap": tap, "xnor": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), out("q", p.width, "q", "lfsr_out", "rnd", "state", "dout", "code", reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        top = p.width - 1
        way, enter, end = ("left", 0, top) if p.left else ("right", top, 0)
        gate = "XNOR" if p.xnor else "XOR"
        fed = f"the {gate} of {n.q}[{end}] and {n.q}[{p.tap}]"
        return tell(
            p,
            n,
            f"{n.q} becomes {0 if p.xnor else 1}",
            f"A {p.width}-bit LFSR: at each rising edge of {n.clk}, {n.q} shifts {way} by one and bit {enter} becomes "
            f"{fed}.",
            f"{n.q} has {p.width} bits. When {n.clk} rises it moves one place to the {way}; the new bit {enter} is "
            f"{fed}.",
            f"Shift the {p.width}-bit {n.q} {way} on every rising edge of {n.clk}, with {fed} as the bit that enters "
            f"at position {enter}.",
            f"A linear feedback shift register of {p.width} bits on the rising edge of {n.clk}: bits {end} and "
            f"{p.tap} of {n.q} are combined by {gate} and shifted in at bit {enter}, towards the {way}.",
            f"Pseudo-random {n.q}: with {n.clk} rising, its {p.width} bits shift {way}, and the feedback, {fed}, goes "
            f"into bit {enter}.",
        )

    def body(self, p: Params, n: Names) -> str:
        end = p.width - 1 if p.left else 0
        fed = f"{n.q}[{end}] {'~^' if p.xnor else '^'} {n.q}[{p.tap}]"
        shifted = f"{{{n.q}[{p.width - 2}:0], {fed}}}" if p.left else f"{{{fed}, {n.q}[{p.width - 1}:1]}}"
        return always(p, n, f"{n.q} <= {0 if p.xnor else 1};", f"{n.q} <= {shifted};")

    def model(self, p: Params) -> Model:
        def step(s: list[int], x: Inputs) -> list[int]:  # bit 0 first
            new = (s[-1 if p.left else 0] + s[p.tap] + p.xnor) % 2
            return [new, *s[:-1]] if p.left else [*s[1:], new]

        start = [0 if p.xnor else 1] + [0] * (p.width - 1)
        return Clocked(p, start, step, lambda s, x: {"q": sum(b << i for i, b in enumerate(s))})
