"""Families of codes without state: counting bits, parity, Gray, one-hot, thermometer and display codes."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import (
    COUNT,
    WIDTHS,
    WORD,
    Gated,
    enable_ports,
    enabled,
    gate,
    gate_says,
    one_hot_words,
    ones,
)


@register
class PopCount(Family):
    """How many bits of a word have a value, and whether that reaches a limit."""

    name = "popcount"
    modules = ("popcount", "pop_count", "ones_counter", "bit_count", "count_bits", "weight", "hamming")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((3, 4, 5, 6, 7, 8, 10, 12, 16))
        flag = rng.choice(("none", "ge", "eq", "lt"))
        limit = rng.randint(2, width - 1) if flag != "none" else 0
        return {"width": width, "zeros": rng.randint(0, 1), "flag": flag, "limit": limit}

    def ports(self, p: Params) -> list[Port]:
        ports = [inp("d", p.width, *WORD), out("y", p.width.bit_length(), *COUNT, reg=True)]
        return ports + ([] if p.flag == "none" else [out("f", 1, "many", "flag", "limit_hit", "enough", "alarm")])

    def says(self, p: Params, n: Names) -> list[str]:
        bit = "zeros" if p.zeros else "ones"
        word = {"none": "", "ge": "at least", "eq": "equal to", "lt": "less than"}[p.flag]
        tail = f" {n.f} is 1 when {n.y} is {word} {p.limit}." if word else ""
        return [
            f"{n.y} is the number of {bit} in {n.d}.{tail}",
            f"Count the {bit} of {n.d} and put the count on {n.y}.{tail}",
            f"Output on {n.y} how many of the {p.width} bits of {n.d} are {bit}.{tail}",
            f"{n.y} tells how many {bit} the word {n.d} has.{tail}",
            f"The {bit} of the input {n.d} are counted; {n.y} is the total.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        sign = {"none": "", "ge": ">=", "eq": "==", "lt": "<"}[p.flag]
        flag = f"  assign {n.f} = {n.y} {sign} {p.limit};\n" if sign else ""
        return (
            f"  integer i;\n  always @* begin\n    {n.y} = 0;\n    for (i = 0; i < {p.width}; i = i + 1)\n"
            f"      {n.y} = {n.y} + {'!' if p.zeros else ''}{n.d}[i];\n  end\n{flag}"
        )

    def model(self, p: Params) -> Model:
        def count(x: Inputs) -> dict[str, int]:
            total = p.width - ones(x.d) if p.zeros else ones(x.d)
            flag = {"none": 0, "ge": total >= p.limit, "eq": total == p.limit, "lt": total < p.limit}[p.flag]
            return {"y": total, "f": int(flag)}

        return Combinational(count)


@register
class LeadingCount(Family):
    """How many equal bits a word begins or ends with."""

    name = "leading_count"
    modules = ("lzc", "leading_zeros", "clz", "ctz", "lead_count", "run_length", "zero_run")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((3, 4, 5, 6, 7, 8, 10, 12, 16))
        flag = rng.choice(("none", "all", "notall"))
        return {"width": width, "ones": rng.randint(0, 1), "trailing": rng.randint(0, 1), "flag": flag}

    def ports(self, p: Params) -> list[Port]:
        ports = [inp("d", p.width, *WORD), out("y", p.width.bit_length(), *COUNT, reg=True)]
        pool = ("all_same", "full_run", "whole") if p.flag == "all" else ("stopped", "broken", "mixed")
        return ports + ([] if p.flag == "none" else [out("f", 1, *pool)])

    def says(self, p: Params, n: Names) -> list[str]:
        bit = "ones" if p.ones else "zeros"
        end, kind = ("low", "trailing") if p.trailing else ("high", "leading")
        equal = "equal to" if p.flag == "all" else "not equal to"
        tail = "" if p.flag == "none" else f" {n.f} is 1 when {n.y} is {equal} {p.width}."
        w = p.width
        return [
            f"{n.y} is the number of {kind} {bit} of {n.d}, {w} if it has nothing else.{tail}",
            f"Count the {kind} {bit} in {n.d} and give the count on {n.y}; the largest count is {w}.{tail}",
            f"Starting at the {end} end of {n.d}, count {bit} until another bit comes; {n.y} is the count, at "
            f"most {w}.{tail}",
            f"How many {bit} in a row are at the {end} end of {n.d}? Output the number, 0 to {w}, on {n.y}.{tail}",
            f"The length of the run of {bit} at the {end} end of {n.d} goes to {n.y} and may reach {w}.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        w, test = p.width, f"{'!' if p.ones else ''}{n.d}[i]"
        loop, place = (
            (f"i = {w - 1}; i >= 0; i = i - 1", "i") if p.trailing else (f"i = 0; i < {w}; i = i + 1", f"{w - 1} - i")
        )
        flag = {"none": "", "all": "==", "notall": "!="}[p.flag]
        extra = f"  assign {n.f} = {n.y} {flag} {w};\n" if flag else ""
        return (
            f"  integer i;\n  always @* begin\n    {n.y} = {w};\n    for ({loop})\n"
            f"      if ({test}) {n.y} = {place};\n  end\n{extra}"
        )

    def model(self, p: Params) -> Model:
        def run(x: Inputs) -> dict[str, int]:
            text = f"{x.d:0{p.width}b}"[:: -1 if p.trailing else 1]
            length = len(text) - len(text.lstrip("1" if p.ones else "0"))
            return {"y": length, "f": int((length == p.width) == (p.flag == "all"))}

        return Combinational(run)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        full, words = (1 << p.width) - 1, one_hot_words(p.width, "d")
        return [{"d": w["d"] ^ full} for w in words] if p.ones else words


@register
class Parity(Gated):
    """Parity made, appended or checked."""

    name = "parity"
    modules = ("parity", "parity_gen", "parity_check", "par_unit", "parity_bit", "check_bit", "add_parity")
    results = ("par", "p_out", "y", "parity", "check", "result")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice(WIDTHS[1:-1]),
            "odd": rng.randint(0, 1),
            "op": rng.choice(("make", "low", "high", "check")),
        }

    def inputs(self, p: Params) -> list[Port]:
        ports = [inp("d", p.width, *WORD)]
        return ports + ([inp("pin", 1, "p_in", "par_in", "pbit", "check_in")] if p.op == "check" else [])

    def width(self, p: Params) -> int:
        return int(p.width) + 1 if p.op in ("low", "high") else 1

    def tells(self, p: Params, n: Names) -> list[str]:
        kind = "odd" if p.odd else "even"
        if p.op == "check":
            return [
                f"{n.pin} is the {kind} parity bit of {n.d}. {n.y} is 1 when it is wrong.",
                f"Check {kind} parity: {n.y} is 1 if {n.d} and {n.pin} together do not have an {kind} number of ones.",
                f"{n.y} reports an error of the {kind} parity of {n.d} with its parity bit {n.pin}.",
                f"The ones of {n.d} and {n.pin} should be {kind} in number; {n.y} goes to 1 if they are not.",
                f"Set {n.y} on a parity error; {n.d} arrives with the {kind} parity bit {n.pin}.",
            ]
        if p.op == "make":
            return [
                f"{n.y} is the {kind} parity bit of {n.d}.",
                f"Choose {n.y} so that {n.d} and {n.y} together have an {kind} number of ones.",
                f"Generate {kind} parity for the {p.width} bits of {n.d}; the bit goes to {n.y}.",
                f"With {n.y} added, the number of ones in {n.d} becomes {kind}.",
                f"The output {n.y} completes {n.d} to {kind} parity.",
            ]
        place = "above the data as the highest bit" if p.op == "high" else "below the data as the lowest bit"
        return [
            f"{n.y} is {n.d} with its {kind} parity bit {place}.",
            f"Add a parity bit to {n.d}, {place}, so that {n.y} has an {kind} number of ones.",
            f"Append {kind} parity: {n.y} holds {n.d} and the parity bit, {place}.",
            f"{n.y} carries {n.d} plus one bit, {place}, that makes the number of ones {kind}.",
            f"Extend {n.d} to {n.y} by an {kind} parity bit, {place}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        bit = f"{'~' if p.odd else ''}^{n.d}"
        if p.op == "check":
            return f"{bit} ^ {n.pin}"
        return {"make": bit, "low": f"{{{n.d}, {bit}}}", "high": f"{{{bit}, {n.d}}}"}[p.op]

    def value(self, p: Params, x: Inputs) -> int:
        bit = (ones(x.d) + p.odd) % 2
        return {
            "make": bit,
            "low": 2 * x.d + bit,
            "high": bit << p.width | x.d,
            "check": bit ^ getattr(x, "pin", 0),
        }[p.op]


@register
class Gray(Family):
    """Binary to Gray, Gray to binary, or their comparison."""

    name = "gray"
    modules = ("gray", "gray_conv", "bin2gray", "gray2bin", "gray_code", "gray_unit", "code_conv")

    def sample(self, rng: Random) -> dict[str, Any]:
        extra = rng.choice(("none", "odd", "zero", "top"))
        return {
            "width": rng.choice(WIDTHS[1:]),
            "decode": rng.randint(0, 1),
            "enable": rng.choice(("none", "high", "low")),
            "extra": extra,
        }

    def ports(self, p: Params) -> list[Port]:
        pool = {
            "odd": ("odd", "parity", "is_odd"),
            "zero": ("zero", "is_zero", "none_set"),
            "top": ("msb", "top_bit", "half"),
        }
        ports = [inp("d", p.width, *(("gray", "g", "g_in", "code") if p.decode else ("bin", "b", "bin_in", "num")))]
        result = ("bin", "b", "bin_out", "num") if p.decode else ("gray", "g", "g_out", "code")
        ports += [*enable_ports(p), out("y", p.width, *result, reg=bool(p.decode))]
        return ports + ([] if p.extra == "none" else [out("f", 1, *pool[p.extra])])

    def says(self, p: Params, n: Names) -> list[str]:
        source, target = ("Gray", "binary") if p.decode else ("binary", "Gray")
        word = {"none": "", "odd": "has an odd number of ones", "zero": "is 0", "top": "has its highest bit set"}[
            p.extra
        ]
        tail = f" {n.f} is 1 when {n.d} {word}." if word else ""
        told = [
            f"Convert {n.d} from {source} to {target} code; the result is {n.y}.",
            f"{n.y} is the {target} code of the {source} number {n.d}.",
            f"{n.d} is in {source} code. Output the same number in {target} code on {n.y}.",
            f"A converter from {source} to {target} with {p.width} bits reads {n.d} and drives {n.y}.",
            f"Translate the {source} coded {n.d} into {target} code on {n.y}.",
        ]
        return [text + gate_says(p, n, n.y, k) + tail for k, text in enumerate(told)]

    def body(self, p: Params, n: Names) -> str:
        test = {"none": "", "odd": f"^{n.d}", "zero": f"{n.d} == 0", "top": f"{n.d}[{p.width - 1}]"}[p.extra]
        extra = f"  assign {n.f} = {test};\n" if test else ""
        if not p.decode:
            return f"  assign {n.y} = {gate(p, n, f'{n.d} ^ ({n.d} >> 1)')};\n{extra}"
        bit = gate(p, n, f"^({n.d} >> i)")
        return f"  integer i;\n  always @*\n    for (i = 0; i < {p.width}; i = i + 1)\n      {n.y}[i] = {bit};\n{extra}"

    def model(self, p: Params) -> Model:
        def convert(x: Inputs) -> dict[str, int]:
            result, left = x.d ^ x.d >> 1, x.d
            if p.decode:
                result = 0
                while left:
                    result, left = result ^ left, left >> 1
            flags = {"none": 0, "odd": ones(x.d) % 2, "zero": x.d == 0, "top": x.d >> (p.width - 1)}
            return {"y": result if enabled(p, x) else 0, "f": int(flags[p.extra])}

        return Combinational(convert)


SEGMENTS = (0x3F, 0x06, 0x5B, 0x4F, 0x66, 0x6D, 0x7D, 0x07, 0x7F, 0x6F)  # bit 0 is segment a, bit 6 segment g


@register
class SevenSegment(Family):
    """A decimal digit on a seven-segment display."""

    name = "seven_segment"
    modules = ("seven_seg", "bcd7seg", "digit_display", "seg_decoder", "hex_display", "seg7", "display_dec")

    def sample(self, rng: Random) -> dict[str, Any]:
        blank = rng.choice(("none", "high", "low"))
        return {
            "low": rng.randint(0, 1),
            "digits": rng.choice((4, 6, 8, 10)),
            "blank": blank,
            "point": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        ports = [inp("d", 4, "digit", "bcd", "num", "d", "value")]
        if p.blank != "none":
            ports.append(inp("b", 1, *(("blank", "dark", "bl") if p.blank == "high" else ("show", "lit", "on"))))
        if p.point:
            ports.append(inp("dot", 1, "dot", "dp", "point"))
        return [*ports, out("y", 8 if p.point else 7, "seg", "segments", "leds", "display", "y")]

    def says(self, p: Params, n: Names) -> list[str]:
        last, lit = p.digits - 1, 0 if p.low else 1
        tail = f" Bit 7 is the point, lit when {n.dot} is 1." if p.point else ""
        if p.blank != "none":
            tail += f" All segments are dark when {n.b} is {1 if p.blank == 'high' else 0}."
            tail = tail.replace("segments", "bits of the output") if p.point else tail
        return [
            f"Show the digit {n.d} (0 to {last}) on a seven-segment display: {n.y} holds segments g to a in bits "
            f"6 to 0, lit = {lit}. Other codes are dark.{tail}",
            f"{n.y} drives the segments gfedcba of a display with {lit} for lit, for {n.d} from 0 to {last}; "
            f"larger codes show nothing.{tail}",
            f"Decode {n.d} to seven segments on {n.y}, bit 0 is segment a and bit 6 segment g, {lit} is lit. "
            f"Digits above {last} are blank.{tail}",
            f"A display decoder: {n.d} = 0 to {last} appears on {n.y} (bit 0 = a, bit 6 = g, lit is {lit}), "
            f"anything else is dark.{tail}",
            f"The segments a (bit 0) to g (bit 6) in {n.y} form the digit {n.d}, up to {last}, a lit one being "
            f"{lit}; above that none is lit.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        lines = "".join(f"      {i}: t = 7'h{SEGMENTS[i]:02x};\n" for i in range(p.digits))
        word = f"{{{n.dot}, t}}" if p.point else "t"
        if p.blank != "none":
            word = f"{n.b} ? 0 : {word}" if p.blank == "high" else f"{n.b} ? {word} : 0"
        word = (f"~({word})" if "?" in word else f"~{word}") if p.low else word
        return (
            f"  reg [6:0] t;\n  always @*\n    case ({n.d})\n{lines}      default: t = 0;\n    endcase\n"
            f"  assign {n.y} = {word};\n"
        )

    def model(self, p: Params) -> Model:
        def show(x: Inputs) -> dict[str, int]:
            lit = SEGMENTS[x.d] if x.d < p.digits else 0
            lit += 128 * getattr(x, "dot", 0)
            if p.blank != "none" and x.b == (p.blank == "high"):
                lit = 0
            return {"y": ~lit if p.low else lit}

        return Combinational(show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"d": digit, "b": int(p.blank == "low")} for digit in range(16)]


HOT_CHECKS = {
    "one": (
        "exactly one bit of {d} is {v}",
        "{d} != 0 && ({d} & ({d} - 1)) == 0",
        ("one", "valid", "onehot", "single"),
    ),
    "many": ("two or more bits of {d} are {v}", "({d} & ({d} - 1)) != 0", ("many", "conflict", "multi", "clash")),
    "few": ("at most one bit of {d} is {v}", "({d} & ({d} - 1)) == 0", ("few", "ok", "clean", "safe")),
    "none": ("no bit of {d} is {v}", "{d} == 0", ("none", "idle", "zero", "quiet")),
}


@register
class OneHotCheck(Family):
    """Which of the statements 'none', 'one', 'many' hold for the set bits of a word."""

    name = "one_hot_check"
    modules = ("onehot_check", "one_hot_chk", "check_hot", "bus_check", "hot_test", "single_bit", "conflict")

    def sample(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice(WIDTHS[1:]), "flags": rng.sample(tuple(HOT_CHECKS), rng.choice((1, 2, 2, 3)))}

    def ports(self, p: Params) -> list[Port]:
        return [inp("d", p.width, *WORD), *(out(flag, 1, *HOT_CHECKS[flag][2]) for flag in p.flags)]

    def says(self, p: Params, n: Names) -> list[str]:
        told = [(getattr(n, flag), HOT_CHECKS[flag][0].format(d=n.d, v="set")) for flag in p.flags]
        return [
            " ".join(f"{y} is 1 when {fact}." for y, fact in told),
            " ".join(f"If {fact}, {y} is 1, else 0." for y, fact in told),
            f"Look at the ones of {n.d}: " + "; ".join(f"{y} tells whether {fact}" for y, fact in told) + ".",
            " ".join(f"{y} is high exactly if {fact}." for y, fact in told),
            f"Check {n.d}. " + " ".join(f"Raise {y} if {fact}." for y, fact in told),
        ]

    def body(self, p: Params, n: Names) -> str:
        return "".join(f"  assign {getattr(n, flag)} = {HOT_CHECKS[flag][1].format(d=n.d)};\n" for flag in p.flags)

    def model(self, p: Params) -> Model:
        def check(x: Inputs) -> dict[str, int]:
            count = ones(x.d)
            return {"one": int(count == 1), "many": int(count > 1), "few": int(count < 2), "none": int(count == 0)}

        return Combinational(check)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [*one_hot_words(p.width, "d"), *({"d": 1 << i | 1} for i in range(1, p.width))][:36]


@register
class Thermometer(Gated):
    """Binary to thermometer code."""

    name = "thermometer"
    modules = ("thermometer", "thermo", "bar_graph", "level_bar", "unary", "meter", "bar_code")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice((3, 4, 5, 7, 8, 12, 15)), "down": rng.randint(0, 1), "invert": rng.randint(0, 1)}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("n", p.width.bit_length(), "level", "num", "n", "value", "count")]

    def tells(self, p: Params, n: Names) -> list[str]:
        end, bit = ("highest" if p.down else "lowest"), ("0" if p.invert else "1")
        return [
            f"The {end} {n.n} bits of {n.y} are {bit}, the others {1 - int(bit)}.",
            f"Thermometer code: {n.n} bits of {n.y}, beginning with the {end}, are {bit}; the rest are {1 - int(bit)}.",
            f"{n.y} is a bar: as many {bit} bits as {n.n} says, from the {end} end, and {1 - int(bit)} elsewhere.",
            f"Set {n.n} bits of {n.y} to {bit}, starting at the {end} one. All other bits are {1 - int(bit)}.",
            f"From the {end} bit on, {n.n} bits of {n.y} have the value {bit} and the remaining ones {1 - int(bit)}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        full = f"{{{p.width}{{1'b1}}}}"
        if p.down:
            return f"{full} >> {n.n}" if p.invert else f"~({full} >> {n.n})"
        return f"{full} << {n.n}" if p.invert else f"~({full} << {n.n})"

    def value(self, p: Params, x: Inputs) -> int:
        level = min(x.n, p.width)
        bar = ((1 << level) - 1) << (p.width - level if p.down else 0)
        return ~bar if p.invert else bar
