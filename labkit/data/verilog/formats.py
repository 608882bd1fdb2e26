"""Families that rearrange or scale a word, without state."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import WIDTHS, WORD, Gated, signed


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
        if p.op == "select":
            table["select"] = s if x.s else x.a
        result = table[p.op]
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
