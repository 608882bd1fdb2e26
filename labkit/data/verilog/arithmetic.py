"""Families of arithmetic without state: sums, comparisons, shifts, tables of operations."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.combinational import WIDTHS, bits
from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import AMOUNT, RESULT, WORD, WORD_A, WORD_B, Gated, signed

CARRY_IN = ("cin", "carry_in", "ci", "c_in")
CARRY_OUT = ("cout", "carry_out", "co", "c_out")
SUM = ("sum", "s", "y", "total", "result", "out")


def two(width: int) -> list[Port]:
    """Two operands `a` and `b`."""
    return [inp("a", width, *WORD_A), inp("b", width, *WORD_B)]


def kind(p: Params) -> str:
    """`"signed"` or `"unsigned"`."""
    return "signed" if p.signed else "unsigned"


def cast(p: Params, name: str) -> str:
    """The name, read as a signed number if the design is signed."""
    return f"$signed({name})" if p.signed else name


def read(p: Params, word: int) -> int:
    """The number that a word of the design's width means."""
    return signed(word, p.width) if p.signed else word


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
                f"{n.a} is shifted by {n.n} places, to the {zero} when {n.dir} is 0 and to the {one} when {n.dir} is 1, giving {n.y}. Zeros come in.",
                f"Shift {n.a} {one} by {n.n} if {n.dir} is high, otherwise {zero}, filling with zeros. The result is {n.y}.",
                f"{n.dir} gives the direction (0 {zero}, 1 {one}) and {n.n} the distance of a shift of {n.a}; {n.y} is the zero-filled result.",
                f"{n.y} is {n.a} shifted {zero} by {n.n} for {n.dir} = 0, {one} for {n.dir} = 1, with zeros shifted in.",
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
