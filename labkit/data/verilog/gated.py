"""What the combinational families share: an output that is one expression, perhaps gated by an enable."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out

ENABLES = ("none", "none", "none", "high", "low")
WORD_A = ("a", "x", "in0", "op_a", "lhs", "data_a", "first", "left_in")
WORD_B = ("b", "y_in", "in1", "op_b", "rhs", "data_b", "second", "right_in")
WORD = ("a", "x", "din", "data", "value", "word", "in_data", "vec", "src")
RESULT = ("y", "out", "result", "dout", "q", "res", "f", "z")
AMOUNT = ("sh", "amt", "shift", "amount", "n", "dist")
SELECT = ("sel", "s", "select", "pick", "choice", "which")

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
GATES = {"and": "&", "or": "|", "xor": "^"}
INPUTS = ("a", "b", "c", "d")
POOLS = (
    ("a", "x", "in0", "p", "first"),
    ("b", "y_in", "in1", "q_in", "second"),
    ("c", "z_in", "in2", "r", "third"),
    ("d", "w", "in3", "u", "fourth"),
)  # of the inputs a, b, c, d
CARRY_IN = ("cin", "carry_in", "ci", "c_in")
CARRY_OUT = ("cout", "carry_out", "co", "c_out")
SUM = ("sum", "s", "y", "total", "result", "out")
REQUESTS = ("req", "lines", "in", "d", "irq", "requests", "vec")
NUMBER = ("pos", "idx", "code", "num", "index", "y")
COUNT = ("cnt", "count", "n_out", "num", "total", "y")
VALID = ("valid", "any", "found", "v", "hit")


def enable_ports(p: Params) -> list[Port]:
    """The enable's port, if the design has one."""
    if p.enable == "high":
        return [inp("en", 1, "en", "enable", "oe", "active", "on")]
    return [inp("en_n", 1, "en_n", "enable_n", "oe_n", "off", "disable_n")] if p.enable == "low" else []


def gate(p: Params, n: Names, expression: str) -> str:
    """The expression, or 0 while the design is not enabled."""
    inner = f"({expression})" if "?" in expression else expression
    if p.enable == "high":
        return f"{n.en} ? {inner} : 0"
    return f"{n.en_n} ? 0 : {inner}" if p.enable == "low" else expression


def enabled(p: Params, x: Inputs) -> bool:
    """Does the enable let the result through?"""
    return {"high": lambda: x.en == 1, "low": lambda: x.en_n == 0, "none": lambda: True}[p.enable]()


def gate_says(p: Params, n: Names, y: str, k: int) -> str:
    """A sentence on the enable of output `y`, the `k`-th of five wordings; empty without an enable."""
    if p.enable == "none":
        return ""
    en, idle, live = (n.en, 0, 1) if p.enable == "high" else (n.en_n, 1, 0)
    return (
        f" While {en} is {idle}, {y} is 0.",
        f" If {en} is not {live}, {y} is 0.",
        f" The enable {en} is active {'high' if live else 'low'}; when inactive, {y} is zero.",
        f" This holds for {en} = {live}; for {en} = {idle}, {y} is 0.",
        f" {y} is forced to zero as long as {en} equals {idle}.",
    )[k % 5]


class Gated(Family):
    """A family with one output `y` that is an expression of its inputs, gated by an optional enable.

    A subclass gives `draw` (parameters), `inputs`, `width` of the output, `tells` (five or more descriptions),
    `expression` in Verilog and `value` in Python.
    """

    results: tuple[str, ...] = RESULT

    def draw(self, rng: Random) -> dict[str, Any]:
        """Parameters without the enable."""
        raise RuntimeError(f"{type(self).__name__} has no draw")

    def inputs(self, p: Params) -> list[Port]:
        """Data inputs."""
        raise RuntimeError(f"{type(self).__name__} has no inputs")

    def width(self, p: Params) -> int:
        """Bits of the output."""
        return int(p.width)

    def tells(self, p: Params, n: Names) -> list[str]:
        """Descriptions of the result, the last one held out."""
        raise RuntimeError(f"{type(self).__name__} has no tells")

    def expression(self, p: Params, n: Names) -> str:
        """The result in Verilog."""
        raise RuntimeError(f"{type(self).__name__} has no expression")

    def value(self, p: Params, x: Inputs) -> int:
        """The result in Python; the testbench takes its low bits."""
        raise RuntimeError(f"{type(self).__name__} has no value")

    def sample(self, rng: Random) -> dict[str, Any]:
        return self.draw(rng) | {"enable": rng.choice(ENABLES)}

    def ports(self, p: Params) -> list[Port]:
        return [*self.inputs(p), *enable_ports(p), out("y", self.width(p), *self.results)]

    def says(self, p: Params, n: Names) -> list[str]:
        return [told + gate_says(p, n, n.y, k) for k, told in enumerate(self.tells(p, n))]

    def body(self, p: Params, n: Names) -> str:
        return f"  assign {n.y} = {gate(p, n, self.expression(p, n))};\n"

    def model(self, p: Params) -> Model:
        return Combinational(lambda x: {"y": self.value(p, x) if enabled(p, x) else 0})


def signed(value: int, width: int) -> int:
    """The two's complement reading of an unsigned word."""
    return value - (1 << width) if value >> (width - 1) else value


def bits(width: int) -> str:
    """`"1 bit"` or `"8 bits"`."""
    return "1 bit" if width == 1 else f"{width} bits"


def listed(names: list[str]) -> str:
    """`"a, b and c"`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def bitwise(op: str, words: list[int]) -> int:
    """All words joined bit by bit by "and", "or" or "xor"."""
    return reduce({"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[op], words)


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


def ones(word: int) -> int:
    """How many bits are set."""
    return f"{word:b}".count("1")


def one_hot_words(width: int, role: str) -> list[dict[str, int]]:
    """Inputs of a testbench: nothing set, then each bit of the port `role` alone; at most 24."""
    return [{role: word} for word in (0, *(1 << i for i in range(width)))][:24]
