"""Families that choose without state: multiplexers, decoders, encoders, single bits."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.design import Combinational, Family, Inputs, Model, Names, Params, Port, inp, out, register
from labkit.data.verilog.gated import (
    INPUTS,
    NUMBER,
    POOLS,
    REQUESTS,
    RESULT,
    SELECT,
    VALID,
    WIDTHS,
    WORD,
    WORD_A,
    WORD_B,
    Gated,
    listed,
    one_hot_words,
    ones,
)


@register
class Mux2(Gated):
    """Two words, one select."""

    name = "mux2"
    modules = ("mux2", "mux", "selector", "mux2to1", "choose2", "two_way_mux", "data_sel")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice((1, *WIDTHS)),
            "swap": rng.randint(0, 1),
            "invert": rng.choice(("none", "all", "b")),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.width, *WORD_A), inp("b", p.width, *WORD_B), inp("s", 1, *SELECT)]

    def tells(self, p: Params, n: Names) -> list[str]:
        one, zero = (n.a, n.b) if p.swap else (n.b, n.a)
        note = {"none": "", "all": " The result is inverted.", "b": f" {n.b} is inverted before it is used."}[p.invert]
        return [
            f"{n.y} is {one} when {n.s} is 1 and {zero} when {n.s} is 0.{note}",
            f"Select between {n.a} and {n.b}: {n.s} = 0 gives {zero}, {n.s} = 1 gives {one} on {n.y}.{note}",
            f"If {n.s} is high pass {one} to {n.y}, otherwise pass {zero}.{note}",
            f"A multiplexer drives {n.y} with {zero} for {n.s} low and with {one} for {n.s} high.{note}",
            f"The select {n.s} routes {one} to {n.y} if set, else {zero}.{note}",
        ]

    def expression(self, p: Params, n: Names) -> str:
        b = f"~{n.b}" if p.invert == "b" else n.b
        one, zero = (n.a, b) if p.swap else (b, n.a)
        inner = f"{n.s} ? {one} : {zero}"
        return f"~({inner})" if p.invert == "all" else inner

    def value(self, p: Params, x: Inputs) -> int:
        b = ~x.b if p.invert == "b" else x.b
        chosen = x.a if x.s == p.swap else b
        return ~chosen if p.invert == "all" else chosen


@register
class MuxCase(Family):
    """Three or four words chosen by a case statement; the order in which codes name the inputs varies."""

    name = "mux_case"
    modules = ("mux4", "mux_case", "mux4to1", "selector4", "data_mux", "way_mux", "mux3")

    def sample(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((3, 4, 4))
        order = list(range(n))
        if rng.random() < 0.5:
            order = rng.choice((order[::-1], order[1:] + order[:1], order[-1:] + order[:-1]))
        return {"inputs": n, "order": order, "width": rng.choice((1, *WIDTHS))}

    def ports(self, p: Params) -> list[Port]:
        words = [inp(role, p.width, *pool) for role, pool in zip(INPUTS, POOLS, strict=True)][: p.inputs]
        return [*words, inp("s", 2, *SELECT), out("y", p.width, *RESULT, reg=True)]

    def says(self, p: Params, n: Names) -> list[str]:
        names = [getattr(n, INPUTS[i]) for i in p.order]
        rest = f" For {n.s} = 3, {n.y} is 0." if p.inputs == 3 else ""
        table = ", ".join(f"{code} for {name}" for code, name in enumerate(names))
        return [
            f"{n.s} selects what {n.y} shows: {table}.{rest}",
            f"Select one word: {', '.join(f'{n.s} = {code} gives {name}' for code, name in enumerate(names))} on "
            f"{n.y}.{rest}",
            f"{n.y} is {', '.join(f'{name} when {n.s} is {code}' for code, name in enumerate(names))}.{rest}",
            f"For the codes 0 to {p.inputs - 1} of {n.s}, {n.y} takes {listed(names)} in this order.{rest}",
            f"A multiplexer controlled by {n.s} drives {n.y}; the codes from 0 up mean {listed(names)}.{rest}",
        ]

    def body(self, p: Params, n: Names) -> str:
        lines = "".join(f"      {code}: {n.y} = {getattr(n, INPUTS[i])};\n" for code, i in enumerate(p.order[:3]))
        last = "0" if p.inputs == 3 else getattr(n, INPUTS[p.order[3]])
        return f"  always @*\n    case ({n.s})\n{lines}      default: {n.y} = {last};\n    endcase\n"

    def model(self, p: Params) -> Model:
        return Combinational(lambda x: {"y": getattr(x, INPUTS[p.order[x.s]]) if x.s < p.inputs else 0})


@register
class BitSelect(Gated):
    """One bit or slice of a vector, chosen by an index."""

    name = "bit_select"
    modules = ("bit_select", "bit_mux", "mux8", "pick_bit", "slice_mux", "field_mux", "vector_mux")

    def draw(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((1, 1, 2, 4, 8))
        return {
            "index": rng.choice((1, 2, 3, 4)),
            "width": width,
            "invert": rng.randint(0, 1),
            "down": 0 if width > 1 else rng.randint(0, 1),
        }

    def inputs(self, p: Params) -> list[Port]:
        return [inp("d", p.width << p.index, *WORD), inp("s", p.index, *SELECT, "idx", "index")]

    def tells(self, p: Params, n: Names) -> list[str]:
        unit = "bit" if p.width == 1 else f"{p.width}-bit field"
        end = "highest" if p.down else "lowest"
        note = " inverted" if p.invert else ""
        return [
            f"{n.y} is the {unit} of {n.d} with the number {n.s}{note}, counted from the {end}.",
            f"Select one {unit} of {n.d}: {n.s} = 0 means the {end} one. It goes to {n.y}{note}.",
            f"The index {n.s} picks a {unit} of {n.d}, starting at the {end} end; {n.y} shows it{note}.",
            f"Treat {n.d} as {1 << p.index} {unit}s numbered from the {end}. Output number {n.s}{note} on {n.y}.",
            f"{n.y} carries{note} the {unit} of {n.d} that {n.s} addresses, address 0 being the {end}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        if p.width == 1:
            return f"{'~' if p.invert else ''}{n.d}[{'~' if p.down else ''}{n.s}]"
        inner = f"{n.d} >> ({p.width} * {n.s})"
        return f"~({inner})" if p.invert else inner

    def value(self, p: Params, x: Inputs) -> int:
        position = (1 << p.index) - 1 - x.s if p.down else x.s
        field = x.d >> (p.width * position)
        return ~field if p.invert else field


@register
class Decoder(Gated):
    """Binary to one-hot."""

    name = "decoder"
    modules = ("decoder", "dec", "one_hot_dec", "addr_decoder", "bin2onehot", "line_decoder", "decode")
    results = ("y", "out", "lines", "onehot", "dec_out", "q", "rows")

    def draw(self, rng: Random) -> dict[str, Any]:
        return {"bits": rng.choice((1, 2, 2, 3, 3, 4, 5)), "low": rng.randint(0, 1), "down": rng.randint(0, 1)}

    def inputs(self, p: Params) -> list[Port]:
        return [inp("a", p.bits, "sel", "addr", "code", "bin_in", "a", "num")]

    def width(self, p: Params) -> int:
        return int(1 << p.bits)

    def tells(self, p: Params, n: Names) -> list[str]:
        size, bit = 1 << p.bits, "0" if p.low else "1"
        where = f"counted from bit {(1 << p.bits) - 1} downward" if p.down else "counted from bit 0 upward"
        others = "1" if p.low else "0"
        return [
            f"Decode {n.a}: the bit of {n.y} with that number, {where}, is {bit}, and all other bits are {others}.",
            f"{n.y} has {size} lines, {where}; line {n.a} is {bit} and the rest are {others}.",
            f"Binary to one-hot: exactly one bit of {n.y} is {bit}, at place {n.a}, {where}. The others are {others}.",
            f"Bit number {n.a} of {n.y} ({where}) becomes {bit}; every other bit is {others}.",
            f"The code {n.a} activates one of {size} outputs in {n.y}, {where}: active is {bit}, idle is {others}.",
        ]

    def expression(self, p: Params, n: Names) -> str:
        inner = f"{1 << p.bits}'d1 << {n.a}"
        if p.down:
            inner = f"{1 << p.bits}'d{1 << ((1 << p.bits) - 1)} >> {n.a}"
        return f"~({inner})" if p.low else inner

    def value(self, p: Params, x: Inputs) -> int:
        place = (1 << p.bits) - 1 - x.a if p.down else x.a
        return ~(1 << place) if p.low else 1 << place


@register
class Demux(Family):
    """One input steered to one of several outputs."""

    name = "demux"
    modules = ("demux", "router", "demux4", "steer", "split_unit", "distributor", "dmx")

    def sample(self, rng: Random) -> dict[str, Any]:
        n = rng.choice((2, 2, 3, 4))
        return {
            "outputs": n,
            "width": rng.choice((1, *WIDTHS[:9])),
            "idle": rng.randint(0, 1),
            "invert": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        pools = [(f"y{i}", f"out{i}", f"q{i}", f"dst{i}") for i in range(p.outputs)]
        outs = [out(f"y{i}", p.width, *pool) for i, pool in enumerate(pools)]
        return [inp("d", p.width, *WORD), inp("s", 1 if p.outputs == 2 else 2, *SELECT), *outs]

    def says(self, p: Params, n: Names) -> list[str]:
        names = [getattr(n, f"y{i}") for i in range(p.outputs)]
        value = f"the complement of {n.d}" if p.invert else n.d
        idle = "all ones" if p.idle else "0"
        return [
            f"{n.s} sends {value} to one output: codes 0 to {p.outputs - 1} mean {listed(names)}. Outputs not "
            f"selected are {idle}.",
            f"Route {value} to {', '.join(f'{y} if {n.s} is {i}' for i, y in enumerate(names))}. Other outputs "
            f"are {idle}.",
            f"Demultiplex: {', '.join(f'{n.s} = {i} selects {y}' for i, y in enumerate(names))}. The selected one "
            f"gets {value}, the rest {idle}.",
            " ".join(f"{y} is {value} when {n.s} is {i}, else {idle}." for i, y in enumerate(names)),
            f"Of {listed(names)}, numbered from 0, the one with number {n.s} shows {value}; each other shows {idle}.",
        ]

    def body(self, p: Params, n: Names) -> str:
        value, idle = ("~" if p.invert else "") + n.d, "~0" if p.idle else "0"
        return "".join(f"  assign {getattr(n, f'y{i}')} = {n.s} == {i} ? {value} : {idle};\n" for i in range(p.outputs))

    def model(self, p: Params) -> Model:
        def route(x: Inputs) -> dict[str, int]:
            value = ~x.d if p.invert else x.d
            return {f"y{i}": value if x.s == i else -p.idle for i in range(p.outputs)}

        return Combinational(route)


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
class Encoder(Family):
    """One-hot to binary, with an answer for what is not one-hot."""

    name = "encoder"
    modules = ("encoder", "enc", "onehot2bin", "bin_encoder", "line_encoder", "encode", "enc_unit")

    def sample(self, rng: Random) -> dict[str, Any]:
        width = rng.choice((2, 3, 4, 4, 5))
        valid = rng.choice(("none", "high", "low"))
        return {"width": width, "down": rng.randint(0, 1), "valid": valid, "default": rng.choice((0, 0, 1, 3))}

    def ports(self, p: Params) -> list[Port]:
        ports = [inp("d", p.width, *REQUESTS), out("y", 3 if p.width == 5 else 2, *NUMBER, reg=True)]
        pool = VALID if p.valid == "high" else ("bad", "error", "invalid", "fault")
        return ports + ([] if p.valid == "none" else [out("v", 1, *pool)])

    def says(self, p: Params, n: Names) -> list[str]:
        order = f"counted from bit {p.width - 1} down" if p.down else "counted from bit 0 up"
        word = {"none": "", "high": "any", "low": "no"}[p.valid]
        tail = f" {n.v} is 1 if {word} bit of {n.d} is set." if word else ""
        rest = p.default
        return [
            f"Encode {n.d}: if exactly one bit is set, {n.y} is its number, {order}; otherwise {n.y} is {rest}.{tail}",
            f"{n.y} is the number of the single bit set in {n.d}, {order}. For any other {n.d} it is {rest}.{tail}",
            f"One-hot to binary: {n.d} has one bit set and {n.y} says which, {order}. All other codes give "
            f"{rest}.{tail}",
            f"When {n.d} is one-hot, {n.y} shows the place of the bit, {order}, else {rest}.{tail}",
            f"The place of the only 1 in {n.d} ({order}) goes to {n.y}; a word that is not one-hot gives {rest}.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        w = p.width
        lines = "".join(f"      {w}'d{1 << (w - 1 - i if p.down else i)}: {n.y} = {i};\n" for i in range(w))
        flag = {"none": "", "high": "|", "low": "~|"}[p.valid]
        valid = f"  assign {n.v} = {flag}{n.d};\n" if flag else ""
        return f"  always @*\n    case ({n.d})\n{lines}      default: {n.y} = {p.default};\n    endcase\n{valid}"

    def model(self, p: Params) -> Model:
        def encode(x: Inputs) -> dict[str, int]:
            place = x.d.bit_length() - 1
            place = p.width - 1 - place if p.down else place
            return {"y": place if ones(x.d) == 1 else p.default, "v": int((x.d > 0) == (p.valid == "high"))}

        return Combinational(encode)


@register
class PriorityEncoder(Family):
    """The number of the first or last set bit."""

    name = "priority_encoder"
    modules = ("priority_encoder", "prio_enc", "first_one", "penc", "priority_enc", "irq_encoder", "find_one")

    def sample(self, rng: Random) -> dict[str, Any]:
        return {
            "width": rng.choice((3, 4, 5, 6, 7, 8, 10, 12, 16)),
            "low": rng.randint(0, 1),
            "zeros": rng.randint(0, 1),
            "valid": rng.choice(("none", "high", "low")),
        }

    def ports(self, p: Params) -> list[Port]:
        ports = [inp("d", p.width, *REQUESTS), out("y", (p.width - 1).bit_length(), *NUMBER, reg=True)]
        pool = VALID if p.valid == "high" else ("nothing", "idle", "no_hit", "missing")
        return ports + ([] if p.valid == "none" else [out("v", 1, *pool)])

    def says(self, p: Params, n: Names) -> list[str]:
        end, way = ("lowest", "least") if p.low else ("highest", "most")
        bit, none = ("0", f"{n.d} has no 0") if p.zeros else ("1", f"{n.d} has no 1")
        tail = ""
        if p.valid != "none":
            tail = f" {n.v} is {1 if p.valid == 'low' else 0} if {none}, else {0 if p.valid == 'low' else 1}."
        return [
            f"{n.y} is the index of the {end} bit of {n.d} that is {bit}; it is 0 if {none}.{tail}",
            f"Find the {end} {bit} in {n.d} and put its index on {n.y}, 0 if there is none.{tail}",
            f"A priority encoder: among the bits of {n.d} that are {bit} the {end} index wins and goes to {n.y}. "
            f"If {none}, {n.y} is 0.{tail}",
            f"Output on {n.y} the number of the {end} {bit} bit of {n.d}. Without such a bit {n.y} is 0.{tail}",
            f"The {way} significant {bit} of {n.d} has priority: {n.y} is its index, or 0 when {none}.{tail}",
        ]

    def body(self, p: Params, n: Names) -> str:
        last, test = p.width - 1, f"{'!' if p.zeros else ''}{n.d}[i]"
        loop = f"i = {last}; i >= 0; i = i - 1" if p.low else f"i = 0; i < {p.width}; i = i + 1"
        flag = {"none": "", "high": "~&" if p.zeros else "|", "low": "&" if p.zeros else "~|"}[p.valid]
        valid = f"  assign {n.v} = {flag}{n.d};\n" if flag else ""
        return (
            f"  integer i;\n  always @* begin\n    {n.y} = 0;\n    for ({loop})\n"
            f"      if ({test}) {n.y} = i;\n  end\n{valid}"
        )

    def model(self, p: Params) -> Model:
        def encode(x: Inputs) -> dict[str, int]:
            places = [i for i in range(p.width) if (x.d >> i & 1) != p.zeros]
            place = (min(places) if p.low else max(places)) if places else 0
            return {"y": place, "v": int(bool(places) == (p.valid == "high"))}

        return Combinational(encode)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        full = (1 << p.width) - 1
        words = one_hot_words(p.width, "d")
        return [{"d": w["d"] ^ full} for w in words] if p.zeros else words
