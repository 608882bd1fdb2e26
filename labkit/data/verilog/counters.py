"""Clocked families: counters of every kind."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register

COUNT = ("count", "q", "cnt_out", "value", "counter_out", "number")
TERMINAL = ("tc", "carry_out", "last", "wrap", "at_end", "max_tick")


def run(cycles: int, **fixed: int) -> list[dict[str, int]]:
    """So many vectors with the enable set."""
    return [{"en": 1, **fixed}] * cycles


def around(width: int) -> list[dict[str, int]]:
    """Enough enabled cycles to see the top bit, and the wrap where that is short."""
    return run(2**width + 3 if width < 7 else 2 ** (width - 1) + 6)


@register
class Counter(Family):
    """A binary counter, up or down, by any step."""

    name = "counter"
    modules = ("counter", "binary_counter", "bin_count", "up_counter", "count_unit", "tally")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.randint(2, 8)
        by = rng.choice((1, 1, 1, 2, 3, 5))
        drawn = control(rng) | {"width": width, "down": rng.randint(0, 1), "by": by % 2**width or 1}
        return drawn | {"value": rng.choice((0, 0, 1, 2**width - 1, rng.getrandbits(width)))}

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), out("q", p.width, *COUNT, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        way, verb, end = ("down", "falls", "0") if p.down else ("up", "grows", f"{2**p.width - 1}")
        sign = "minus" if p.down else "plus"
        return tell(
            p,
            n,
            f"{n.q} becomes {p.value}",
            f"A {p.width}-bit counter: on each rising edge of {n.clk}, {n.q} counts {way} by {p.by} and wraps around.",
            f"At the rising edge of {n.clk} the {p.width}-bit output {n.q} {verb} by {p.by}, modulo {2**p.width}.",
            f"{n.q} counts {way} in steps of {p.by} with the positive edge of {n.clk}; it has {p.width} bits and "
            f"wraps past {end}.",
            f"Each time {n.clk} rises, {n.q} becomes {n.q} {sign} {p.by}, kept to {p.width} bits.",
            f"Count {way}: the {p.width}-bit register {n.q} changes by {p.by} at every rising {n.clk} and overflows "
            "silently.",
        )

    def body(self, p: Params, n: Names) -> str:
        return always(p, n, f"{n.q} <= {p.value};", f"{n.q} <= {n.q} {'-' if p.down else '+'} {p.by};")

    def model(self, p: Params) -> Model:
        by = -p.by if p.down else p.by
        return Clocked(p, p.value, lambda s, x: (s + by) % 2**p.width, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return around(p.width)


@register
class UpDownCounter(Family):
    """A counter with a direction input."""

    name = "up_down_counter"
    modules = ("updown_counter", "bidir_counter", "up_down", "dir_counter", "ud_count", "two_way_counter")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(2, 8), "one_is_up": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        pool = (
            ("up", "up_ndown", "inc_mode", "count_up")
            if p.one_is_up
            else ("down", "down_nup", "dec_mode", "count_down")
        )
        return [*control_ports(p), inp("way", 1, *pool), out("q", p.width, *COUNT, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        one, zero = ("up", "down") if p.one_is_up else ("down", "up")
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"On each rising edge of {n.clk} the {p.width}-bit counter {n.q} counts {one} by one if {n.way} is 1, and "
            f"{zero} by one if {n.way} is 0. It wraps.",
            f"{n.q} is a {p.width}-bit counter clocked by the rising edge of {n.clk}. {n.way} high means count {one}, "
            f"{n.way} low means count {zero}, modulo {2**p.width}.",
            f"Count {one} when {n.way} is high, else {zero}: {n.q} has {p.width} bits, moves by 1 as {n.clk} rises "
            "and wraps around.",
            f"A two-way counter of {p.width} bits on {n.q}: the direction is {one} for {n.way} = 1 and {zero} for "
            f"{n.way} = 0, one step each rising edge of {n.clk}, with wrap-around.",
            f"The direction of the {p.width}-bit count {n.q} is chosen by {n.way}, {one} when set and {zero} when "
            f"clear; it moves by one with every rising {n.clk} and overflows silently.",
        )

    def body(self, p: Params, n: Names) -> str:
        one, zero = ("+", "-") if p.one_is_up else ("-", "+")
        return always(p, n, f"{n.q} <= 0;", f"{n.q} <= {n.way} ? {n.q} {one} 1 : {n.q} {zero} 1;")

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            return (s + (1 if x.way == p.one_is_up else -1)) % 2**p.width

        return Clocked(p, 0, step, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return run(3, way=1 - p.one_is_up) + run(6, way=p.one_is_up) + run(5, way=1 - p.one_is_up)


@register
class ModuloCounter(Family):
    """A counter modulo N, with or without a terminal count."""

    name = "modulo_counter"
    modules = ("modulo_counter", "mod_counter", "mod_n", "cycle_counter", "wrap_counter", "mod_count")

    def sample(self, rng: Random) -> dict[str, Any]:
        modulus = rng.choice([m for m in range(3, 32) if m & (m - 1)])
        return control(rng) | {"n": modulus, "down": rng.randint(0, 1), "tc": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        found = [*control_ports(p), out("q", (p.n - 1).bit_length(), *COUNT, reg=True)]
        return [*found, out("tc", 1, *TERMINAL)] if p.tc else found

    def says(self, p: Params, n: Names) -> list[str]:
        last = p.n - 1
        first, end = (last, 0) if p.down else (0, last)
        way = "down" if p.down else "up"
        more = f" {n.tc} is 1 while {n.q} is {end}." if p.tc else ""
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"A modulo-{p.n} counter: {n.q} counts {way} on each rising edge of {n.clk}, and {end} is followed by "
            f"{first}.{more}",
            f"{n.q} runs {way} through the {p.n} values 0 to {last}, one step each rising edge of {n.clk}; after "
            f"{end} comes {first}.{more}",
            f"Count {way} by one as {n.clk} rises. When {n.q} is {end} the next value is {first}, so there are {p.n} "
            f"states.{more}",
            f"When {n.clk} rises, {n.q} goes to {first} if it is {end}, else {way} by 1 (modulo {p.n}).{more}",
            f"The count {n.q} moves {way} with the positive edge of {n.clk} and stays within 0..{last}, going from "
            f"{end} to {first}.{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        end, first, sign = (0, p.n - 1, "-") if p.down else (p.n - 1, 0, "+")
        text = f"  assign {n.tc} = {n.q} == {end};\n" if p.tc else ""
        return text + always(p, n, f"{n.q} <= 0;", f"{n.q} <= {n.q} == {end} ? {first} : {n.q} {sign} 1;")

    def model(self, p: Params) -> Model:
        by, end = (-1, 0) if p.down else (1, p.n - 1)
        return Clocked(p, 0, lambda s, x: (s + by) % p.n, lambda s, x: {"q": s, "tc": int(s == end)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return run(p.n + 3)


@register
class LoadCounter(Family):
    """A counter with parallel load."""

    name = "load_counter"
    modules = ("load_counter", "preset_counter", "loadable_counter", "counter_load", "pc_unit", "prog_count")

    def sample(self, rng: Random) -> dict[str, Any]:
        drawn = control(rng, enable=False) | {"width": rng.randint(3, 10), "down": rng.randint(0, 1)}
        return drawn | {"gate": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        gate = [inp("go", 1, "go", "inc", "advance", "tick")] if p.gate else []
        load = [
            inp("load", 1, "load", "ld", "set_value", "preset"),
            inp("d", p.width, "d", "data", "start_value", "din"),
        ]
        return [*control_ports(p), *load, *gate, out("q", p.width, *COUNT, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        way, w = ("down" if p.down else "up"), p.width
        when = f" if {n.go} is 1" if p.gate else ""
        hold = " Otherwise it holds." if p.gate else ""
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"On each rising edge of {n.clk}, {n.load} high loads {n.d} into the {w}-bit counter {n.q}; else {n.q} "
            f"counts {way} by one{when}.{hold}",
            f"{n.q} ({w} bits) takes {n.d} when {n.load} is 1 and otherwise counts {way} by 1{when}, on the rising "
            f"edge of {n.clk}.{hold}",
            f"A {w}-bit {way} counter {n.q} with parallel load: {n.load} has priority and copies {n.d}; else it moves "
            f"one step{when}, as {n.clk} rises.{hold}",
            f"With {n.clk} rising: load {n.d} if {n.load} is set; if not, count {way} by one{when}. The count is "
            f"{n.q}, {w} bits, and wraps.{hold}",
            f"The {w}-bit count {n.q} can be preset to {n.d} by {n.load}. Without a load it goes {way} one at a "
            f"time{when}, at rising edges of {n.clk}.{hold}",
        )

    def body(self, p: Params, n: Names) -> str:
        gate = f"if ({n.go}) " if p.gate else ""
        move = f"else {gate}{n.q} <= {n.q} {'-' if p.down else '+'} 1;"
        return always(p, n, f"{n.q} <= 0;", f"if ({n.load}) {n.q} <= {n.d};\n{move}")

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            moves = x.go if p.gate else 1
            return x.d if x.load else (s + (-moves if p.down else moves)) % 2**p.width

        return Clocked(p, 0, step, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        top = 2**p.width - 2
        return [{"load": 1, "d": top}, *[{"load": 0, "go": 1}] * 4, {"load": 1, "d": 1}, *[{"load": 0, "go": 1}] * 3]


@register
class SaturatingCounter(Family):
    """A counter that stops at its ends."""

    name = "saturating_counter"
    modules = ("saturating_counter", "sat_counter", "clamp_counter", "credit_counter", "predictor", "level_counter")

    def sample(self, rng: Random) -> dict[str, Any]:
        top = rng.choice((3, 4, 5, 6, 7, 9, 10, 12, 15))
        return control(rng, enable=False) | {"top": top, "kind": rng.choice(("both", "up", "down"))}

    def ports(self, p: Params) -> list[Port]:
        up = [inp("inc", 1, "inc", "up", "plus", "grow", "taken")] if p.kind != "down" else []
        down = [inp("dec", 1, "dec", "down", "minus", "shrink", "lower")] if p.kind != "up" else []
        return [*control_ports(p), *up, *down, out("q", p.top.bit_length(), *COUNT, reg=True)]

    def _rule(self, p: Params, n: Names) -> str:
        up = f"adds 1 to {n.q} unless it is {p.top}"
        down = f"subtracts 1 from {n.q} unless it is 0"
        if p.kind == "both":
            return f"{n.inc} alone {up}; {n.dec} alone {down}; both or neither keep it"
        return f"a high {n.inc} {up}" if p.kind == "up" else f"a high {n.dec} {down}"

    def says(self, p: Params, n: Names) -> list[str]:
        rule = self._rule(p, n)
        return tell(
            p,
            n,
            f"{n.q} becomes {p.top if p.kind == 'down' else 0}",
            f"A saturating counter from 0 to {p.top}. On each rising edge of {n.clk}, {rule}.",
            f"{n.q} stays between 0 and {p.top} and never wraps: at the rising edge of {n.clk}, {rule}.",
            f"When {n.clk} rises, {rule}. There is no overflow: the limits are 0 and {p.top}.",
            f"With every rising edge of {n.clk}: {rule}. At a limit (0 or {p.top}) the count stays.",
            f"The count {n.q} is held within 0..{p.top}. As {n.clk} rises, {rule}.",
        )

    def body(self, p: Params, n: Names) -> str:
        rules = []
        if p.kind != "down":
            rules.append(
                f"if ({n.inc}{f' && !{n.dec}' if p.kind == 'both' else ''} && {n.q} != {p.top}) {n.q} <= {n.q} + 1;"
            )
        if p.kind != "up":
            rules.append(f"if ({n.dec}{f' && !{n.inc}' if p.kind == 'both' else ''} && {n.q} != 0) {n.q} <= {n.q} - 1;")
        return always(p, n, f"{n.q} <= {p.top if p.kind == 'down' else 0};", "\nelse ".join(rules))

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            change = getattr(x, "inc", 0) - getattr(x, "dec", 0)
            return min(max(s + change, 0), p.top)

        return Clocked(p, p.top if p.kind == "down" else 0, step, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        up, down = [{"inc": 1, "dec": 0}], [{"inc": 0, "dec": 1}]
        return up * (p.top + 3) + [{"inc": 1, "dec": 1}] * 3 + down * (p.top + 3) + [{"inc": 1, "dec": 1}] * 3
