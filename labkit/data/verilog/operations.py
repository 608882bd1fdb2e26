"""Families that choose an operation, without state: tables, shifts and rotations."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import AMOUNT, RESULT, SELECT, WIDTHS, WORD, Gated, signed, two

OPERATIONS = {
    "add": ("{a} + {b}", lambda a, b: a + b),
    "sub": ("{a} - {b}", lambda a, b: a - b),
    "rsub": ("{b} - {a}", lambda a, b: b - a),
    "and": ("{a} & {b}", lambda a, b: a & b),
    "or": ("{a} | {b}", lambda a, b: a | b),
    "xor": ("{a} ^ {b}", lambda a, b: a ^ b),
    "not": ("~{a}", lambda a, b: ~a),
    "pass": ("{b}", lambda a, b: b),
    "inc": ("{a} + 1", lambda a, b: a + 1),
    "dec": ("{a} - 1", lambda a, b: a - 1),
    "shl": ("{a} << 1", lambda a, b: a << 1),
    "shr": ("{a} >> 1", lambda a, b: a >> 1),
    "lt": ("{a} < {b}", lambda a, b: int(a < b)),
    "eq": ("{a} == {b}", lambda a, b: int(a == b)),
}


OPERATION_WORDS = {
    "add": "{a} + {b}", "sub": "{a} - {b}", "rsub": "{b} - {a}", "and": "{a} AND {b}", "or": "{a} OR {b}",
    "xor": "{a} XOR {b}", "not": "NOT {a}", "pass": "{b}", "inc": "{a} + 1", "dec": "{a} - 1",
    "shl": "{a} shifted left by 1", "shr": "{a} shifted right by 1", "lt": "1 if {a} < {b} else 0",
    "eq": "1 if {a} equals {b} else 0",
}  # fmt: skip


@register
class Alu(Family):
    """A table of three or four operations."""

    name = "alu"
    modules = ("alu", "alu_unit", "op_unit", "calc", "mini_alu", "exec_unit", "arith_logic")

    def sample(self, rng: Random) -> dict[str, Any]:
        ops = rng.sample(tuple(OPERATIONS), rng.choice((3, 4, 4)))
        return {"width": rng.choice(WIDTHS), "ops": ops, "zero": int(rng.random() < 0.25)}

    def ports(self, p: Params) -> list[Port]:
        ports = [
            *two(p.width),
            inp("op", 2, "op", "sel", "func", "opcode", "cmd"),
            out("y", p.width, *RESULT, reg=True),
        ]
        return ports + ([out("zero", 1, "zero", "is_zero", "z_flag")] if p.zero else [])

    def says(self, p: Params, n: Names) -> list[str]:
        table = [OPERATION_WORDS[op].format(a=n.a, b=n.b) for op in p.ops]
        tail = f" For {n.op} = 3, {n.y} is 0." if len(p.ops) == 3 else ""
        tail += f" {n.zero} is 1 when {n.y} is 0." if p.zero else ""
        return [
            f"{n.op} selects what {n.y} is: " + ", ".join(f"{i}: {w}" for i, w in enumerate(table)) + f".{tail}",
            f"{n.y} is " + ", ".join(f"{w} for {n.op} = {i}" for i, w in enumerate(table)) + f".{tail}",
            f"By the code {n.op}: " + "; ".join(f"{i} gives {n.y} = {w}" for i, w in enumerate(table)) + f".{tail}",
            f"Operations on {n.a} and {n.b}, result on {n.y}: "
            + ", ".join(f"{n.op} {i} = {w}" for i, w in enumerate(table))
            + f".{tail}",
            "When " + ", when ".join(f"{n.op} is {i}, {n.y} shows {w}" for i, w in enumerate(table)) + f".{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        table = [OPERATIONS[op][0].format(a=n.a, b=n.b) for op in p.ops]
        lines = "".join(f"      {i}: {n.y} = {w};\n" for i, w in enumerate(table[:3]))
        last = table[3] if len(table) == 4 else "0"
        zero = f"  assign {n.zero} = {n.y} == 0;\n" if p.zero else ""
        return f"  always @*\n    case ({n.op})\n{lines}      default: {n.y} = {last};\n    endcase\n{zero}"

    def model(self, p: Params) -> Model:
        def run(x: Inputs) -> dict[str, int]:
            result = OPERATIONS[p.ops[x.op]][1](x.a, x.b) if x.op < len(p.ops) else 0
            return {"y": result, "zero": int(result % (1 << p.width) == 0)}

        return Combinational(run)


@register
class Shifter(Gated):
    """A shift by an input, in one direction or in one that another input gives."""

    name = "shifter"
    modules = ("shifter", "shift_unit", "barrel", "barrel_shift", "var_shift", "shift_block", "shl_shr")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((4, 6, 8, 12, 16, 24, 32))
        return {"width": width, "op": rng.choice(("left", "right", "arith", "lr", "rl"))}

    def inputs(self, p: Params) -> list[Port]:
        ports = [inp("a", p.width, *WORD), inp("n", (p.width - 1).bit_length(), *AMOUNT)]
        return ports + ([inp("dir", 1, "dir", "direction", "lr", "way")] if p.op in ("lr", "rl") else [])

    def tells(self, p: Params, n: Names) -> list[str]:
        if p.op in ("lr", "rl"):
            zero, one = ("left", "right") if p.op == "lr" else ("right", "left")
            return [
                f"{n.a} is shifted by {n.n} places, to the {zero} when {n.dir} is 0 and to the {one} when {n.dir} is "
                f"1, giving {n.y}. Zeros come in.",
                f"Shift {n.a} {one} by {n.n} if {n.dir} is high, otherwise {zero}, filling with zeros. The result is "
                f"{n.y}.",
                f"{n.dir} gives the direction (0 {zero}, 1 {one}) and {n.n} the distance of a shift of {n.a}; {n.y} "
                f"is the zero-filled result.",
                f"{n.y} is {n.a} shifted {zero} by {n.n} for {n.dir} = 0, {one} for {n.dir} = 1, with zeros shifted "
                f"in.",
                f"Move {n.a} by {n.n} bits ({n.dir} = 1: {one}, {n.dir} = 0: {zero}); empty bits of {n.y} are 0.",
            ]
        way = "left" if p.op == "left" else "right"
        fill = "copies of the sign bit" if p.op == "arith" else "zeros"
        return [
            f"{n.y} is {n.a} shifted {way} by {n.n} places, filled with {fill}.",
            f"Shift {n.a} to the {way} by the amount {n.n}; {fill} come in. The result is {n.y}.",
            f"The number {n.n} says how far {n.a} moves {way}. {n.y} is the result, with {fill} in the free bits.",
            f"Move the bits of {n.a} {n.n} places {way} and fill with {fill} to get {n.y}.",
            f"A shift of {n.a} {way}, by {n.n}, drives {n.y}; free places are {fill}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        left, right = f"{n.a} << {n.n}", f"{n.a} >> {n.n}"
        if p.op in ("lr", "rl"):
            return f"{n.dir} ? {right} : {left}" if p.op == "lr" else f"{n.dir} ? {left} : {right}"
        return {"left": left, "right": right, "arith": f"$signed({n.a}) >>> {n.n}"}[p.op]

    def value(self, p: Params, x: Inputs) -> int:
        if p.op == "arith":
            return signed(x.a, p.width) >> x.n
        left = p.op == "left" or (p.op in ("lr", "rl") and x.dir == (p.op == "rl"))
        return x.a << x.n if left else x.a >> x.n


@register
class Rotate(Gated):
    """A rotation or shift by a constant."""

    name = "rotate"
    modules = ("rotate", "rotator", "rot", "rot_const", "spin", "cyclic_shift", "rol_ror")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice(WIDTHS[2:])
        ops = ("rol", "ror", "shl", "shr", "shl1", "shr1", "ror", "rol")
        return {
            "width": width,
            "op": rng.choice(ops),
            "by": rng.randint(1, min(width - 1, 9)),
            "invert": rng.randint(0, 1),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD)]

    def tells(self, p: Params, n: Names) -> list[str]:
        way = "left" if p.op in ("rol", "shl", "shl1") else "right"
        places = f"{p.by} place" + ("s" if p.by > 1 else "")
        note = " Then every bit is inverted." if p.invert else ""
        if p.op in ("rol", "ror"):
            return [
                f"{n.y} is {n.a} rotated {way} by {places}.{note}",
                f"Rotate {n.a} to the {way} by {p.by}; bits that leave come in at the other end of {n.y}.{note}",
                f"A cyclic shift of {n.a} by {places} to the {way} gives {n.y}.{note}",
                f"Move every bit of {n.a} {places} {way}, around the end, to get {n.y}.{note}",
                f"{n.a} turned {way} by {places} (rotation) appears on {n.y}.{note}",
            ]
        fill = "ones" if p.op.endswith("1") else "zeros"
        return [
            f"{n.y} is {n.a} shifted {way} by {places}, with {fill} shifted in.{note}",
            f"Shift {n.a} to the {way} by {p.by}; {fill} come in. The result is {n.y}.{note}",
            f"A fixed shift of {n.a} by {places} to the {way}, filled with {fill}, gives {n.y}.{note}",
            f"Move every bit of {n.a} {places} {way} to get {n.y}; free bits are {fill}.{note}",
            f"{n.a} pushed {way} by {places} appears on {n.y}, the gap holds {fill}.{note}",
        ]

    def expression(self, p: Params, n: Names) -> str:
        w, k, a = p.width, p.by, n.a
        high, low = f"{a}[{w - k - 1}:0]", f"{a}[{w - 1}:{k}]"
        inner = {
            "rol": f"{{{high}, {a}[{w - 1}:{w - k}]}}",
            "ror": f"{{{a}[{k - 1}:0], {low}}}",
            "shl": f"{{{high}, {k}'d0}}",
            "shr": f"{{{k}'d0, {low}}}",
            "shl1": f"{{{high}, {{{k}{{1'b1}}}}}}",
            "shr1": f"{{{{{k}{{1'b1}}}}, {low}}}",
        }[p.op]
        return ("~" if p.invert else "") + inner

    def value(self, p: Params, x: Inputs) -> int:
        w, k, ones = p.width, p.by, (1 << p.by) - 1
        result = {
            "rol": x.a << k | x.a >> (w - k),
            "ror": x.a >> k | x.a << (w - k),
            "shl": x.a << k,
            "shr": x.a >> k,
            "shl1": x.a << k | ones,
            "shr1": x.a >> k | ones << (w - k),
        }[p.op]
        return ~result if p.invert else result


FUNCTION_WORDS = {"and": "{a} AND {b}", "or": "{a} OR {b}", "xor": "{a} XOR {b}", "nota": "NOT {a}", "notb": "NOT {b}"}


FUNCTIONS = {
    "add": ("{a} + {b}", lambda a, b: a + b),
    "sub": ("{a} - {b}", lambda a, b: a - b),
    "and": ("{a} & {b}", lambda a, b: a & b),
    "or": ("{a} | {b}", lambda a, b: a | b),
    "xor": ("{a} ^ {b}", lambda a, b: a ^ b),
    "nota": ("~{a}", lambda a, b: ~a),
    "notb": ("~{b}", lambda a, b: ~b),
}


@register
class SelectOp(Gated):
    """One of two functions of two words, chosen by one bit."""

    name = "select_op"
    modules = ("select_op", "dual_op", "two_ops", "mode_unit", "func_sel", "either", "op_mux")

    def draw(self, rng: Random) -> dict[str, Any]:
        one, zero = rng.sample(tuple(FUNCTIONS), 2)
        return {"width": rng.choice(WIDTHS), "one": one, "zero": zero}

    def inputs(self, p: Params) -> list[Port]:
        return [*two(p.width), inp("s", 1, *SELECT)]

    def tells(self, p: Params, n: Names) -> list[str]:
        one, zero = (FUNCTION_WORDS.get(o, FUNCTIONS[o][0]).format(a=n.a, b=n.b) for o in (p.one, p.zero))
        return [
            f"{n.y} is {one} when {n.s} is 1 and {zero} when {n.s} is 0.",
            f"If {n.s} is high, {n.y} is {one}, else {zero}.",
            f"{n.s} chooses between two functions: 0 means {zero}, 1 means {one}. The result is {n.y}.",
            f"Compute {one} for {n.s} = 1 and {zero} for {n.s} = 0; output it on {n.y}.",
            f"The output {n.y} shows {zero} while {n.s} is low and {one} while {n.s} is high.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        one, zero = (FUNCTIONS[o][0].format(a=n.a, b=n.b) for o in (p.one, p.zero))
        return f"{n.s} ? {one} : {zero}"

    def value(self, p: Params, x: Inputs) -> int:
        return int(FUNCTIONS[p.one if x.s else p.zero][1](x.a, x.b))
