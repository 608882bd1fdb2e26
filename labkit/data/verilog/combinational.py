"""Families without state: gates, selection, decoding and rearranging of bits."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import (
    RESULT,
    SELECT,
    WORD,
    WORD_A,
    WORD_B,
    Gated,
)

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
GATES = {"and": "&", "or": "|", "xor": "^"}
INPUTS = ("a", "b", "c", "d")
POOLS = (("a", "x", "in0", "p", "first"), ("b", "y_in", "in1", "q_in", "second"), ("c", "z_in", "in2", "r", "third"))
POOLS = (*POOLS, ("d", "w", "in3", "u", "fourth"))


def bits(width: int) -> str:
    """`"1 bit"` or `"8 bits"`."""
    return "1 bit" if width == 1 else f"{width} bits"


def listed(names: list[str]) -> str:
    """`"a, b and c"`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _bitwise(op: str, words: list[int]) -> int:
    return reduce({"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[op], words)


@register
class Gates(Gated):
    """One gate on two to four words, with an inverted output or an inverted input."""

    name = "gates"
    modules = ("gate", "logic_unit", "bitwise", "gates", "bit_logic", "wide_gate", "combine")

    def draw(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((2, 2, 3, 4))
        return {
            "op": rng.choice(tuple(GATES)),
            "inputs": n,
            "invert": rng.choice(("none", "output", "input")),
            "which": rng.randrange(n),
            "width": rng.choice((1, *WIDTHS)),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp(role, p.width, *pool) for role, pool in zip(INPUTS, POOLS, strict=True)][: p.inputs]

    def _words(self, p: Params, n: Names) -> list[str]:
        return [getattr(n, role) for role in INPUTS[: p.inputs]]

    def tells(self, p: Params, n: Names) -> list[str]:
        names = self._words(p, n)
        every, odd = listed(names), names[p.which]
        op = {"and": "AND", "or": "OR", "xor": "XOR"}[p.op]
        if p.invert == "output":
            op = {"and": "NAND", "or": "NOR", "xor": "XNOR"}[p.op]
        turned = p.invert == "input"
        return [
            f"{n.y} is the bitwise {op} of {every}{f', where {odd} is inverted first' if turned else ''}.",
            f"Combine {every} with a bitwise {op} to get {n.y}{f'; use the complement of {odd}' if turned else ''}.",
            f"Each bit of {n.y} is the {op} of the same bits of {every}{f', with {odd} negated' if turned else ''}.",
            f"Compute {op} of {every} bit by bit into {n.y}{f', after inverting {odd}' if turned else ''}.",
            f"The output {n.y} carries {every} joined by {op} gates{f', {odd} through an inverter' if turned else ''}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        names = self._words(p, n)
        if p.invert == "input":
            names[p.which] = f"~{names[p.which]}"
        joined = f" {GATES[p.op]} ".join(names)
        return f"~({joined})" if p.invert == "output" else joined

    def value(self, p: Params, x: Inputs) -> int:
        words = [getattr(x, role) for role in INPUTS[: p.inputs]]
        if p.invert == "input":
            words[p.which] = ~words[p.which]
        result = _bitwise(p.op, words)
        return ~result if p.invert == "output" else result


@register
class GateChain(Gated):
    """Two different gates in a row."""

    name = "gate_chain"
    modules = ("gate_chain", "two_gates", "logic_chain", "and_or", "gate_pair", "logic_mix")

    def draw(self, rng: Random) -> dict[str, Any]:
        first, second = rng.sample(tuple(GATES), 2)
        return {"first": first, "second": second, "invert": rng.randint(0, 1), "width": rng.choice((1, *WIDTHS))}

    def inputs(self, p: Params) -> list[Port]:
        return [inp(role, p.width, *pool) for role, pool in zip(INPUTS[:3], POOLS[:3], strict=True)]

    def tells(self, p: Params, n: Names) -> list[str]:
        one, two = p.first.upper(), p.second.upper()
        end = " and then inverted" if p.invert else ""
        return [
            f"{n.a} and {n.b} are combined by a bitwise {one}; the result is combined with {n.c} by {two}{end}, giving {n.y}.",
            f"First {one} {n.a} with {n.b}, then {two} that with {n.c}{end}; the result is {n.y}.",
            f"{n.y} is the {two} of {n.c} and ({n.a} {one} {n.b}){end}, bit by bit.",
            f"A {one} gate takes {n.a} and {n.b}. A {two} gate takes its output and {n.c}{end}. It drives {n.y}.",
            f"Output {n.y}: ({n.a} {one} {n.b}) {two} {n.c}{end}, for every bit.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        inner = f"({n.a} {GATES[p.first]} {n.b}) {GATES[p.second]} {n.c}"
        return f"~({inner})" if p.invert else inner

    def value(self, p: Params, x: Inputs) -> int:
        result = _bitwise(p.second, [_bitwise(p.first, [x.a, x.b]), x.c])
        return ~result if p.invert else result


REDUCTIONS = {
    "all": ("&", "all bits are 1", ("all_ones", "all_set", "is_full", "and_out")),
    "any": ("|", "at least one bit is 1", ("any_set", "any_one", "nonzero", "or_out")),
    "odd": ("^", "the number of ones is odd", ("odd", "parity", "xor_out", "odd_ones")),
    "notall": ("~&", "at least one bit is 0", ("any_zero", "not_full", "nand_out", "has_zero")),
    "none": ("~|", "all bits are 0", ("is_zero", "all_zero", "nor_out", "empty")),
    "even": ("~^", "the number of ones is even", ("even", "even_ones", "xnor_out", "balanced")),
}


@register
class Reduction(Family):
    """Up to three facts about all bits of a word."""

    name = "reduction"
    modules = ("reduce", "reduction", "bit_facts", "vector_flags", "word_check", "flags", "reduce_unit")

    def sample(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice(WIDTHS), "flags": rng.sample(tuple(REDUCTIONS), rng.choice((1, 2, 2, 3)))}

    def ports(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD), *(out(flag, 1, *REDUCTIONS[flag][2]) for flag in p.flags)]

    def says(self, p: Params, n: Names) -> list[str]:
        facts = [(getattr(n, flag), REDUCTIONS[flag][1], REDUCTIONS[flag][0]) for flag in p.flags]
        return [
            " ".join(f"{y} is 1 when {fact} in {n.a}." for y, fact, _ in facts),
            f"Look at {n.a}. " + " ".join(f"Set {y} if {fact}." for y, fact, _ in facts),
            f"From the word {n.a}: " + "; ".join(f"{y} tells whether {fact}" for y, fact, _ in facts) + ".",
            f"For the {p.width} bits of {n.a}, "
            + ", ".join(f"{y} is high exactly when {fact}" for y, fact, _ in facts)
            + ".",
            f"Reduce {n.a}: " + ", ".join(f"{y} goes high if {fact}" for y, fact, _ in facts) + ".",
        ]

    def body(self, p: Params, n: Names) -> str:
        return "".join(f"  assign {getattr(n, flag)} = {REDUCTIONS[flag][0]}{n.a};\n" for flag in p.flags)

    def model(self, p: Params) -> Model:
        def flags(x: Inputs) -> dict[str, int]:
            ones = f"{x.a:b}".count("1")
            facts = {"all": ones == p.width, "any": ones > 0, "odd": ones % 2 == 1}
            facts |= {"notall": not facts["all"], "none": not facts["any"], "even": not facts["odd"]}
            return {flag: int(facts[flag]) for flag in p.flags}

        return Combinational(flags)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        full = (1 << p.width) - 1
        return [{"a": word} for word in (0, full, full ^ 1, 1, 1 << (p.width - 1), full >> 1)]


@register
class Mux2(Gated):
    """Two words, one select."""

    name = "mux2"
    modules = ("mux2", "mux", "selector", "mux2to1", "choose2", "two_way_mux", "data_sel")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice((1, *WIDTHS)),
            "swap": rng.randint(0, 1),
            "invert": rng.choice(("none", "all", "b")),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD_A), inp("b", p.width, *WORD_B), inp("s", 1, *SELECT)]

    def tells(self, p: Params, n: Names) -> list[str]:
        one, zero = (n.a, n.b) if p.swap else (n.b, n.a)
        note = {"none": "", "all": " The result is inverted.", "b": f" {n.b} is inverted before it is used."}[p.invert]
        return [
            f"{n.y} is {one} when {n.s} is 1 and {zero} when {n.s} is 0.{note}",
            f"Select between {n.a} and {n.b}: {n.s} = 0 gives {zero}, {n.s} = 1 gives {one} on {n.y}.{note}",
            f"If {n.s} is high pass {one} to {n.y}, otherwise pass {zero}.{note}",
            f"A multiplexer drives {n.y} with {zero} for {n.s} low and with {one} for {n.s} high.{note}",
            f"The select {n.s} routes {one} to {n.y} if set, else {zero}.{note}",
        ]

    def expression(self, p: Params, n: Names) -> str:
        b = f"~{n.b}" if p.invert == "b" else n.b
        one, zero = (n.a, b) if p.swap else (b, n.a)
        inner = f"{n.s} ? {one} : {zero}"
        return f"~({inner})" if p.invert == "all" else inner

    def value(self, p: Params, x: Inputs) -> int:
        b = ~x.b if p.invert == "b" else x.b
        chosen = x.a if x.s == p.swap else b
        return ~chosen if p.invert == "all" else chosen


@register
class MuxCase(Family):
    """Three or four words chosen by a case statement; the order in which codes name the inputs varies."""

    name = "mux_case"
    modules = ("mux4", "mux_case", "mux4to1", "selector4", "data_mux", "way_mux", "mux3")

    def sample(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((3, 4, 4))
        order = list(range(n))
        if rng.random() < 0.5:
            order = rng.choice((order[::-1], order[1:] + order[:1], order[-1:] + order[:-1]))
        return {"inputs": n, "order": order, "width": rng.choice((1, *WIDTHS))}

    def ports(self, p: Params) -> list[Port]:
        words = [inp(role, p.width, *pool) for role, pool in zip(INPUTS, POOLS, strict=True)][: p.inputs]
        return [*words, inp("s", 2, *SELECT), out("y", p.width, *RESULT, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        names = [getattr(n, INPUTS[i]) for i in p.order]
        rest = f" For {n.s} = 3, {n.y} is 0." if p.inputs == 3 else ""
        table = ", ".join(f"{code} for {name}" for code, name in enumerate(names))
        return [
            f"{n.s} selects what {n.y} shows: {table}.{rest}",
            f"Select one word: {', '.join(f'{n.s} = {code} gives {name}' for code, name in enumerate(names))} on {n.y}.{rest}",
            f"{n.y} is {', '.join(f'{name} when {n.s} is {code}' for code, name in enumerate(names))}.{rest}",
            f"For the codes 0 to {p.inputs - 1} of {n.s}, {n.y} takes {listed(names)} in this order.{rest}",
            f"A multiplexer controlled by {n.s} drives {n.y}; the codes from 0 up mean {listed(names)}.{rest}",
        ]

    def body(self, p: Params, n: Names) -> str:
        lines = "".join(f"      {code}: {n.y} = {getattr(n, INPUTS[i])};\n" for code, i in enumerate(p.order[:3]))
        last = "0" if p.inputs == 3 else getattr(n, INPUTS[p.order[3]])
        return f"  always @*\n    case ({n.s})\n{lines}      default: {n.y} = {last};\n    endcase\n"

    def model(self, p: Params) -> Model:
        return Combinational(lambda x: {"y": getattr(x, INPUTS[p.order[x.s]]) if x.s < p.inputs else 0})


@register
class BitSelect(Gated):
    """One bit or slice of a vector, chosen by an index."""

    name = "bit_select"
    modules = ("bit_select", "bit_mux", "mux8", "pick_bit", "slice_mux", "field_mux", "vector_mux")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((1, 1, 2, 4, 8))
        return {
            "index": rng.choice((1, 2, 3, 4)),
            "width": width,
            "invert": rng.randint(0, 1),
            "down": 0 if width > 1 else rng.randint(0, 1),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("d", p.width << p.index, *WORD), inp("s", p.index, *SELECT, "idx", "index")]

    def tells(self, p: Params, n: Names) -> list[str]:
        unit = "bit" if p.width == 1 else f"{p.width}-bit field"
        end = "highest" if p.down else "lowest"
        note = " inverted" if p.invert else ""
        return [
            f"{n.y} is the {unit} of {n.d} with the number {n.s}{note}, counted from the {end}.",
            f"Select one {unit} of {n.d}: {n.s} = 0 means the {end} one. It goes to {n.y}{note}.",
            f"The index {n.s} picks a {unit} of {n.d}, starting at the {end} end; {n.y} shows it{note}.",
            f"Treat {n.d} as {1 << p.index} {unit}s numbered from the {end}. Output number {n.s}{note} on {n.y}.",
            f"{n.y} carries{note} the {unit} of {n.d} that {n.s} addresses, address 0 being the {end}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        if p.width == 1:
            return f"{'~' if p.invert else ''}{n.d}[{'~' if p.down else ''}{n.s}]"
        inner = f"{n.d} >> ({p.width} * {n.s})"
        return f"~({inner})" if p.invert else inner

    def value(self, p: Params, x: Inputs) -> int:
        position = (1 << p.index) - 1 - x.s if p.down else x.s
        field = x.d >> (p.width * position)
        return ~field if p.invert else field


@register
class Decoder(Gated):
    """Binary to one-hot."""

    name = "decoder"
    modules = ("decoder", "dec", "one_hot_dec", "addr_decoder", "bin2onehot", "line_decoder", "decode")
    results = ("y", "out", "lines", "onehot", "dec_out", "q", "rows")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"bits": rng.choice((1, 2, 2, 3, 3, 4, 5)), "low": rng.randint(0, 1), "down": rng.randint(0, 1)}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.bits, "sel", "addr", "code", "bin_in", "a", "num")]

    def width(self, p: Params) -> int:
        return int(1 << p.bits)

    def tells(self, p: Params, n: Names) -> list[str]:
        size, bit = 1 << p.bits, "0" if p.low else "1"
        where = f"counted from bit {(1 << p.bits) - 1} downward" if p.down else "counted from bit 0 upward"
        others = "1" if p.low else "0"
        return [
            f"Decode {n.a}: the bit of {n.y} with that number, {where}, is {bit}, and all other bits are {others}.",
            f"{n.y} has {size} lines, {where}; line {n.a} is {bit} and the rest are {others}.",
            f"Binary to one-hot: exactly one bit of {n.y} is {bit}, at place {n.a}, {where}. The others are {others}.",
            f"Bit number {n.a} of {n.y} ({where}) becomes {bit}; every other bit is {others}.",
            f"The code {n.a} activates one of {size} outputs in {n.y}, {where}: active is {bit}, idle is {others}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        inner = f"{1 << p.bits}'d1 << {n.a}"
        if p.down:
            inner = f"{1 << p.bits}'d{1 << ((1 << p.bits) - 1)} >> {n.a}"
        return f"~({inner})" if p.low else inner

    def value(self, p: Params, x: Inputs) -> int:
        place = (1 << p.bits) - 1 - x.a if p.down else x.a
        return ~(1 << place) if p.low else 1 << place


@register
class Demux(Family):
    """One input steered to one of several outputs."""

    name = "demux"
    modules = ("demux", "router", "demux4", "steer", "split_unit", "distributor", "dmx")

    def sample(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((2, 2, 3, 4))
        return {
            "outputs": n,
            "width": rng.choice((1, *WIDTHS[:9])),
            "idle": rng.randint(0, 1),
            "invert": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        pools = [(f"y{i}", f"out{i}", f"q{i}", f"dst{i}") for i in range(p.outputs)]
        outs = [out(f"y{i}", p.width, *pool) for i, pool in enumerate(pools)]
        return [inp("d", p.width, *WORD), inp("s", 1 if p.outputs == 2 else 2, *SELECT), *outs]

    def says(self, p: Params, n: Names) -> list[str]:
        names = [getattr(n, f"y{i}") for i in range(p.outputs)]
        value = f"the complement of {n.d}" if p.invert else n.d
        idle = "all ones" if p.idle else "0"
        return [
            f"{n.s} sends {value} to one output: codes 0 to {p.outputs - 1} mean {listed(names)}. Outputs not selected are {idle}.",
            f"Route {value} to {', '.join(f'{y} if {n.s} is {i}' for i, y in enumerate(names))}. Other outputs are {idle}.",
            f"Demultiplex: {', '.join(f'{n.s} = {i} selects {y}' for i, y in enumerate(names))}. The selected one gets {value}, the rest {idle}.",
            " ".join(f"{y} is {value} when {n.s} is {i}, else {idle}." for i, y in enumerate(names)),
            f"Of {listed(names)}, numbered from 0, the one with number {n.s} shows {value}; each other shows {idle}.",
        ]

    def body(self, p: Params, n: Names) -> str:
        value, idle = ("~" if p.invert else "") + n.d, "~0" if p.idle else "0"
        return "".join(f"  assign {getattr(n, f'y{i}')} = {n.s} == {i} ? {value} : {idle};\n" for i in range(p.outputs))

    def model(self, p: Params) -> Model:
        def route(x: Inputs) -> dict[str, int]:
            value = ~x.d if p.invert else x.d
            return {f"y{i}": value if x.s == i else -p.idle for i in range(p.outputs)}

        return Combinational(route)


@register
class Reverse(Gated):
    """The bits, or the bytes or nibbles, in the other order."""

    name = "reverse"
    modules = ("reverse", "bit_reverse", "swap", "byte_swap", "flip", "mirror", "endian_swap")

    def draw(self, rng: Random) -> dict[str, Any]:
        unit = rng.choice((1, 1, 2, 4, 8))
        width = unit * rng.choice((2, 3, 4) if unit > 1 else (3, 4, 5, 6, 8))
        return {"unit": unit, "width": width, "invert": rng.randint(0, 1)}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD)]

    def tells(self, p: Params, n: Names) -> list[str]:
        unit = {1: "bits", 2: "bit pairs", 4: "nibbles", 8: "bytes"}[p.unit]
        note = ", and every bit is inverted" if p.invert else ""
        return [
            f"{n.y} holds the {unit} of {n.a} in reverse order{note}.",
            f"Reverse the order of the {p.width // p.unit} {unit} of {n.a}; the result is {n.y}{note}.",
            f"Swap the {unit} of {n.a} so that the first becomes the last in {n.y}{note}.",
            f"The lowest of the {unit} of {n.a} becomes the highest of {n.y}, and so on{note}.",
            f"Mirror {n.a} in {unit} to get {n.y}{note}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        u = p.unit
        parts = [f"{n.a}[{i}]" if u == 1 else f"{n.a}[{i + u - 1}:{i}]" for i in range(0, p.width, u)]
        return ("~" if p.invert else "") + "{" + ", ".join(parts) + "}"

    def value(self, p: Params, x: Inputs) -> int:
        mask, result = (1 << p.unit) - 1, 0
        for low in range(0, p.width, p.unit):
            result = result << p.unit | (x.a >> low) & mask
        return ~result if p.invert else result
