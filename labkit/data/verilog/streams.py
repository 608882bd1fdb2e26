"""Clocked families that digest a stream of values: sums, extremes, parity, serial arithmetic."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register

DATA = ("d", "din", "sample", "data_in", "x", "value_in")
BIT = ("x", "bit_in", "din", "serial_in", "s_in", "rx")


@register
class Accumulator(Family):
    """A running sum, wrapping or saturating, that can add or subtract."""

    name = "accumulator"
    modules = ("accumulator", "accum", "running_sum", "integrator", "adder_reg", "sum_unit")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.randint(4, 12)
        return control(rng) | {
            "width": width,
            "d_width": rng.choice((width, rng.randint(2, width))),
            "kind": rng.choice(("add", "sub", "load")),
        }

    def ports(self, p: Params) -> list[Port]:
        load = [inp("load", 1, "first", "load", "restart", "new_sum")] if p.kind == "load" else []
        return [
            *control_ports(p),
            *load,
            inp("d", p.d_width, *DATA),
            out("q", p.width, "acc", "total", "sum", "result", "q", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        act = f"{n.d} is subtracted from {n.q}" if p.kind == "sub" else f"{n.d} is added to {n.q}"
        if p.kind == "load":
            act = f"{n.q} becomes {n.d} if {n.load} is 1, else {act}"
        w, v = p.width, p.d_width
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"An accumulator of {w} bits: on each rising edge of {n.clk}, {act}. The result wraps modulo {2**w}.",
            f"At the rising edge of {n.clk}, {act}. {n.d} is unsigned with {v} bits; {n.q} has {w} and overflows "
            "silently.",
            f"As {n.clk} rises, {act}, in {w}-bit unsigned arithmetic without saturation.",
            f"{n.q} is a {w}-bit register. With every rising edge of {n.clk}, {act} ({v} bits, unsigned), and carries "
            f"out of {w} bits are lost.",
            f"Each rising {n.clk} brings a {v}-bit value {n.d}: {act}. Only {w} bits are kept.",
        )

    def body(self, p: Params, n: Names) -> str:
        total = f"{n.q} <= {n.q} {'-' if p.kind == 'sub' else '+'} {n.d};"
        return always(
            p, n, f"{n.q} <= 0;", f"if ({n.load}) {n.q} <= {n.d};\nelse {total}" if p.kind == "load" else total
        )

    def model(self, p: Params) -> Model:
        def step(s: int, x: Inputs) -> int:
            if p.kind == "load" and x.load:
                return x.d
            return (s - x.d if p.kind == "sub" else s + x.d) % 2**p.width

        return Clocked(p, 0, step, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"d": 2**p.d_width - 1, "en": 1, "load": 0}] * min(2 ** (p.width - p.d_width) + 2, 70)


@register
class SaturatingAccumulator(Family):
    """A running sum that stops at its limit."""

    name = "saturating_accumulator"
    modules = ("sat_accum", "saturating_acc", "clip_sum", "limited_sum", "sat_integrator", "budget")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(3, 10), "sub": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("d", p.width, *DATA),
            out("q", p.width, "acc", "total", "level", "result", "q", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        top = 2**p.width - 1
        act = f"{n.d} is subtracted from {n.q}" if p.sub else f"{n.d} is added to {n.q}"
        limit = "a result below 0 becomes 0" if p.sub else f"a sum above {top} becomes {top}"
        return tell(
            p,
            n,
            f"{n.q} becomes {top if p.sub else 0}",
            f"A saturating accumulator of {p.width} bits: on each rising edge of {n.clk}, {act}, and {limit}.",
            f"At the rising edge of {n.clk}, {act} (unsigned, {p.width} bits); it does not wrap: {limit}.",
            f"As {n.clk} rises, {act}, with saturation in {p.width} bits, so {limit}.",
            f"{n.q} ({p.width} bits, unsigned) is clipped: with every rising edge of {n.clk}, {act}, and {limit}.",
            f"Each rising {n.clk}: {act}. There is no wrap-around in the {p.width} bits; instead {limit}.",
        )

    def body(self, p: Params, n: Names) -> str:
        if p.sub:
            return always(p, n, f"{n.q} <= {2**p.width - 1};", f"{n.q} <= {n.q} < {n.d} ? 0 : {n.q} - {n.d};")
        text = f"  wire [{p.width}:0] total_w = {n.q} + {n.d};\n"
        return text + always(p, n, f"{n.q} <= 0;", f"{n.q} <= total_w[{p.width}] ? {2**p.width - 1} : total_w;")

    def model(self, p: Params) -> Model:
        top = 2**p.width - 1

        def step(s: int, x: Inputs) -> int:
            return max(s - x.d, 0) if p.sub else min(s + x.d, top)

        return Clocked(p, top if p.sub else 0, step, lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        top, half = 2**p.width - 1, 2 ** (p.width - 1)
        again = {"rst": 1 - p.low}
        tries = [(1, half), (half - 1, half), (half, half), (top, 1), (top, top), (top - 1, 1), (top - 1, 2), (1, 1)]
        return [v for a, b in tries for v in (again, {"d": a, "en": 1}, {"d": b, "en": 1}, {"d": 0, "en": 1})]


@register
class RunningExtreme(Family):
    """The largest or smallest value seen."""

    name = "running_extreme"
    modules = ("running_max", "extreme", "peak_hold", "peak_detect", "record_keeper", "best_value")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {
            "width": rng.randint(3, 12),
            "kind": rng.choice(("max", "min")),
            "signed": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("d", p.width, *DATA),
            out("q", p.width, "peak", "best", "extreme_out", "record", "q", reg=True),
        ]

    def _start(self, p: Params) -> int:
        if p.signed:
            return 2 ** (p.width - 1) - (p.kind == "min")
        return 0 if p.kind == "max" else 2**p.width - 1

    def says(self, p: Params, n: Names) -> list[str]:
        word, more = ("largest", "greater") if p.kind == "max" else ("smallest", "less")
        sign = "signed (two's complement)" if p.signed else "unsigned"
        return tell(
            p,
            n,
            f"{n.q} becomes {self._start(p)}",
            f"{n.q} keeps the {word} value of {n.d} seen at rising edges of {n.clk}. Both are {p.width} bits, {sign}.",
            f"At each rising edge of {n.clk}, {n.q} takes {n.d} if {n.d} is {more} than {n.q}; otherwise it holds. "
            f"The {p.width}-bit values are {sign}.",
            f"Remember the {word} {p.width}-bit {n.d} in {n.q}: as {n.clk} rises, store {n.d} when it is {more} than "
            f"{n.q}, compared as {sign} numbers.",
            f"With every rising edge of {n.clk}, compare {n.d} with {n.q} as {sign} {p.width}-bit numbers and copy it "
            f"when it is {more}.",
            f"The {word} so far: {n.q} is replaced by {n.d} at a rising {n.clk} whenever {n.d} is {more}. Numbers of "
            f"{p.width} bits, {sign}.",
        )

    def body(self, p: Params, n: Names) -> str:
        sign = ">" if p.kind == "max" else "<"
        test = f"$signed({n.d}) {sign} $signed({n.q})" if p.signed else f"{n.d} {sign} {n.q}"
        return always(p, n, f"{n.q} <= {self._start(p)};", f"if ({test}) {n.q} <= {n.d};")

    def model(self, p: Params) -> Model:
        def number(code: int) -> int:
            return code - 2**p.width if p.signed and code >= 2 ** (p.width - 1) else code

        best = max if p.kind == "max" else min
        return Clocked(p, self._start(p), lambda s, x: best(s, x.d, key=number), lambda s, x: {"q": s})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        half, full = 2 ** (p.width - 1), 2**p.width
        rising = [half - 2, half - 1, half, half + 1, full - 2, full - 1, 0, 1, 2, half - 1]
        order = rising if p.kind == "max" else rising[::-1]
        cycle = order[4:] + order[:4]
        return [v for values in (order, cycle) for v in ({"rst": 1 - p.low}, *({"d": d, "en": 1} for d in values))]


@register
class SerialParity(Family):
    """The parity of the bits since a frame began."""

    name = "serial_parity"
    modules = ("serial_parity", "parity_acc", "bit_parity", "running_parity", "parity_fsm", "odd_even")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"odd": rng.randint(0, 1), "frame": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        frame = [inp("load", 1, "frame", "sof", "first_bit", "begin_frame")] if p.frame else []
        return [
            *control_ports(p),
            *frame,
            inp("x", 1, *BIT),
            out("q", 1, "parity", "par", "p_out", "check_bit", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        start = int(not p.odd)
        word = "odd" if p.odd else "even"
        more = ""
        if p.frame:
            fresh = f"NOT {n.x}" if start else n.x
            more = f" At an edge with {n.load} high a new frame begins, and {n.q} becomes {fresh}."
        return tell(
            p,
            n,
            f"{n.q} becomes {start}",
            f"{n.q} is 1 when the number of ones of {n.x}, sampled at rising edges of {n.clk}, is {word} so far.{more}",
            f"At each rising edge of {n.clk}, {n.q} inverts if {n.x} is 1 and holds if it is 0, so it says whether "
            f"the count of ones is {word}.{more}",
            f"Serial parity: as {n.clk} rises, {n.q} becomes {n.q} XOR {n.x}; a 1 means that an {word} number of ones "
            f"came.{more}",
            f"{n.x} brings a bit every rising edge of {n.clk}. {n.q} tells by 1 that the ones are {word} in "
            f"number.{more}",
            f"Keep in {n.q} whether the number of ones that came on {n.x} with rising {n.clk} is {word} (1 means "
            f"yes).{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        start = int(not p.odd)
        flip = f"{n.q} <= {n.q} ^ {n.x};"
        if p.frame:
            flip = f"if ({n.load}) {n.q} <= {'~' if start else ''}{n.x};\nelse {flip}"
        return always(p, n, f"{n.q} <= {start};", flip)

    def model(self, p: Params) -> Model:
        def step(ones: int, x: Inputs) -> int:
            return x.x if p.frame and x.load else ones + x.x

        return Clocked(p, 0, step, lambda ones, x: {"q": int(ones % 2 == p.odd)})


@register
class SerialAdder(Family):
    """Two numbers added or subtracted bit by bit, the lowest bit first."""

    name = "serial_adder"
    modules = ("serial_adder", "bit_adder", "serial_sum", "bitwise_add", "serial_alu", "ser_add")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng, enable=False) | {
            "sub": rng.randint(0, 1),
            "reg": rng.randint(0, 1),
            "frame": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        frame = [inp("load", 1, "first", "frame", "lsb_now", "sof")] if p.frame else []
        a, b = inp("a", 1, "a", "op_a", "x"), inp("b", 1, "b", "op_b", "y")
        return [*control_ports(p), *frame, a, b, out("s", 1, "s", "sum", "sum_bit", "res_bit", reg=bool(p.reg))]

    def says(self, p: Params, n: Names) -> list[str]:
        carry, op, sign = ("borrow", "subtract", "-") if p.sub else ("carry", "add", "+")
        when = (
            f"{n.s} is a register with the result bit of the last edge"
            if p.reg
            else f"{n.s} is the result bit of the present inputs and the stored {carry}, without delay"
        )
        more = f" While {n.load} is 1 the stored {carry} counts as 0." if p.frame else ""
        return tell(
            p,
            n,
            f"the {carry}{f' and {n.s} become' if p.reg else ' becomes'} 0",
            f"Serial {n.a} {sign} {n.b}, lowest bit first, one bit each rising edge of {n.clk}; the {carry} is kept "
            f"in a flip-flop. {when}.{more}",
            f"{op.capitalize()} bit by bit: {n.a} {sign} {n.b} with the {carry} stored at the rising edge of {n.clk}, "
            f"least significant bits first. In detail {when}.{more}",
            f"At each rising edge of {n.clk} the {carry} of {n.a} {sign} {n.b} is stored for the next, higher bit. "
            f"{when}.{more}",
            f"A bit-serial unit that computes {n.a} {sign} {n.b} from the lowest bit up and stores the {carry} as "
            f"{n.clk} rises. {when}.{more}",
            f"Bits of {n.a} and {n.b} arrive lowest first with rising {n.clk}; {op} them and remember the {carry}. "
            f"{when}.{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        declared = "  reg cy;\n"
        if p.frame:
            declared += f"  wire ci = cy & ~{n.load};\n"
        ci = "ci" if p.frame else "cy"
        a = f"~{n.a}" if p.sub else n.a
        after, value = f"cy <= {a} & {n.b} | {a} & {ci} | {n.b} & {ci};", f"{n.a} ^ {n.b} ^ {ci}"
        if p.reg:
            return declared + always(p, n, f"cy <= 0;\n{n.s} <= 0;", f"{after}\n{n.s} <= {value};")
        return declared + f"  assign {n.s} = {value};\n" + always(p, n, "cy <= 0;", after)

    def model(self, p: Params) -> Model:
        def total(carry: int, x: Inputs) -> tuple[int, int]:
            carried = 0 if p.frame and x.load else carry
            number = x.a - x.b - carried if p.sub else x.a + x.b + carried
            return int(number < 0 or number > 1), number % 2

        if p.reg:
            return Clocked(p, (0, 0), lambda s, x: total(s[0], x), lambda s, x: {"s": s[1]})
        return Clocked(p, 0, lambda s, x: total(s, x)[0], lambda s, x: {"s": total(s, x)[1]})


@register
class Deserializer(Family):
    """Words of N bits from a serial input."""

    name = "deserializer"
    modules = ("deserializer", "sipo", "ser2par", "word_builder", "serial_rx", "bit_collector")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(3, 9), "msb": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("x", 1, *BIT),
            out("q", p.width, "word", "q", "par_out", "data_out", reg=True),
            out("v", 1, "valid", "full_word", "done", "word_ready", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        w, k = p.width, p.width - 1
        way, enter, order = ("left", 0, "highest") if p.msb else ("right", k, "lowest")
        shift = f"{n.q} shifts {way} and {n.x} enters at bit {enter}"
        return tell(
            p,
            n,
            f"{n.q}, {n.v} and the bit count become 0",
            f"Collect {w} bits of {n.x}, the {order} first. On each rising edge of {n.clk}, {shift}. {n.v} becomes 1 "
            f"at the edge that takes the {w}th bit of each word, else 0.",
            f"A serial to parallel converter: as {n.clk} rises, {shift} ({w} bits). A count from 0 to {k} marks the "
            f"place; {n.v} becomes 1 when it was {k}, and 0 at all other edges.",
            f"At every rising edge of {n.clk}, {shift}. {n.q} is {w} bits wide. With every {w}th bit {n.v} is set for "
            "one step, otherwise it is cleared.",
            f"{n.q} gathers words of {w} bits from {n.x}, {order} bit first: at the rising edge of {n.clk}, {shift}. "
            f"After the last bit of a word {n.v} is 1 till the next edge.",
            f"Bits of {n.x} come with rising {n.clk}, and {shift}; {n.v} is registered and 1 just after each group of "
            f"{w} bits.",
        )

    def body(self, p: Params, n: Names) -> str:
        k = p.width - 1
        shifted = f"{{{n.q}[{k - 1}:0], {n.x}}}" if p.msb else f"{{{n.x}, {n.q}[{k}:1]}}"
        moves = f"{n.q} <= {shifted};\n{n.v} <= cnt == {k};\ncnt <= cnt == {k} ? 0 : cnt + 1;"
        text = f"  reg [{k.bit_length() - 1}:0] cnt;\n"
        return text + always(p, n, f"{n.q} <= 0;\n{n.v} <= 0;\ncnt <= 0;", moves)

    def model(self, p: Params) -> Model:
        def show(bits: list[int], x: Inputs) -> dict[str, int]:
            last = ([0] * p.width + bits)[-p.width :]
            order = last if p.msb else last[::-1]
            return {"q": int("".join(map(str, order)), 2), "v": int(bool(bits) and len(bits) % p.width == 0)}

        return Clocked(p, [], lambda bits, x: [*bits, x.x], show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"x": rng.getrandbits(1), "en": 1} for _ in range(2 * p.width + 1)]
