"""Families of number formats without state: saturation, scaling, ranges, extension, digits, merging of fields."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.arithmetic import CARRY_IN, CARRY_OUT, SUM, kind, read, two
from labkit.data.verilog.combinational import WIDTHS
from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import SELECT, WORD, Gated, enable_ports, enabled, gate, gate_says, signed


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
class Extend(Gated):
    """A word made wider by zeros, ones or its sign, at the top or the bottom."""

    name = "extend"
    modules = ("extend", "sign_ext", "zero_ext", "widen", "ext_unit", "pad", "extender")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice(WIDTHS[:-2])
        ops = ("zero", "sign", "ones", "align", "double", "select")
        return {
            "width": width,
            "to": width + rng.choice((1, 2, 3, 4, 6, 8)),
            "op": rng.choice(ops),
            "invert": int(rng.random() < 0.3),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD)] + ([inp("s", 1, "is_signed", "s", "sgn", "mode")] if p.op == "select" else [])

    def width(self, p: Params) -> int:
        return int(2 * p.width if p.op == "double" else p.to)

    def tells(self, p: Params, n: Names) -> list[str]:
        k = self.width(p) - p.width
        note = " Then all bits are inverted." if p.invert else ""
        how = {
            "zero": f"{k} zero bits above it",
            "sign": f"{k} copies of its sign bit above it",
            "ones": f"{k} one bits above it",
            "align": f"{k} zero bits below it",
            "double": "a second copy of itself above it",
            "select": f"{k} bits above it: copies of its sign bit if {getattr(n, 's', '')} is 1, else zeros",
        }[p.op]
        return [
            f"{n.y} is {n.a} with {how}.{note}",
            f"Extend {n.a} from {p.width} to {self.width(p)} bits: {n.y} has {how}.{note}",
            f"Widen {n.a} to {self.width(p)} bits on {n.y}, with {how}.{note}",
            f"The word {n.a} gets {how}; the result is {n.y}.{note}",
            f"Make {n.y} from {n.a} and {how}.{note}",
        ]

    def expression(self, p: Params, n: Names) -> str:
        k, a, sign = self.width(p) - p.width, n.a, f"{n.a}[{p.width - 1}]"
        if p.op == "select":
            inner = f"{{{{{k}{{{n.s} & {sign}}}}}, {a}}}"
        else:
            inner = {
                "zero": f"{{{k}'d0, {a}}}",
                "sign": f"{{{{{k}{{{sign}}}}}, {a}}}",
                "ones": f"{{{{{k}{{1'b1}}}}, {a}}}",
                "align": f"{{{a}, {k}'d0}}",
                "double": f"{{{a}, {a}}}",
            }[p.op]
        return ("~" if p.invert else "") + inner

    def value(self, p: Params, x: Inputs) -> int:
        k, s = self.width(p) - p.width, signed(x.a, p.width)
        table = {
            "zero": x.a,
            "sign": s,
            "ones": x.a - (1 << p.width),
            "align": x.a << k,
            "double": x.a * ((1 << p.width) + 1),
        }
        result = table[p.op] if p.op in table else (s if x.s else x.a)
        return ~result if p.invert else result


@register
class Concat(Family):
    """Words put side by side, or a word cut into fields, in a stated order."""

    name = "concat"
    modules = ("concat", "join", "split", "pack", "unpack", "fields", "merge_words")

    def sample(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((2, 3, 3))
        parts = rng.sample((1, 2, 3, 4, 5, 6, 8), n)
        order = rng.sample(range(n), n)
        return {"parts": parts, "order": order, "cut": rng.randint(0, 1), "invert": rng.choice((-1, -1, *range(n)))}

    def ports(self, p: Params) -> list[Port]:
        pools = (("a", "head", "hi", "tag"), ("b", "mid", "body", "kind"), ("c", "tail", "lo", "flags"))
        total = sum(p.parts)
        fields = [(f"p{i}", w, pools[i]) for i, w in enumerate(p.parts)]
        if p.cut:
            return [inp("w", total, "word", "packet", "bus_in", "frame"), *(out(r, w, *pool) for r, w, pool in fields)]
        return [*(inp(r, w, *pool) for r, w, pool in fields), out("w", total, "word", "packet", "bus_out", "frame")]

    def _ordered(self, p: Params, n: Names) -> list[str]:
        return [getattr(n, f"p{i}") for i in p.order]

    def says(self, p: Params, n: Names) -> list[str]:
        names = self._ordered(p, n)
        note = f" {getattr(n, f'p{p.invert}')} is inverted on the way." if p.invert >= 0 else ""
        line, top, rest = ", then ".join(names), names[0], ", ".join(reversed(names))
        if p.cut:
            return [
                f"Cut {n.w} into fields; from the top bits down they are {line}.{note}",
                f"{n.w} holds, from its highest bits to its lowest, {line}. Output each field.{note}",
                f"Split {n.w}: the highest bits go to {top}, the order from the top is {line}.{note}",
                f"The word {n.w} is unpacked, most significant field first, into {line}.{note}",
                f"From the lowest bits of {n.w} up, the fields are {rest}. Separate them.{note}",
            ]
        return [
            f"Join the inputs to {n.w}: from the top bits down it holds {line}.{note}",
            f"{n.w} consists of, from its highest bits to its lowest, {line}.{note}",
            f"Concatenate into {n.w} with {top} in the highest bits; the order from the top is {line}.{note}",
            f"The word {n.w} is packed, most significant field first, from {line}.{note}",
            f"From the lowest bits of {n.w} up, put {rest}.{note}",
        ]

    def body(self, p: Params, n: Names) -> str:
        if not p.cut:
            names = [("~" if i == p.invert else "") + getattr(n, f"p{i}") for i in p.order]
            return f"  assign {n.w} = {{{', '.join(names)}}};\n"
        lines, low = [], sum(p.parts)
        for i in p.order:
            high, low = low - 1, low - p.parts[i]
            span = f"[{high}:{low}]" if high > low else f"[{low}]"
            lines.append(f"  assign {getattr(n, f'p{i}')} = {'~' if i == p.invert else ''}{n.w}{span};\n")
        return "".join(lines)

    def model(self, p: Params) -> Model:
        def run(x: Inputs) -> dict[str, int]:
            word, low, fields = 0, 0, {}
            for i in reversed(p.order):
                flip = -1 if i == p.invert else 0
                if p.cut:
                    fields[f"p{i}"] = (x.w >> low) ^ flip
                else:
                    word |= ((getattr(x, f"p{i}") ^ flip) & ((1 << p.parts[i]) - 1)) << low
                low += p.parts[i]
            return fields or {"w": word}

        return Combinational(run)


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
class Scale(Gated):
    """A word times or divided by a constant, with an optional offset."""

    name = "scale"
    modules = ("scale", "times_const", "gain", "linear", "offset_gain", "affine", "multiple")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((3, 4, 5, 6, 8, 10, 12))
        form = rng.choice(("times", "times_plus", "div", "mod", "minus", "shift_add"))
        shift = rng.randint(1, 2)
        return {"width": width, "form": form, "k": rng.randint(3, 9), "plus": rng.randint(1, 15), "shift": shift}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD)]

    def width(self, p: Params) -> int:
        return int(p.width if p.form in ("div", "mod") else p.width + 5)

    def _formula(self, p: Params, a: str) -> tuple[str, str]:
        """In Verilog, and in words."""
        return {
            "times": (f"{a} * {p.k}", f"{a} times {p.k}"),
            "times_plus": (f"{a} * {p.k} + {p.plus}", f"{a} times {p.k}, plus {p.plus}"),
            "div": (f"{a} / {1 << p.shift}", f"{a} divided by {1 << p.shift}, rounded down"),
            "mod": (f"{a} % {1 << p.shift}", f"the remainder of {a} divided by {1 << p.shift}"),
            "minus": (f"{a} - {p.plus}", f"{a} minus {p.plus}"),
            "shift_add": (f"({a} << {p.shift}) + {a}", f"{a} shifted left by {p.shift}, plus {a} itself"),
        }[p.form]

    def tells(self, p: Params, n: Names) -> list[str]:
        what = self._formula(p, n.a)[1]
        return [
            f"{n.y} is {what}. Numbers are unsigned.",
            f"Compute {what}, unsigned, and put it on {n.y}.",
            f"The unsigned input {n.a} gives {n.y}: {what}.",
            f"Output on {n.y} the value {what}.",
            f"For every unsigned {n.a}, {n.y} equals {what}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        return self._formula(p, n.a)[0]

    def value(self, p: Params, x: Inputs) -> int:
        table = {
            "times": x.a * p.k,
            "times_plus": x.a * p.k + p.plus,
            "div": x.a // 2**p.shift,
            "mod": x.a % 2**p.shift,
        }
        return int((table | {"minus": x.a - p.plus, "shift_add": x.a * (2**p.shift + 1)})[p.form])


@register
class RangeDetect(Family):
    """Is a word inside, outside, below or above constant bounds?"""

    name = "range_detect"
    modules = ("range_detect", "in_range", "window", "range_chk", "window_cmp", "threshold", "limits")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((4, 5, 6, 8, 10, 12))
        low = rng.randint(1, (1 << width) // 2 - 1)
        flags = rng.sample(("inside", "outside", "below", "above", "at", "strict"), rng.choice((1, 2, 2, 3)))
        return {
            "width": width,
            "low": low,
            "high": rng.randint(low + 2, min((1 << width) - 2, low + 100)),
            "flags": flags,
        }

    POOLS = {
        "inside": ("inside", "in_range", "ok", "good"),
        "outside": ("outside", "out_range", "alarm", "bad"),
        "below": ("below", "too_low", "under", "cold"),
        "above": ("above", "too_high", "over", "hot"),
        "at": ("at", "exact", "at_limit", "edge_hit"),
        "strict": ("within", "strict_in", "middle", "safe"),
    }  # fmt: skip

    def ports(self, p: Params) -> list[Port]:
        return [inp("d", p.width, *WORD), *(out(flag, 1, *self.POOLS[flag]) for flag in p.flags)]

    def says(self, p: Params, n: Names) -> list[str]:
        words = {
            "inside": f"{n.d} is from {p.low} to {p.high} inclusive",
            "outside": f"{n.d} is less than {p.low} or greater than {p.high}",
            "below": f"{n.d} is less than {p.low}",
            "above": f"{n.d} is greater than {p.high}",
            "at": f"{n.d} is {p.low} or {p.high}",
            "strict": f"{n.d} is greater than {p.low} and less than {p.high}",
        }
        told = [(getattr(n, flag), words[flag]) for flag in p.flags]
        return [
            " ".join(f"{y} is 1 when {fact}." for y, fact in told),
            f"Compare the unsigned {n.d} with constants. " + " ".join(f"Set {y} if {fact}." for y, fact in told),
            " ".join(f"If {fact}, {y} is 1, otherwise 0." for y, fact in told),
            f"Watch {n.d}: " + "; ".join(f"{y} is high while {fact}" for y, fact in told) + ".",
            f"The unsigned number {n.d} is tested. " + " ".join(f"{y} tells whether {fact}." for y, fact in told),
        ]

    def body(self, p: Params, n: Names) -> str:
        d, low, high = n.d, p.low, p.high
        tests = {
            "inside": f"{d} >= {low} && {d} <= {high}",
            "outside": f"{d} < {low} || {d} > {high}",
            "below": f"{d} < {low}",
            "above": f"{d} > {high}",
            "at": f"{d} == {low} || {d} == {high}",
            "strict": f"{d} > {low} && {d} < {high}",
        }
        return "".join(f"  assign {getattr(n, flag)} = {tests[flag]};\n" for flag in p.flags)

    def model(self, p: Params) -> Model:
        def test(x: Inputs) -> dict[str, int]:
            inside = x.d in range(p.low, p.high + 1)
            at = x.d in (p.low, p.high)
            facts = {"inside": inside, "outside": not inside, "at": at, "strict": inside and not at}
            return {k: int(v) for k, v in (facts | {"below": x.d < p.low, "above": x.d > p.high}).items()}

        return Combinational(test)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"d": edge + delta} for edge in (p.low, p.high) for delta in (-1, 0, 1)] + [
            {"d": (p.low + p.high) // 2}
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
class Merge(Gated):
    """Bits taken from one word or another by a mask, or changed by it."""

    name = "mask_merge"
    modules = ("mask_merge", "merge", "mask_unit", "blend", "bit_mux", "mask_op", "masked")

    def draw(self, rng: Random) -> dict[str, Any]:
        ops = ("merge", "merge", "keep", "clear", "set", "flip", "flags")
        return {
            "width": rng.choice(WIDTHS),
            "op": rng.choice(ops),
            "swap": rng.randint(0, 1),
            "invert": int(rng.random() < 0.3),
        }

    def inputs(self, p: Params) -> list[Port]:
        ports = two(p.width) if p.op in ("merge", "flags") else two(p.width)[:1]
        return [*ports, inp("m", p.width, "mask", "m", "bits", "pattern", "sel")]

    def _what(self, p: Params, n: Names) -> str:
        a, b, m = n.a, getattr(n, "b", ""), n.m
        bit = "0" if p.swap else "1"
        return {
            "merge": f"takes the bit of {a} where {m} is {bit} and the bit of {b} elsewhere",
            "flags": f"is 1 where {m} is {bit} and {a} and {b} differ, and 0 elsewhere",
            "keep": f"is the bit of {a} where {m} is {bit}, and 0 elsewhere",
            "clear": f"is 0 where {m} is {bit}, and the bit of {a} elsewhere",
            "set": f"is 1 where {m} is {bit}, and the bit of {a} elsewhere",
            "flip": f"is the inverted bit of {a} where {m} is {bit}, and the bit of {a} elsewhere",
        }[p.op]

    def tells(self, p: Params, n: Names) -> list[str]:
        what, note = self._what(p, n), ". The whole result is inverted" if p.invert else ""
        return [
            f"Each bit of {n.y} {what}{note}.",
            f"{n.m} is a mask: every bit of {n.y} {what}{note}.",
            f"For each place, {n.y} {what}{note}.",
            f"Work bit by bit: {n.y} {what}{note}.",
            f"In every position the output {n.y} {what}{note}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        a, b = n.a, getattr(n, "b", "")
        yes, no = (f"~{n.m}", n.m) if p.swap else (n.m, f"~{n.m}")
        inner = {
            "merge": f"({a} & {yes}) | ({b} & {no})",
            "flags": f"({a} ^ {b}) & {yes}",
            "keep": f"{a} & {yes}",
            "clear": f"{a} & {no}",
            "set": f"{a} | {yes}",
            "flip": f"{a} ^ {yes}",
        }[p.op]
        return f"~({inner})" if p.invert else inner

    def value(self, p: Params, x: Inputs) -> int:
        result = 0
        for place in range(p.width):
            a, b, m = x.a >> place & 1, getattr(x, "b", 0) >> place & 1, (x.m >> place & 1) != p.swap
            chosen = {"merge": b, "flags": 0, "keep": 0}.get(p.op, a)
            if m:
                chosen = {"merge": a, "flags": int(a != b), "keep": a, "clear": 0, "set": 1, "flip": 1 - a}[p.op]
            result |= chosen << place
        return ~result if p.invert else result


@register
class BitWrite(Gated):
    """One bit of a word set, cleared, inverted or replaced."""

    name = "bit_write"
    modules = ("bit_write", "set_bit", "bit_set", "bit_flip", "poke", "bit_change", "one_bit")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {
            "bits": rng.choice((2, 3, 4)),
            "op": rng.choice(("set", "clear", "flip", "only", "test")),
            "down": rng.randint(0, 1),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("d", 1 << p.bits, *WORD), inp("i", p.bits, "idx", "index", "place", "num")]

    def width(self, p: Params) -> int:
        return int(1 << p.bits)

    def tells(self, p: Params, n: Names) -> list[str]:
        end = "highest" if p.down else "lowest"
        what = {"set": "set to 1", "clear": "cleared to 0", "flip": "inverted"}
        if p.op in what:
            act = f"{n.d} with bit number {n.i} {what[p.op]}"
        else:
            act = f"{n.d} with all bits but number {n.i} {'cleared to 0' if p.op == 'only' else 'set to 1'}"
        return [
            f"{n.y} is {act}. Number 0 is the {end} bit.",
            f"Output {act}, on {n.y}, counting from the {end} bit.",
            f"{n.y} shows {act}; numbers begin at the {end} bit.",
            f"Drive {n.y} with {act}. The {end} bit has number 0.",
            f"Copy {n.d} to {n.y}, that is {act}, where 0 means the {end} bit.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        size = 1 << p.bits
        bit = f"({size}'d{1 << (size - 1)} >> {n.i})" if p.down else f"({size}'d1 << {n.i})"
        forms = {"set": f"| {bit}", "clear": f"& ~{bit}", "flip": f"^ {bit}", "only": f"& {bit}", "test": f"| ~{bit}"}
        return f"{n.d} {forms[p.op]}"

    def value(self, p: Params, x: Inputs) -> int:
        text = list(f"{x.d:0{1 << p.bits}b}")
        place = x.i if p.down else (1 << p.bits) - 1 - x.i
        bit = text[place]
        if p.op in ("only", "test"):
            text = ["0" if p.op == "only" else "1"] * len(text)
            text[place] = bit
        else:
            text[place] = {"set": "1", "clear": "0", "flip": "10"[int(bit)]}[p.op]
        return int("".join(text), 2)


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


@register
class Clamp(Gated):
    """A word kept inside constant bounds."""

    name = "clamp"
    modules = ("clamp", "clip", "limiter", "bounder", "keep_range", "limit")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((4, 5, 6, 8, 10, 12))
        low = rng.randint(1, (1 << width) // 2 - 1)
        high = rng.randint(low + 2, min((1 << width) - 2, low + 100))
        return {"width": width, "low": low, "high": high, "op": rng.choice(("both", "top", "bottom", "zero", "offset"))}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("d", p.width, *WORD)]

    def tells(self, p: Params, n: Names) -> list[str]:
        what = {
            "both": f"{n.d}, but {p.low} if {n.d} is less than {p.low} and {p.high} if it is greater than {p.high}",
            "top": f"{n.d}, but {p.high} if {n.d} is greater than {p.high}",
            "bottom": f"{n.d}, but {p.low} if {n.d} is less than {p.low}",
            "zero": f"{n.d}, but 0 if {n.d} is less than {p.low} or greater than {p.high}",
            "offset": f"{n.d} minus {p.low}, but 0 if {n.d} is less than {p.low}",
        }[p.op]
        return [
            f"{n.y} is {what}.",
            f"Output on {n.y} the unsigned {what}.",
            f"Limit a number: {n.y} gives {what}.",
            f"The result {n.y} is {what}. Numbers are unsigned.",
            f"Unsigned: drive {n.y} with {what}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        d, low, high = n.d, p.low, p.high
        return {
            "both": f"{d} < {low} ? {low} : {d} > {high} ? {high} : {d}",
            "top": f"{d} > {high} ? {high} : {d}",
            "bottom": f"{d} < {low} ? {low} : {d}",
            "zero": f"{d} < {low} || {d} > {high} ? 0 : {d}",
            "offset": f"{d} < {low} ? 0 : {d} - {low}",
        }[p.op]

    def value(self, p: Params, x: Inputs) -> int:
        table = {"both": min(max(x.d, p.low), p.high), "top": min(x.d, p.high), "bottom": max(x.d, p.low)}
        zero = x.d if p.low <= x.d <= p.high else 0
        return int((table | {"zero": zero, "offset": max(x.d - p.low, 0)})[p.op])

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"d": edge + delta} for edge in (p.low, p.high) for delta in (-1, 0, 1)]


@register
class SelectOp(Gated):
    """One of two functions of two words, chosen by one bit."""

    name = "select_op"
    modules = ("select_op", "dual_op", "two_ops", "mode_unit", "func_sel", "either", "op_mux")

    def draw(self, rng: Random) -> dict[str, Any]:
        one, zero = rng.sample(tuple(self.OPS), 2)
        return {"width": rng.choice(WIDTHS), "one": one, "zero": zero}

    OPS = {
        "add": ("{a} + {b}", lambda a, b: a + b),
        "sub": ("{a} - {b}", lambda a, b: a - b),
        "and": ("{a} & {b}", lambda a, b: a & b),
        "or": ("{a} | {b}", lambda a, b: a | b),
        "xor": ("{a} ^ {b}", lambda a, b: a ^ b),
        "nota": ("~{a}", lambda a, b: ~a),
        "notb": ("~{b}", lambda a, b: ~b),
    }  # fmt: skip
    WORDS = {"and": "{a} AND {b}", "or": "{a} OR {b}", "xor": "{a} XOR {b}", "nota": "NOT {a}", "notb": "NOT {b}"}

    def inputs(self, p: Params) -> list[Port]:
        return [*two(p.width), inp("s", 1, *SELECT)]

    def tells(self, p: Params, n: Names) -> list[str]:
        one, zero = (self.WORDS.get(o, self.OPS[o][0]).format(a=n.a, b=n.b) for o in (p.one, p.zero))
        return [
            f"{n.y} is {one} when {n.s} is 1 and {zero} when {n.s} is 0.",
            f"If {n.s} is high, {n.y} is {one}, else {zero}.",
            f"{n.s} chooses between two functions: 0 means {zero}, 1 means {one}. The result is {n.y}.",
            f"Compute {one} for {n.s} = 1 and {zero} for {n.s} = 0; output it on {n.y}.",
            f"The output {n.y} shows {zero} while {n.s} is low and {one} while {n.s} is high.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        one, zero = (self.OPS[o][0].format(a=n.a, b=n.b) for o in (p.one, p.zero))
        return f"{n.s} ? {one} : {zero}"

    def value(self, p: Params, x: Inputs) -> int:
        return int(self.OPS[p.one if x.s else p.zero][1](x.a, x.b))
