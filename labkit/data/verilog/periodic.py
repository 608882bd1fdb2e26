"""Clocked families that run through a fixed cycle: rings, Gray and decimal counters, dividers, PWM."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.counters import TERMINAL, around, run
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register


@register
class RingCounter(Family):
    """A ring or Johnson counter."""

    name = "ring_counter"
    modules = ("ring_counter", "ring", "one_hot_ring", "phase_gen", "rotator", "token_ring")

    johnson = False

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(3, 10), "left": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), out("q", p.width, "q", "ring_out", "phase", "taps_out", "onehot", reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        w, top = p.width, p.width - 1
        way, enter, leave = ("left", 0, top) if p.left else ("right", top, 0)
        return tell(
            p,
            n,
            f"{n.q} becomes 1",
            f"A {w}-bit ring counter: on each rising edge of {n.clk}, {n.q} rotates {way} by one bit, so that bit "
            f"{leave} goes to bit {enter}.",
            f"{n.q} has {w} bits with a single 1 that moves one place {way} as {n.clk} rises; from bit {leave} it "
            f"returns to bit {enter}.",
            f"Rotate the {w}-bit {n.q} one place to the {way} at every rising edge of {n.clk}. Bit {leave} comes back "
            f"as bit {enter}.",
            f"One-hot ring of {w} bits on {n.q}: with the rising edge of {n.clk} all bits move {way}, {n.q}[{leave}] "
            f"into {n.q}[{enter}].",
            f"The single set bit of the {w}-bit {n.q} circulates towards the {way}, one place each rising {n.clk}, "
            f"and wraps from {leave} to {enter}.",
        )

    def body(self, p: Params, n: Names) -> str:
        top = p.width - 1
        inverted = "~" if self.johnson else ""
        left, right = f"{{{n.q}[{top - 1}:0], {inverted}{n.q}[{top}]}}", f"{{{inverted}{n.q}[0], {n.q}[{top}:1]}}"
        return always(p, n, f"{n.q} <= {0 if self.johnson else 1};", f"{n.q} <= {left if p.left else right};")

    def model(self, p: Params) -> Model:
        def step(s: str, x: Inputs) -> str:  # most significant bit first
            flip = str.maketrans("01", "10") if self.johnson else {}
            return s[1:] + s[0].translate(flip) if p.left else s[-1].translate(flip) + s[:-1]

        start = "0" * (p.width - 1) + ("0" if self.johnson else "1")
        return Clocked(p, start, step, lambda s, x: {"q": int(s, 2)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return run((2 if self.johnson else 1) * p.width + 2)


@register
class JohnsonCounter(RingCounter):
    """A twisted ring."""

    name = "johnson_counter"
    modules = ("johnson_counter", "johnson", "twisted_ring", "moebius", "switch_tail", "jc_count")

    johnson = True

    def says(self, p: Params, n: Names) -> list[str]:
        w, top = p.width, p.width - 1
        way, enter, leave = ("left", 0, top) if p.left else ("right", top, 0)
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"A {w}-bit Johnson counter: on each rising edge of {n.clk}, {n.q} shifts {way} by one and bit {enter} "
            f"takes the inverse of the old bit {leave}.",
            f"{n.q} has {w} bits. As {n.clk} rises they move one place {way}; the inverted bit {leave} enters at bit "
            f"{enter}.",
            f"Twisted ring on the {w}-bit {n.q}: at every rising edge of {n.clk} shift {way} and feed NOT "
            f"{n.q}[{leave}] into {n.q}[{enter}].",
            f"Shift {n.q} ({w} bits) to the {way} with the rising edge of {n.clk}; the new bit {enter} is the "
            f"complement of bit {leave}.",
            f"A ring of {w} bits on {n.q} with a twist: it moves {way} each rising {n.clk}, and bit {leave} comes "
            f"back inverted at bit {enter}.",
        )


@register
class GrayCounter(Family):
    """A counter whose output is in Gray code."""

    name = "gray_counter"
    modules = ("gray_counter", "gray_count", "gray_seq", "gray_gen", "reflected_counter", "gray_step")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(3, 8), "down": rng.randint(0, 1), "both": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        gray = out("g", p.width, "gray", "gray_out", "g", "code", "gray_q")
        binary = [out("b", p.width, "binary", "bin_out", "b", "plain", "bin_q", reg=True)] if p.both else []
        return [*control_ports(p), gray, *binary]

    def says(self, p: Params, n: Names) -> list[str]:
        w, way = p.width, "down" if p.down else "up"
        more = f" The binary count itself is put out as {n.b}." if p.both else ""
        return tell(
            p,
            n,
            "the binary count becomes 0",
            f"A {w}-bit binary counter inside counts {way} on each rising edge of {n.clk}, and {n.g} is its Gray code "
            f"(count XOR count shifted right by one).{more}",
            f"{n.g} shows a {w}-bit count in Gray code. The count goes {way} by one as {n.clk} rises and wraps; Gray "
            f"is cnt ^ (cnt >> 1).{more}",
            f"Count {way} in Gray code: a hidden {w}-bit counter changes by 1 at every rising edge of {n.clk}, and "
            f"{n.g} = counter XOR (counter >> 1).{more}",
            f"The {w}-bit output {n.g} steps {way} through the Gray sequence, one code each rising edge of {n.clk}: "
            f"convert a binary counter with c ^ (c >> 1).{more}",
            f"Gray counter of {w} bits, {way}wards. With each rising {n.clk} the binary count moves by one, and {n.g} "
            f"is its reflected Gray code.{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        b = n.b if p.both else "cnt"
        text = "" if p.both else f"  reg [{p.width - 1}:0] cnt;\n"
        text += f"  assign {n.g} = {b} ^ ({b} >> 1);\n"
        return text + always(p, n, f"{b} <= 0;", f"{b} <= {b} {'-' if p.down else '+'} 1;")

    def model(self, p: Params) -> Model:
        codes = ["0", "1"]
        while len(codes) < 2**p.width:  # reflect and prefix
            codes = ["0" + c for c in codes] + ["1" + c for c in reversed(codes)]
        by = -1 if p.down else 1
        return Clocked(p, 0, lambda s, x: (s + by) % len(codes), lambda s, x: {"g": int(codes[s], 2), "b": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return around(p.width)


@register
class BcdCounter(Family):
    """One or two decimal digits."""

    name = "bcd_counter"
    modules = ("bcd_counter", "decade_counter", "decimal_counter", "digit_counter", "bcd_count", "decade")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"tens": rng.randint(0, 1), "down": rng.randint(0, 1), "tc": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        tens = [out("tens", 4, "tens", "digit1", "hi_digit", "ten_digit", reg=True)] if p.tens else []
        tc = [out("tc", 1, *TERMINAL)] if p.tc else []
        return [
            *control_ports(p),
            out("ones", 4, "ones", "digit0", "lo_digit", "unit_digit", "bcd", reg=True),
            *tens,
            *tc,
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        way, last, first = ("down", 0, 9) if p.down else ("up", 9, 0)
        both = (
            f" Each time it goes from {last} to {first}, the second digit {n.tens} moves {way} by one likewise."
            if p.tens
            else ""
        )
        seen = f"{n.ones} and {n.tens} are both {last}" if p.tens else f"{n.ones} is {last}"
        more = f"{both} {n.tc} is 1 while {seen}." if p.tc else both
        clear = f"{n.ones} and {n.tens} become 0" if p.tens else f"{n.ones} becomes 0"
        return tell(
            p,
            n,
            clear,
            f"The decimal digit {n.ones} counts {way} on each rising edge of {n.clk}, and {last} is followed by "
            f"{first}.{more}",
            f"A BCD counter: as {n.clk} rises, {n.ones} moves {way} by one within 0 to 9; after {last} comes "
            f"{first}.{more}",
            f"At every rising edge of {n.clk} the BCD digit {n.ones} goes {way} one, from {last} on to {first}.{more}",
            f"{n.ones} holds a digit 0..9. It counts {way} with the rising edge of {n.clk} and jumps from {last} to "
            f"{first}.{more}",
            f"Count {way} in decimal with each rising {n.clk}: {n.ones} never leaves 0..9 and wraps from {last} to "
            f"{first}.{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        last, first, sign = (0, 9, "-") if p.down else (9, 0, "+")

        def move(digit: str) -> str:
            return f"{digit} <= {digit} == {last} ? {first} : {digit} {sign} 1;"

        clear, on_clock, seen = f"{n.ones} <= 0;", move(n.ones), f"{n.ones} == {last}"
        if p.tens:
            clear += f"\n{n.tens} <= 0;"
            on_clock += f"\nif ({n.ones} == {last}) {move(n.tens)}"
            seen += f" && {n.tens} == {last}"
        text = f"  assign {n.tc} = {seen};\n" if p.tc else ""
        return text + always(p, n, clear, on_clock)

    def model(self, p: Params) -> Model:
        size = 100 if p.tens else 10
        by, end = (-1, 0) if p.down else (1, size - 1)

        def show(s: int, x: Inputs) -> dict[str, int]:
            return {"ones": s % 10, "tens": s // 10, "tc": int(s == end)}

        return Clocked(p, 0, lambda s, x: (s + by) % size, show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return run(102 if p.tens else 13)


@register
class TickDivider(Family):
    """A pulse or a level change every N cycles."""

    name = "tick_divider"
    modules = ("tick_divider", "clk_divider", "tick_gen", "prescaler", "rate_gen", "baud_tick")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"n": rng.randint(3, 20), "square": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), out("y", 1, "tick", "pulse", "div_out", "strobe", "slow", reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        last = p.n - 1
        does = f"{n.y} inverts" if p.square else f"{n.y} becomes 1"
        rest = f"Otherwise {n.y} keeps its value." if p.square else f"Otherwise {n.y} becomes 0."
        return tell(
            p,
            n,
            f"the counter and {n.y} become 0",
            f"An internal counter runs from 0 to {last} on rising edges of {n.clk} and then starts again at 0. At the "
            f"edge where it is {last}, {does}. {rest}",
            f"Once every {p.n} rising edges of {n.clk}, {does}: an inner counter goes 0 to {last}, and acts when it "
            f"is {last} before the edge. {rest}",
            f"Divide {n.clk} by {p.n}: count its rising edges from 0 to {last}, and with the edge that takes the "
            f"count from {last} back to 0, {does}. {rest}",
            f"Every {p.n}th rising edge of {n.clk}, {does}. A hidden counter modulo {p.n} starts from 0; the event "
            f"comes as it leaves {last}. {rest}",
            f"A counter modulo {p.n} advances as {n.clk} rises. When it wraps from {last} to 0, {does}. {rest}",
        )

    def body(self, p: Params, n: Names) -> str:
        last = p.n - 1
        y = f"if (cnt == {last}) {n.y} <= ~{n.y};" if p.square else f"{n.y} <= cnt == {last};"
        count = f"cnt <= cnt == {last} ? 0 : cnt + 1;"
        return f"  reg [{last.bit_length() - 1}:0] cnt;\n" + always(p, n, f"cnt <= 0;\n{n.y} <= 0;", f"{count}\n{y}")

    def model(self, p: Params) -> Model:
        def show(edges: int, x: Inputs) -> dict[str, int]:
            return {"y": edges // p.n % 2 if p.square else int(edges > 0 and edges % p.n == 0)}

        return Clocked(p, 0, lambda edges, x: edges + 1, show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return run(2 * p.n + 2)


@register
class Pwm(Family):
    """Pulse-width modulation by a free-running counter."""

    name = "pwm"
    modules = ("pwm", "pwm_gen", "pulse_width", "dimmer", "duty_gen", "motor_pwm")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(2, 6), "reg": rng.randint(0, 1), "upto": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        y = out("y", 1, "pwm_out", "y", "wave", "drive", "led", reg=bool(p.reg))
        return [*control_ports(p), inp("duty", p.width, "duty", "level", "on_time", "width_in", "compare"), y]

    def says(self, p: Params, n: Names) -> list[str]:
        w, test = p.width, "at most" if p.upto else "less than"
        when = (
            f"{n.y} is a register: it stores at each edge whether the count before that edge is {test} {n.duty}."
            if p.reg
            else f"{n.y} is 1, without delay, while the count is {test} {n.duty}."
        )
        return tell(
            p,
            n,
            f"the count{f' and {n.y} become' if p.reg else ' becomes'} 0",
            f"A free-running {w}-bit count goes up by one on each rising edge of {n.clk}. {when}",
            f"PWM: a hidden {w}-bit counter advances as {n.clk} rises and wraps. {when}",
            f"Count up through {w} bits with the rising edge of {n.clk}, round and round. {when}",
            f"The duty input is {n.duty}. An inner {w}-bit counter grows by 1 with every rising {n.clk}. {when}",
            f"A pulse of adjustable width: the inner counter ({w} bits) steps up at rising edges of {n.clk}. {when}",
        )

    def body(self, p: Params, n: Names) -> str:
        test = f"cnt {'<=' if p.upto else '<'} {n.duty}"
        declared = f"  reg [{p.width - 1}:0] cnt;\n"
        if p.reg:
            return declared + always(p, n, f"cnt <= 0;\n{n.y} <= 0;", f"cnt <= cnt + 1;\n{n.y} <= {test};")
        return declared + f"  assign {n.y} = {test};\n" + always(p, n, "cnt <= 0;", "cnt <= cnt + 1;")

    def model(self, p: Params) -> Model:
        def high(count: int, x: Inputs) -> int:
            return int(count % 2**p.width < x.duty + p.upto)

        if p.reg:
            return Clocked(p, (0, 0), lambda s, x: (s[0] + 1, high(s[0], x)), lambda s, x: {"y": s[1]})
        return Clocked(p, 0, lambda s, x: s + 1, lambda s, x: {"y": high(s, x)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        count = 2**p.width
        return [{"en": 1, "duty": (i + rng.choice((-1, 0, 0, 1))) % count} for i in range(count + 3)]
