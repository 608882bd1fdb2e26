"""Families that compare without state: relations, extremes, magnitudes and ranges."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import WIDTHS, WORD, Gated, cast, kind, read, signed, two

RELATIONS = {
    "lt": ("<", "less than", ("lt", "less", "is_less", "below")),
    "eq": ("==", "equal to", ("eq", "equal", "same", "match")),
    "gt": (">", "greater than", ("gt", "greater", "is_more", "above")),
    "ge": (">=", "at least", ("ge", "at_least", "not_less", "gte")),
    "le": ("<=", "at most", ("le", "at_most", "not_more", "lte")),
    "ne": ("!=", "not equal to", ("ne", "differ", "unequal", "neq")),
}


def holds(relation: str, a: int, b: int) -> int:
    """Does the relation hold?"""
    return int({"lt": a < b, "eq": a == b, "gt": a > b, "ge": a >= b, "le": a <= b, "ne": a != b}[relation])


@register
class Comparator(Family):
    """One to three relations of two words, signed or not."""

    name = "comparator"
    modules = ("comparator", "compare", "cmp", "cmp_unit", "magnitude_cmp", "relation", "comp")

    def sample(self, rng: Random) -> dict[str, Any]:
        flags = rng.sample(tuple(RELATIONS), rng.choice((1, 2, 2, 3)))
        return {"width": rng.choice(WIDTHS), "signed": rng.randint(0, 1), "flags": flags}

    def ports(self, p: Params) -> list[Port]:
        return [*two(p.width), *(out(flag, 1, *RELATIONS[flag][2]) for flag in p.flags)]

    def says(self, p: Params, n: Names) -> list[str]:
        told = [(getattr(n, flag), RELATIONS[flag][1]) for flag in p.flags]
        return [
            f"Compare {n.a} and {n.b} as {kind(p)} numbers. "
            + " ".join(f"{y} is 1 if {n.a} is {word} {n.b}." for y, word in told),
            " ".join(f"{y} is high when {n.a} is {word} {n.b}." for y, word in told) + f" Both are {kind(p)}.",
            f"{n.a} and {n.b} are {kind(p)}. Set "
            + ", ".join(f"{y} when {n.a} is {word} {n.b}" for y, word in told)
            + ".",
            f"For {kind(p)} operands: "
            + "; ".join(f"{y} tells whether {n.a} is {word} {n.b}" for y, word in told)
            + ".",
            f"A comparison of {kind(p)} values: "
            + ", ".join(f"{y} goes high for {n.a} {word} {n.b}" for y, word in told)
            + ".",
        ]

    def body(self, p: Params, n: Names) -> str:
        a, b = cast(p, n.a), cast(p, n.b)
        return "".join(f"  assign {getattr(n, flag)} = {a} {RELATIONS[flag][0]} {b};\n" for flag in p.flags)

    def model(self, p: Params) -> Model:
        return Combinational(lambda x: {flag: holds(flag, read(p, x.a), read(p, x.b)) for flag in p.flags})


@register
class MinMax(Family):
    """The smaller word, the larger, or both."""

    name = "min_max"
    modules = ("min_max", "minmax", "extreme", "smaller", "larger", "sort2", "bound")

    def sample(self, rng: Random) -> dict[str, Any]:
        outs = rng.choice((["min"], ["max"], ["min", "max"]))
        return {"width": rng.choice(WIDTHS), "signed": rng.randint(0, 1), "outs": outs, "pick": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        pools = {"min": ("min", "lo", "smallest", "min_out", "low"), "max": ("max", "hi", "largest", "max_out", "high")}
        ports = [*two(p.width), *(out(role, p.width, *pools[role]) for role in p.outs)]
        return ports + ([out("first", 1, "first", "is_a", "a_wins", "from_a")] if p.pick else [])

    def says(self, p: Params, n: Names) -> list[str]:
        told = [(getattr(n, o), {"min": "smaller", "max": "larger"}[o]) for o in p.outs]
        relation = "less" if p.outs[0] == "min" else "greater"
        tail = f" {n.first} is 1 when {n.a} is {relation} than {n.b}." if p.pick else ""
        return [
            f"{n.a} and {n.b} are {kind(p)}. " + " ".join(f"{y} is the {word} of the two." for y, word in told) + tail,
            f"As {kind(p)} numbers, "
            + " and ".join(f"the {word} of {n.a} and {n.b} goes to {y}" for y, word in told)
            + "."
            + tail,
            f"Compare {n.a} with {n.b} ({kind(p)}) and put "
            + " and ".join(f"the {word} on {y}" for y, word in told)
            + "."
            + tail,
            " ".join(f"{y} shows the {word} one of {n.a} and {n.b}." for y, word in told)
            + f" The numbers are {kind(p)}."
            + tail,
            f"Of the {kind(p)} inputs {n.a} and {n.b}, "
            + " and ".join(f"{y} gets the {word}" for y, word in told)
            + "."
            + tail,
        ]

    def body(self, p: Params, n: Names) -> str:
        a, b, lines = cast(p, n.a), cast(p, n.b), ""
        for role in p.outs:
            lines += f"  assign {getattr(n, role)} = {a} {'<' if role == 'min' else '>'} {b} ? {n.a} : {n.b};\n"
        if p.pick:
            lines += f"  assign {n.first} = {a} {'<' if p.outs[0] == 'min' else '>'} {b};\n"
        return lines

    def model(self, p: Params) -> Model:
        def extremes(x: Inputs) -> dict[str, int]:
            a, b = read(p, x.a), read(p, x.b)
            return {"min": min(a, b), "max": max(a, b), "first": int(a < b if p.outs[0] == "min" else a > b)}

        return Combinational(extremes)


@register
class Absolute(Gated):
    """Absolute value, negation, or the negated absolute value, and distance from a constant."""

    name = "absolute"
    modules = ("absolute", "abs_val", "abs", "magnitude", "sign_strip", "abs_unit", "negate")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice(WIDTHS), "op": rng.choice(("abs", "neg", "negabs", "onlypos", "onlyneg", "abs1"))}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD)]

    def tells(self, p: Params, n: Names) -> list[str]:
        word = {
            "abs": f"the absolute value of {n.a}",
            "neg": f"{n.a} negated (0 - {n.a})",
            "negabs": f"minus the absolute value of {n.a}",
            "onlypos": f"{n.a} if {n.a} is not negative, else 0",
            "onlyneg": f"{n.a} if {n.a} is negative, else 0",
            "abs1": f"{n.a} if {n.a} is not negative, else the bitwise complement of {n.a}",
        }[p.op]
        return [
            f"{n.a} is a signed two's complement number. {n.y} is {word}.",
            f"Compute {word} and put it on {n.y}; {n.a} is signed.",
            f"{n.y} gives {word}, where {n.a} is in two's complement.",
            f"Read {n.a} as a signed number of {p.width} bits. Output {word} on {n.y}.",
            f"For signed {n.a}, the output {n.y} equals {word}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        sign, a = f"{n.a}[{p.width - 1}]", n.a
        return {
            "abs": f"{sign} ? -{a} : {a}",
            "neg": f"-{a}",
            "negabs": f"{sign} ? {a} : -{a}",
            "onlypos": f"{sign} ? 0 : {a}",
            "onlyneg": f"{sign} ? {a} : 0",
            "abs1": f"{sign} ? ~{a} : {a}",
        }[p.op]

    def value(self, p: Params, x: Inputs) -> int:
        a = signed(x.a, p.width)
        table = {"abs": abs(a), "neg": -a, "negabs": -abs(a), "onlypos": max(a, 0), "onlyneg": min(a, 0)}
        return table.get(p.op, a if a >= 0 else ~a)


RANGE_POOLS = {
    "inside": ("inside", "in_range", "ok", "good"),
    "outside": ("outside", "out_range", "alarm", "bad"),
    "below": ("below", "too_low", "under", "cold"),
    "above": ("above", "too_high", "over", "hot"),
    "at": ("at", "exact", "at_limit", "edge_hit"),
    "strict": ("within", "strict_in", "middle", "safe"),
}


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

    def ports(self, p: Params) -> list[Port]:
        return [inp("d", p.width, *WORD), *(out(flag, 1, *RANGE_POOLS[flag]) for flag in p.flags)]

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
