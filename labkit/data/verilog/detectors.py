"""Clocked families: detectors of edges, patterns and stable levels."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register, width

FOUND = ("found", "detected", "match", "hit", "z", "seen")


@register
class EdgeDetector(Family):
    """Rising, falling or any edges of the bits of an input."""

    name = "edge_detector"
    modules = ("edge_detector", "edge_detect", "pulse_on_edge", "edge_finder", "change_detect", "edges")

    def sample(self, rng: Random) -> dict[str, Any]:
        kind, bits = rng.choice(("rise", "fall", "both")), rng.choice((1, 1, 2, 3, 4, 6, 8))
        return control(rng, enable=False) | {"kind": kind, "width": bits, "reg": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        y = out("y", p.width, "pulse", "edge_out", "y", "detected", "event_out", reg=bool(p.reg))
        return [*control_ports(p), inp("x", p.width, "x", "sig", "level", "din", "a", "button"), y]

    def says(self, p: Params, n: Names) -> list[str]:
        kind = {"rise": "rising", "fall": "falling", "both": "rising or falling"}[p.kind]
        test = {"rise": "0 before and 1 now", "fall": "1 before and 0 now", "both": "different before and now"}[p.kind]
        each = f"each bit of {n.x}" if p.width > 1 else n.x
        reg, past = (
            ("a register" if p.reg else "not a register"),
            f"the value of {n.x} at the previous rising edge of {n.clk}",
        )
        late = (
            f"{n.y} is registered, so it is high for the cycle after the clock edge that saw the change."
            if p.reg
            else f"{n.y} is combinational: it compares {n.x} with the stored sample."
        )
        return tell(
            p,
            n,
            f"the stored sample{f' and {n.y} become' if p.reg else ' becomes'} 0",
            f"Detect {kind} edges of {each}: {n.y} is 1 where {n.x} was {test}, against the sample of the last rising "
            f"edge of {n.clk}. {late}",
            f"{n.x} is sampled on each rising edge of {n.clk}. {n.y} marks {kind} edges of {each}, that is, {test}. "
            f"{late}",
            f"A {kind} edge detector for {each}. A register keeps the sample of {n.x} as {n.clk} rises, and {n.y} is "
            f"1 where it is {test}. {late}",
            f"Keep {past}. Where {n.x} is {test}, {n.y} is 1, else 0. {late}",
            f"{n.y} ({reg}) shows the {kind} edges of {each}. The old value is the sample of the last rising {n.clk}; "
            f"an edge means {test}. {late}",
        )

    def body(self, p: Params, n: Names) -> str:
        test = {"rise": f"{n.x} & ~prev", "fall": f"~{n.x} & prev", "both": f"{n.x} ^ prev"}[p.kind]
        declared = f"  reg {width(p.width)}prev;\n"
        if p.reg:
            return declared + always(p, n, f"prev <= 0;\n{n.y} <= 0;", f"prev <= {n.x};\n{n.y} <= {test};")
        return declared + f"  assign {n.y} = {test};\n" + always(p, n, "prev <= 0;", f"prev <= {n.x};")

    def model(self, p: Params) -> Model:
        def edges(old: int, new: int) -> int:
            wanted = {"rise": ((0, 1),), "fall": ((1, 0),), "both": ((0, 1), (1, 0))}[p.kind]
            return sum(((old >> i & 1, new >> i & 1) in wanted) << i for i in range(p.width))

        if p.reg:
            return Clocked(p, (0, 0), lambda s, x: (x.x, edges(s[0], x.x)), lambda s, x: {"y": s[1]})
        return Clocked(p, 0, lambda s, x: x.x, lambda s, x: {"y": edges(s, x.x)})


@register
class SequenceDetector(Family):
    """A Moore or Mealy machine that looks for a bit pattern."""

    name = "sequence_detector"
    modules = ("sequence_detector", "seq_detect", "pattern_fsm", "bit_pattern", "detector", "seq_fsm")

    def sample(self, rng: Random) -> dict[str, Any]:
        length = rng.choice((3, 3, 4))
        pattern = "".join(rng.choice("01") for _ in range(length))
        return control(rng, enable=False) | {
            "pattern": pattern,
            "mealy": rng.randint(0, 1),
            "overlap": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        return [*control_ports(p), inp("x", 1, "x", "din", "bit_in", "serial", "data", "sin"), out("z", 1, *FOUND)]

    def says(self, p: Params, n: Names) -> list[str]:
        kind = "Mealy" if p.mealy else "Moore"
        when = (
            f"in the same cycle as the last bit, without delay from {n.x}"
            if p.mealy
            else "for the one cycle after the edge that took the last bit"
        )
        again = "Matches may overlap." if p.overlap else "Matches do not overlap: after one the search starts anew."
        return tell(
            p,
            n,
            "nothing has been seen yet",
            f"A {kind} state machine that finds the pattern {p.pattern} (first bit left) in the bits of {n.x}, one "
            f"taken on each rising edge of {n.clk}. {n.z} is 1 {when}. {again}",
            f"{n.x} brings one bit each rising edge of {n.clk}. When the bits {p.pattern} have come in this order, "
            f"{n.z} is 1 {when}. {again} Use a {kind} machine.",
            f"Detect {p.pattern} in the serial input {n.x}, sampled as {n.clk} rises. {n.z} goes high {when} ({kind} "
            f"output). {again}",
            f"{kind} sequence detector for {p.pattern}, read from left to right: bits of {n.x} arrive at rising edges "
            f"of {n.clk}, and {n.z} is high {when}. {again}",
            f"Watch the stream {n.x}, one bit each rising {n.clk}, for {p.pattern}. On success {n.z} is 1 {when}, as "
            f"in a {kind} machine. {again}",
        )

    def _next(self, p: Params, state: int, bit: str) -> int:
        """The longest prefix of the pattern that ends the bits seen: the automaton of Knuth, Morris and Pratt."""
        seen = ("" if state == len(p.pattern) and not p.overlap else p.pattern[:state]) + bit
        longest = len(p.pattern) - p.mealy
        if p.mealy and seen == p.pattern and not p.overlap:
            return 0
        return max(k for k in range(longest + 1) if seen.endswith(p.pattern[:k]) and k <= len(seen))

    def body(self, p: Params, n: Names) -> str:
        states, last = len(p.pattern) + 1 - p.mealy, len(p.pattern)
        moves = [f"  {s}: st <= {n.x} ? {self._next(p, s, '1')} : {self._next(p, s, '0')};" for s in range(states)]
        moves[-1] = moves[-1].replace(f"{states - 1}:", "default:", 1)
        z = f"st == {last - 1} && {n.x} == {p.pattern[-1]}" if p.mealy else f"st == {last}"
        text = f"  reg [{(states - 1).bit_length() - 1}:0] st;\n  assign {n.z} = {z};\n"
        return text + always(p, n, "st <= 0;", "\n".join(["case (st)", *moves, "endcase"]))

    def model(self, p: Params) -> Model:
        length = len(p.pattern)

        def step(seen: str, x: Inputs) -> str:
            kept = "" if not p.overlap and seen.endswith(p.pattern) else seen
            return (kept + str(x.x))[-length:]

        def show(seen: str, x: Inputs) -> dict[str, int]:
            return {"z": int((step(seen, x) if p.mealy else seen) == p.pattern)}

        return Clocked(p, "", step, show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        bits = p.pattern * 2 + p.pattern[:-1] + p.pattern
        for _ in range(8):  # parts of the pattern, then the pattern from some place on
            bits += p.pattern[: rng.randint(1, len(p.pattern))] + p.pattern[rng.randint(0, 2) :]
        return [{"x": int(bit)} for bit in bits + f"{rng.getrandbits(80):080b}"]


@register
class Debouncer(Family):
    """A level that changes only after N equal samples."""

    name = "debouncer"
    modules = ("debouncer", "debounce", "glitch_filter", "button_filter", "stable_level", "noise_filter")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"n": rng.randint(2, 12), "value": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("x", 1, "noisy", "raw", "x", "button", "key_in", "din"),
            out("y", 1, "clean", "y", "stable", "debounced", "level", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        return tell(
            p,
            n,
            f"{n.y} becomes {p.value} and the count 0",
            f"Debounce {n.x}: {n.y} takes the new level only when {n.x} has differed from {n.y} at {p.n} rising edges "
            f"of {n.clk} in a row. A sample equal to {n.y} starts the count again.",
            f"{n.x} is sampled on each rising edge of {n.clk}. After {p.n} successive samples unlike {n.y}, at the "
            f"last of them, {n.y} changes; one sample like {n.y} clears the count.",
            f"{n.y} follows {n.x} after {p.n} equal samples: count the rising edges of {n.clk} where they differ, "
            f"reset the count where they agree, and at the {p.n}th copy {n.x} into {n.y}.",
            f"A filter for glitches. As {n.clk} rises, {n.x} unlike {n.y} is counted; on the {p.n}th in a row {n.y} "
            f"becomes {n.x} and the count 0; agreement also clears it.",
            f"The clean level {n.y} gives way to {n.x} only if {p.n} samples in a row, at rising edges of {n.clk}, "
            "disagree with it; any agreement restarts the counting from 0.",
        )

    def body(self, p: Params, n: Names) -> str:
        last = p.n - 1
        moves = f"cnt <= {n.x} == {n.y} || cnt == {last} ? 0 : cnt + 1;\nif (cnt == {last}) {n.y} <= {n.x};"
        return f"  reg {width(last.bit_length())}cnt;\n" + always(p, n, f"cnt <= 0;\n{n.y} <= {p.value};", moves)

    def model(self, p: Params) -> Model:
        def step(s: tuple[int, int], x: Inputs) -> tuple[int, int]:
            level, streak = s
            if x.x == level:
                return level, 0
            return (x.x, 0) if streak + 1 == p.n else (level, streak + 1)

        return Clocked(p, (p.value, 0), step, lambda s, x: {"y": s[0]})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        a, b = 1 - p.value, p.value
        runs = [
            (a, p.n - 1),
            (b, 1),
            (a, p.n),
            (a, 1),
            (b, p.n - 1),
            (a, 1),
            (b, p.n + 1),
            (a, p.n),
            (b, 1),
            (a, 1),
            (b, p.n),
        ]
        moves = [{"x": level, "en": 1} for level, count in runs for _ in range(count)]
        half = [{"x": a, "en": 1}] * (p.n - 1)
        return [*moves, {"rst": 1 - p.low}, *half, {"rst": 1 - p.low}, *half, {"x": b, "en": 1}]
