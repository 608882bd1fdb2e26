"""Families of sums without state: adders, subtractors, products, saturation, digits."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import (
    CARRY_IN,
    CARRY_OUT,
    SUM,
    WIDTHS,
    Gated,
    bits,
    enable_ports,
    enabled,
    gate,
    gate_says,
    kind,
    read,
    signed,
    two,
)


@register
class Adder(Family):
    """Adder or subtractor with optional carries."""

    name = "adder"
    modules = ("adder", "add_unit", "summer", "full_adder", "add", "carry_adder", "ripple_add")

    def sample(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice((1, *WIDTHS)),
            "cin": rng.randint(0, 1),
            "cout": rng.choice(("none", "carry", "wide")),
        }

    def ports(self, p: Params) -> list[Port]:
        ports = two(p.width) + ([inp("cin", 1, *CARRY_IN)] if p.cin else [])
        ports.append(out("sum", p.width + (p.cout == "wide"), *SUM))
        return ports + ([out("cout", 1, *CARRY_OUT)] if p.cout == "carry" else [])

    def says(self, p: Params, n: Names) -> list[str]:
        plus = f"{n.a}, {n.b} and the carry {n.cin}" if p.cin else f"{n.a} and {n.b}"
        formula = f"{n.a} + {n.b}" + (f" + {n.cin}" if p.cin else "")
        tail = {
            "none": "The carry is dropped.",
            "wide": f"{n.sum} has {p.width + 1} bits, so the carry is kept.",
            "carry": f"{getattr(n, 'cout', '')} is the carry out.",
        }[p.cout]
        return [
            f"Add {plus}; the result is {n.sum}. {tail}",
            f"{n.sum} is the sum of {plus}. {tail}",
            f"Compute {formula} into {n.sum}. {tail}",
            f"An adder for {bits(p.width)}: {n.sum} = {formula}. {tail}",
            f"The total of {plus} appears on {n.sum}. {tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        left = f"{{{n.cout}, {n.sum}}}" if p.cout == "carry" else n.sum
        return f"  assign {left} = {n.a} + {n.b}{f' + {n.cin}' if p.cin else ''};\n"

    def model(self, p: Params) -> Model:
        def add(x: Inputs) -> dict[str, int]:
            total = x.a + x.b + (x.cin if p.cin else 0)
            return {"sum": total, "cout": total >> p.width & 1}

        return Combinational(add)


@register
class Subtractor(Family):
    """Difference of two words with optional borrows."""

    name = "subtractor"
    modules = ("subtractor", "sub_unit", "sub", "difference", "minus", "borrow_sub", "diff")

    def sample(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice(WIDTHS),
            "swap": rng.randint(0, 1),
            "bin": rng.randint(0, 1),
            "borrow": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        ports = two(p.width) + ([inp("bin", 1, "bin", "borrow_in", "bi", "b_in")] if p.bin else [])
        ports.append(out("diff", p.width, "diff", "d", "y", "result", "out", "delta"))
        return ports + ([out("borrow", 1, "borrow", "bout", "borrow_out", "bo")] if p.borrow else [])

    def says(self, p: Params, n: Names) -> list[str]:
        left, right = (n.b, n.a) if p.swap else (n.a, n.b)
        also = f" and the borrow {n.bin}" if p.bin else ""
        minus = f" - {n.bin}" if p.bin else ""
        tail = f" {n.borrow} is 1 if the true result is negative." if p.borrow else ""
        return [
            f"Subtract {right}{also} from {left}; the result is {n.diff}.{tail}",
            f"{n.diff} is {left} minus {right}{f' minus {n.bin}' if p.bin else ''}.{tail}",
            f"Compute {left} - {right}{minus} into {n.diff}.{tail}",
            f"A subtractor takes {right}{also} away from {left} and gives {n.diff}.{tail}",
            f"The difference {left} - {right}{minus} appears on {n.diff}.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        a, b = (n.b, n.a) if p.swap else (n.a, n.b)
        left = f"{{{n.borrow}, {n.diff}}}" if p.borrow else n.diff
        return f"  assign {left} = {a} - {b}{f' - {n.bin}' if p.bin else ''};\n"

    def model(self, p: Params) -> Model:
        def subtract(x: Inputs) -> dict[str, int]:
            result = (x.b - x.a if p.swap else x.a - x.b) - (x.bin if p.bin else 0)
            return {"diff": result, "borrow": int(result < 0)}

        return Combinational(subtract)


@register
class AddSub(Gated):
    """Adds or subtracts as a mode input says."""

    name = "add_sub"
    modules = ("add_sub", "addsub", "arith_unit", "plus_minus", "add_or_sub", "sum_diff")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice(WIDTHS), "sub_on": rng.randint(0, 1), "swap": rng.randint(0, 1)}

    def inputs(self, p: Params) -> list[Port]:
        return [*two(p.width), inp("m", 1, "mode", "m", "op", "sub", "ctrl")]

    def tells(self, p: Params, n: Names) -> list[str]:
        plus, minus = f"{n.a} + {n.b}", f"{n.b} - {n.a}" if p.swap else f"{n.a} - {n.b}"
        one, zero = (minus, plus) if p.sub_on else (plus, minus)
        return [
            f"{n.y} is {one} when {n.m} is 1 and {zero} when {n.m} is 0.",
            f"If {n.m} is set, compute {one}, else {zero}; the result is {n.y}.",
            f"The mode {n.m} chooses the operation: 0 means {zero}, 1 means {one}. {n.y} is the result.",
            f"{n.y} = {zero} for {n.m} low and {n.y} = {one} for {n.m} high.",
            f"With {n.m} at 0 output {zero} on {n.y}, with {n.m} at 1 output {one}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        plus, minus = f"{n.a} + {n.b}", f"{n.b} - {n.a}" if p.swap else f"{n.a} - {n.b}"
        return f"{n.m} ? {minus} : {plus}" if p.sub_on else f"{n.m} ? {plus} : {minus}"

    def value(self, p: Params, x: Inputs) -> int:
        return (x.b - x.a if p.swap else x.a - x.b) if x.m == p.sub_on else x.a + x.b


@register
class Multiply(Gated):
    """A small product, a square, or a product with an addend."""

    name = "multiply"
    modules = ("multiply", "mul", "multiplier", "product", "mult", "mul_unit", "square")
    results = ("p", "prod", "product", "y", "result", "out")

    def draw(self, rng: Random) -> dict[str, Any]:
        ops = ("mul", "mul", "square", "mac", "nmac", "signed", "low")
        return {"width": rng.choice((2, 3, 4, 5, 6, 8, 12, 16)), "op": rng.choice(ops)}

    def inputs(self, p: Params) -> list[Port]:
        ports = two(p.width)[: 1 if p.op == "square" else 2]
        return ports + ([inp("c", 2 * p.width, "c", "acc", "addend", "base")] if p.op in ("mac", "nmac") else [])

    def width(self, p: Params) -> int:
        return int(p.width if p.op == "low" else 2 * p.width)

    def tells(self, p: Params, n: Names) -> list[str]:
        b, c = getattr(n, "b", ""), getattr(n, "c", "")
        what = {
            "mul": f"the unsigned product of {n.a} and {b}",
            "square": f"the square of the unsigned {n.a}",
            "mac": f"{c} plus the unsigned product of {n.a} and {b}",
            "nmac": f"{c} minus the unsigned product of {n.a} and {b}",
            "signed": f"the signed product of {n.a} and {b}",
            "low": f"the low {p.width} bits of the product of {n.a} and {b}",
        }[p.op]
        return [
            f"{n.y} is {what}.",
            f"Compute {what} and output it on {n.y}.",
            f"The result {n.y}, of {self.width(p)} bits, is {what}.",
            f"A multiplier: {n.y} gives {what}.",
            f"On {n.y} appears {what}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        b = getattr(n, "b", "")
        return {
            "mul": f"{n.a} * {b}",
            "low": f"{n.a} * {b}",
            "square": f"{n.a} * {n.a}",
            "mac": f"{getattr(n, 'c', '')} + {n.a} * {b}",
            "nmac": f"{getattr(n, 'c', '')} - {n.a} * {b}",
            "signed": f"$signed({n.a}) * $signed({b})",
        }[p.op]

    def value(self, p: Params, x: Inputs) -> int:
        if p.op == "square":
            return int(x.a**2)
        if p.op == "signed":
            return signed(x.a, p.width) * signed(x.b, p.width)
        product = x.a * x.b
        return {"mac": getattr(x, "c", 0) + product, "nmac": getattr(x, "c", 0) - product}.get(p.op, product)


@register
class SaturatingAdd(Family):
    """A sum or difference that stays at the limits of its range."""

    name = "saturating_add"
    modules = ("sat_add", "saturate", "sat_unit", "add_sat", "sat_sub", "clip_add", "limit_add")

    def sample(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice(WIDTHS[1:]),
            "op": rng.choice(("add", "sub", "rsub")),
            "signed": rng.randint(0, 1),
            "flag": rng.choice(("none", "hit", "ok")),
        }

    def ports(self, p: Params) -> list[Port]:
        pool = ("sat", "clipped", "limit", "ovf") if p.flag == "hit" else ("exact", "in_range", "fits", "clean")
        return [*two(p.width), out("y", p.width, *SUM[2:])] + ([] if p.flag == "none" else [out("f", 1, *pool)])

    def says(self, p: Params, n: Names) -> list[str]:
        formula = {"add": f"{n.a} + {n.b}", "sub": f"{n.a} - {n.b}", "rsub": f"{n.b} - {n.a}"}[p.op]
        low, high = (-(1 << p.width - 1), (1 << p.width - 1) - 1) if p.signed else (0, (1 << p.width) - 1)
        tail = (
            ""
            if p.flag == "none"
            else f" {n.f} is 1 if the result {'was limited' if p.flag == 'hit' else 'needed no limit'}."
        )
        if p.signed:
            limit = f"limited to {low} at the bottom and {high} at the top"
        else:
            limit = f"limited to {high}" if p.op == "add" else "limited to 0 when it would be negative"
        return [
            f"{n.y} is {formula} of {kind(p)} numbers, {limit}.{tail}",
            f"Compute {formula} ({kind(p)}) with saturation: {n.y} is {limit}.{tail}",
            f"A saturating {formula} goes to {n.y}; {n.a} and {n.b} are {kind(p)} and the result is {limit}.{tail}",
            f"For {kind(p)} {n.a} and {n.b}, {n.y} shows {formula}, but {limit}.{tail}",
            f"{formula}, {kind(p)}, must not wrap around: {n.y} is {limit}.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        w, sign = p.width, "+" if p.op == "add" else "-"
        a, b = (n.b, n.a) if p.op == "rsub" else (n.a, n.b)
        if p.signed:
            over, limit = f"t[{w}] != t[{w - 1}]", f"{{t[{w}], {{{w - 1}{{~t[{w}]}}}}}}"
            declared = f"wire signed [{w}:0] t = $signed({a}) {sign} $signed({b})"
        else:
            over, limit = f"t[{w}]", f"{{{w}{{1'b1}}}}" if p.op == "add" else "0"
            declared = f"wire [{w}:0] t = {a} {sign} {b}"
        flag = {"none": "", "hit": over, "ok": over.replace("!=", "==") if p.signed else f"!{over}"}[p.flag]
        extra = f"  assign {n.f} = {flag};\n" if flag else ""
        return f"  {declared};\n  assign {n.y} = {over} ? {limit} : t[{w - 1}:0];\n{extra}"

    def model(self, p: Params) -> Model:
        low, high = (-(1 << p.width - 1), (1 << p.width - 1) - 1) if p.signed else (0, (1 << p.width) - 1)

        def add(x: Inputs) -> dict[str, int]:
            a, b = read(p, x.a), read(p, x.b)
            exact = {"add": a + b, "sub": a - b, "rsub": b - a}[p.op]
            result = min(max(exact, low), high)
            return {"y": result, "f": int((exact != result) == (p.flag == "hit"))}

        return Combinational(add)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        half = 1 << p.width - 1
        return [
            {"a": a, "b": b} for a in (half, half - 1, 0, 1, 2 * half - 1) for b in (half, half - 1, 1, 2 * half - 1)
        ]


@register
class BcdAdd(Family):
    """One decimal digit added to another, or one more or less."""

    name = "bcd_add"
    modules = ("bcd_add", "bcd_adder", "digit_add", "decimal_add", "bcd_unit", "dec_adder", "bcd_inc")

    def sample(self, rng: Random) -> dict[str, Any]:
        op = rng.choice(("add", "addc", "inc", "dec", "nines"))
        return {"op": op, "carry": rng.randint(0, 1), "enable": rng.choice(("none", "high", "low"))}

    def ports(self, p: Params) -> list[Port]:
        ports = [inp("a", 4, "a", "x", "digit_a", "bcd", "da")]
        if p.op in ("add", "addc"):
            ports.append(inp("b", 4, "b", "w", "digit_b", "bcd_b", "db"))
        ports += [inp("cin", 1, *CARRY_IN)] if p.op == "addc" else []
        ports += [*enable_ports(p), out("y", 4, "sum", "digit", "y", "bcd_out", "result")]
        return ports + ([out("cout", 1, *CARRY_OUT)] if p.carry else [])

    def says(self, p: Params, n: Names) -> list[str]:
        what = {
            "add": f"the sum of {n.a} and {getattr(n, 'b', '')}, minus 10 if it is above 9",
            "addc": f"the sum of {n.a}, {getattr(n, 'b', '')} and {getattr(n, 'cin', '')}, minus 10 if it is above 9",
            "inc": f"{n.a} plus 1, but 0 after 9",
            "dec": f"{n.a} minus 1, but 9 after 0",
            "nines": f"9 minus {n.a}",
        }[p.op]
        event = {"inc": f"{n.a} is 9", "dec": f"{n.a} is 0", "nines": f"{n.a} is above 4"}.get(
            p.op, "the sum is above 9"
        )
        tail = f" {n.cout} is 1 when {event}." if p.carry else ""
        told = [
            f"All digits are decimal (0 to 9). {n.y} is {what}.",
            f"BCD digits: compute {what}, on {n.y}.",
            f"For decimal digits, output on {n.y} {what}.",
            f"{n.y} shows {what}. Inputs are decimal digits from 0 to 9.",
            f"A decimal digit {n.y} is made: {what}.",
        ]
        return [text + gate_says(p, n, n.y, k) + tail for k, text in enumerate(told)]

    def body(self, p: Params, n: Names) -> str:
        if p.op in ("add", "addc"):
            total = f"{n.a} + {n.b}{f' + {n.cin}' if p.op == 'addc' else ''}"
            carry = f"  assign {n.cout} = t > 9;\n" if p.carry else ""
            return f"  wire [4:0] t = {total};\n  assign {n.y} = {gate(p, n, 't > 9 ? t - 10 : t')};\n{carry}"
        expression, event = {
            "inc": (f"{n.a} == 9 ? 0 : {n.a} + 1", f"{n.a} == 9"),
            "dec": (f"{n.a} == 0 ? 9 : {n.a} - 1", f"{n.a} == 0"),
            "nines": (f"9 - {n.a}", f"{n.a} > 4"),
        }[p.op]
        carry = f"  assign {n.cout} = {event};\n" if p.carry else ""
        return f"  assign {n.y} = {gate(p, n, expression)};\n{carry}"

    def model(self, p: Params) -> Model:
        def run(x: Inputs) -> dict[str, int | None]:
            if max(x.a, getattr(x, "b", 0)) > 9:
                return {"y": None, "cout": None}
            total = {"inc": x.a + 1, "dec": (x.a + 9) % 10, "nines": 9 - x.a}
            digit = total[p.op] if p.op in total else x.a + x.b + getattr(x, "cin", 0)
            events = {"inc": x.a == 9, "dec": x.a == 0, "nines": x.a > 4}
            return {"y": digit % 10 if enabled(p, x) else 0, "cout": int(events.get(p.op, digit > 9))}

        return Combinational(run)  # type: ignore[arg-type]

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"a": a, "b": b} for a in range(10) for b in (0, 1, 5, 9)]


@register
class Average(Gated):
    """The mean of two words, rounded down or up."""

    name = "average"
    modules = ("average", "mean", "avg", "midpoint", "half_sum", "avg2")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice(WIDTHS[:-1]), "op": rng.choice(("down", "up", "diff", "weighted", "plus"))}

    def inputs(self, p: Params) -> list[Port]:
        return two(p.width)

    def _formula(self, p: Params, n: Names) -> tuple[str, str]:
        return {
            "down": (f"({n.a} + {n.b}) >> 1", f"half the sum of {n.a} and {n.b}, rounded down"),
            "up": (f"({n.a} + {n.b} + 1) >> 1", f"half the sum of {n.a} and {n.b}, rounded up"),
            "diff": (f"({n.a} >> 1) + ({n.b} >> 1)", f"half of {n.a} plus half of {n.b}, each rounded down"),
            "weighted": (
                f"({n.a} + {n.a} + {n.a} + {n.b}) >> 2",
                f"3 times {n.a} plus {n.b}, divided by 4, rounded down",
            ),
            "plus": (f"({n.a} >> 1) + {n.b}", f"half of {n.a}, rounded down, plus {n.b}, modulo {1 << p.width}"),
        }[p.op]

    def tells(self, p: Params, n: Names) -> list[str]:
        what = self._formula(p, n)[1]
        return [
            f"{n.y} is {what}. All are unsigned and no carry is lost inside.",
            f"Compute {what} of unsigned numbers, without losing the inner carry; the result is {n.y}.",
            f"For unsigned inputs, {n.y} gives {what}, with the carry kept before dividing.",
            f"Output {what}, on {n.y}. Unsigned numbers; keep inner carries.",
            f"The unsigned mean on {n.y}: {what}, inner carries included.",
        ]

    def body(self, p: Params, n: Names) -> str:
        return f"  wire [{p.width + 1}:0] t = {self._formula(p, n)[0]};\n  assign {n.y} = {gate(p, n, 't')};\n"

    def value(self, p: Params, x: Inputs) -> int:
        table = {"down": (x.a + x.b) // 2, "up": (x.a + x.b + 1) // 2, "diff": x.a // 2 + x.b // 2}
        return int((table | {"weighted": (3 * x.a + x.b) // 4, "plus": x.a // 2 + x.b})[p.op])
