"""Families of logic without state: gates, reductions, votes, masks and neighbouring bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import GATES, INPUTS, POOLS, WIDTHS, WORD, Gated, bitwise, listed, two


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
        result = bitwise(p.op, words)
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
            f"{n.a} and {n.b} are combined by a bitwise {one}; the result is combined with {n.c} by {two}{end}, "
            f"giving {n.y}.",
            f"First {one} {n.a} with {n.b}, then {two} that with {n.c}{end}; the result is {n.y}.",
            f"{n.y} is the {two} of {n.c} and ({n.a} {one} {n.b}){end}, bit by bit.",
            f"A {one} gate takes {n.a} and {n.b}. A {two} gate takes its output and {n.c}{end}. It drives {n.y}.",
            f"Output {n.y}: ({n.a} {one} {n.b}) {two} {n.c}{end}, for every bit.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        inner = f"({n.a} {GATES[p.first]} {n.b}) {GATES[p.second]} {n.c}"
        return f"~({inner})" if p.invert else inner

    def value(self, p: Params, x: Inputs) -> int:
        result = bitwise(p.second, [bitwise(p.first, [x.a, x.b]), x.c])
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
class Majority(Gated):
    """At least, exactly or fewer than some of three or four inputs agree."""

    name = "majority"
    modules = ("majority", "voter", "vote", "maj3", "quorum", "tally", "two_of_three")
    results = ("y", "vote", "maj", "result", "out", "agree")

    def draw(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((3, 3, 4))
        return {
            "inputs": n,
            "need": rng.randint(2, n - 1),
            "invert": rng.randint(0, 1),
            "width": rng.choice((1, 1, 2, 4, 8)),
            "zeros": rng.randint(0, 1),
        }

    def inputs(self, p: Params) -> list[Port]:
        pools = (("a", "x", "v0", "in0"), ("b", "w", "v1", "in1"), ("c", "z_in", "v2", "in2"), ("d", "u", "v3", "in3"))
        return [inp(pool[0], p.width, *pool) for pool in pools[: p.inputs]]

    def _names(self, p: Params, n: Names) -> list[str]:
        return [getattr(n, role) for role in "abcd"[: p.inputs]]

    def tells(self, p: Params, n: Names) -> list[str]:
        names = self._names(p, n)
        every = f"{', '.join(names[:-1])} and {names[-1]}"
        yes, bit, each = ("0" if p.invert else "1"), ("0" if p.zeros else "1"), ""
        if p.width > 1:
            each = " This holds for every bit place."
        return [
            f"{n.y} is {yes} when at least {p.need} of {every} are {bit}.{each}",
            f"If {p.need} or more of {every} are {bit}, {n.y} is {yes}, otherwise the opposite.{each}",
            f"Of the inputs {every}, {p.need} at {bit} suffice to make {n.y} {yes}.{each}",
            f"A vote among {every}: {n.y} becomes {yes} with {p.need} or more inputs at {bit}.{each}",
            f"{n.y} goes to {yes} exactly if {bit} occurs at least {p.need} times among {every}.{each}",
        ]

    def expression(self, p: Params, n: Names) -> str:
        names = [f"{'~' if p.zeros else ''}{name}" for name in self._names(p, n)]
        joined = " | ".join(" & ".join(group) for group in combinations(names, p.need))
        return f"~({joined})" if p.invert else joined

    def value(self, p: Params, x: Inputs) -> int:
        result = 0
        for place in range(p.width):
            votes = sum((getattr(x, role) >> place & 1) != p.zeros for role in "abcd"[: p.inputs])
            result |= (votes >= p.need) << place
        return ~result if p.invert else result


TRICKS: dict[str, tuple[str, str, Callable[[int, int], int]]] = {
    "isolate": ("{d} & -{d}", "only the lowest 1 of {d} kept", lambda d, w: d & ~(d - 1)),
    "clear": ("{d} & ({d} - 1)", "{d} with its lowest 1 cleared", lambda d, w: d - (d & ~(d - 1))),
    "set": ("{d} | ({d} + 1)", "{d} with its lowest 0 set to 1", lambda d, w: d + ((d + 1) & ~d)),
    "zero": ("~{d} & ({d} + 1)", "a 1 only at the place of the lowest 0 of {d}", lambda d, w: (d + 1) & ~d),
    "below": ("~{d} & ({d} - 1)", "ones below the lowest 1 of {d} and zeros elsewhere", lambda d, w: (d & -d) - 1),
    "upto": ("{d} ^ ({d} - 1)", "ones up to and including the lowest 1 of {d}", lambda d, w: 2 * (d & -d) - 1),
    "edges": ("{d} ^ ({d} >> 1)", "each bit of {d} XOR the bit above it", lambda d, w: d ^ d // 2),
    "pairs": ("{d} & ({d} >> 1)", "each bit of {d} AND the bit above it", lambda d, w: d & d // 2),
    "spread": ("{d} | ({d} << 1)", "each bit of {d} OR the bit below it", lambda d, w: d | d * 2),
}


@register
class BitTrick(Gated):
    """The lowest bits and neighbours of a word, by one expression."""

    name = "bit_trick"
    modules = ("bit_trick", "lowest_bit", "bit_tool", "neighbour", "low_bit", "grant_low", "bit_twiddle")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"width": rng.choice(WIDTHS[1:]), "op": rng.choice(tuple(TRICKS)), "invert": int(rng.random() < 0.3)}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("d", p.width, *WORD)]

    def tells(self, p: Params, n: Names) -> list[str]:
        what = TRICKS[p.op][1].format(d=n.d)
        note = ", all bits inverted" if p.invert else ""
        return [
            f"{n.y} is {what}{note}.",
            f"Compute {what}{note}; the result goes to {n.y}.",
            f"The output {n.y} shows {what}{note}.",
            f"From {n.d} make {n.y}: {what}{note}.",
            f"Drive {n.y} with {what}{note}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        inner = TRICKS[p.op][0].format(d=n.d)
        return f"~({inner})" if p.invert else inner

    def value(self, p: Params, x: Inputs) -> int:
        result = TRICKS[p.op][2](x.d, p.width)
        return ~result if p.invert else result

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"d": 1 << i} for i in range(p.width)][:12] + [{"d": (1 << i) - 1} for i in range(p.width)][:12]


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
