"""Clocked families: pulses, timers and synchronisers."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register

START = ("start", "trig", "trigger", "fire", "go")


@register
class PulseStretcher(Family):
    """A pulse made N cycles long."""

    name = "pulse_stretcher"
    modules = ("pulse_stretcher", "stretch", "pulse_extend", "one_shot", "monostable", "long_pulse")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng, enable=False) | {
            "n": rng.randint(2, 20),
            "again": rng.randint(0, 1),
            "low_out": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        y = ("busy_n", "pulse_n", "y_n", "out_n") if p.low_out else ("pulse", "y", "wide", "stretched")
        return [*control_ports(p), inp("trig", 1, *START), out("y", 1, *y)]

    def says(self, p: Params, n: Names) -> list[str]:
        on, off = (0, 1) if p.low_out else (1, 0)
        more = (
            f"A high {n.trig} during this time starts the {p.n} cycles again."
            if p.again
            else f"During this time {n.trig} is ignored."
        )
        return tell(
            p,
            n,
            f"the count becomes 0 and {n.y} is {off}",
            f"When {n.trig} is 1 at a rising edge of {n.clk}, {n.y} is {on} for the next {p.n} cycles, else {off}. "
            f"{more}",
            f"A down-counter is set to {p.n} by {n.trig} at the rising edge of {n.clk} and then falls by 1 an edge to "
            f"0; {n.y} is {on} while it is not 0, and {off} at 0. {more}",
            f"Stretch {n.trig}: seen high as {n.clk} rises, it makes {n.y} go to {on} for {p.n} clock cycles; at rest "
            f"{n.y} is {off}. {more}",
            f"{n.y} rests at {off}. A high {n.trig} at a rising edge of {n.clk} makes it {on} for exactly {p.n} "
            f"cycles. {more}",
            f"A one-shot of {p.n} cycles: {n.trig}, sampled with rising {n.clk}, starts it, and {n.y} is {on} as long "
            f"as it runs ({off} otherwise). {more}",
        )

    def body(self, p: Params, n: Names) -> str:
        load, fall = f"if ({n.trig}) cnt <= {p.n};", "if (cnt != 0) cnt <= cnt - 1;"
        moves = f"{load}\nelse {fall}" if p.again else f"{fall}\nelse {load}"
        text = f"  reg [{p.n.bit_length() - 1}:0] cnt;\n  assign {n.y} = cnt {'==' if p.low_out else '!='} 0;\n"
        return text + always(p, n, "cnt <= 0;", moves)

    def model(self, p: Params) -> Model:
        def step(left: int, x: Inputs) -> int:
            return p.n if x.trig and (p.again or not left) else max(left - 1, 0)

        return Clocked(p, 0, step, lambda left, x: {"y": int(bool(left) != bool(p.low_out))})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        quiet = [{"trig": 0}] * (p.n + 2)
        return [{"trig": 1}, *quiet, {"trig": 1}, {"trig": 0}, {"trig": 1}, *quiet, *[{"trig": 1}] * (p.n + 2), *quiet]


@register
class Timer(Family):
    """A timer that is loaded, counts down and says when it is done."""

    name = "timer"
    modules = ("timer", "countdown", "interval_timer", "delay_timer", "down_timer", "egg_timer")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"width": rng.randint(3, 10), "busy": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        busy = [out("busy", 1, "busy", "running", "active", "counting")] if p.busy else []
        time = inp("d", p.width, "period", "ticks", "time_in", "delay", "d")
        return [
            *control_ports(p),
            inp("load", 1, "load", "start", "set_timer", "arm"),
            time,
            *busy,
            out("done", 1, "done", "expired", "alarm", "ring_out", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        more = f" {n.busy} is 1 while the count is not 0." if p.busy else ""
        rule = f"{n.done} is registered: 1 after the edge that counts down from 1 to 0, and 0 after every other edge."
        return tell(
            p,
            n,
            f"the count and {n.done} become 0",
            f"A hidden {p.width}-bit count. On each rising edge of {n.clk} it takes {n.d} if {n.load} is 1, else it "
            f"falls by 1 until it is 0. {rule}{more}",
            f"{n.load} puts {n.d} ({p.width} bits) into a down-counter at the rising edge of {n.clk}; without it the "
            f"counter falls to 0 one by one and stays there. {rule}{more}",
            f"Countdown timer with {p.width} bits: as {n.clk} rises, load {n.d} when {n.load} is high; otherwise "
            f"subtract 1 unless the count is 0. {rule}{more}",
            f"The timer is set to {n.d} by {n.load} (first priority) and otherwise counts down to 0, one each rising "
            f"edge of {n.clk}, in {p.width} bits. {rule}{more}",
            f"After {n.load} the {p.width}-bit count begins at {n.d} and goes down with every rising {n.clk}, and "
            f"rests at 0. {rule}{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        moves = f"{n.done} <= !{n.load} && cnt == 1;\nif ({n.load}) cnt <= {n.d};\nelse if (cnt != 0) cnt <= cnt - 1;"
        text = f"  reg [{p.width - 1}:0] cnt;\n" + (f"  assign {n.busy} = cnt != 0;\n" if p.busy else "")
        return text + always(p, n, f"cnt <= 0;\n{n.done} <= 0;", moves)

    def model(self, p: Params) -> Model:
        def step(s: tuple[int, bool], x: Inputs) -> tuple[int, bool]:
            if x.load:
                return x.d, False
            return (s[0] - 1, s[0] == 1) if s[0] else (0, False)

        return Clocked(p, (0, False), step, lambda s, x: {"busy": int(s[0] > 0), "done": int(s[1])})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        found = []
        for time in (1, 3, 0, 4, 2, 5):
            found += [{"load": 1, "d": time, "en": 1}, *[{"load": 0, "en": 1}] * (time + 1)]
        idle = [{"load": 0, "en": 1}] * (2**p.width + 1 if p.width < 6 else 4)  # a count that wraps shows at last
        high = [{"load": 1, "d": 2 ** (p.width - 1) + 1, "en": 1}, *idle[:3]]
        return [
            *found,
            *idle,
            *high,
            {"load": 1, "d": 2, "en": 1},
            {"load": 0, "en": 1},
            {"load": 1, "d": 1, "en": 1},
            *idle[:3],
            {"load": 1, "d": 3, "en": 1},
            {"rst": 1 - p.low},
            *idle[:4],
        ]


@register
class Watchdog(Family):
    """A counter that must be cleared in time."""

    name = "watchdog"
    modules = ("watchdog", "wdt", "timeout", "idle_timer", "keepalive", "dead_man")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"n": rng.randint(3, 24), "locked": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("kick", 1, "kick", "feed", "alive", "pet", "restart"),
            out("bark", 1, "bark", "timeout_out", "expired", "alarm", "late"),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        end = f"Once {n.bark} is 1, only reset helps." if p.locked else f"Then {n.kick} brings {n.bark} back to 0."
        return tell(
            p,
            n,
            "the count becomes 0",
            f"A watchdog: at each rising edge of {n.clk} a count goes to 0 if {n.kick} is 1, else up by 1 until "
            f"{p.n}, where it stays. {n.bark} is 1 while the count is {p.n}. {end}",
            f"{n.bark} becomes 1 after {p.n} rising edges of {n.clk} in a row without {n.kick}, and it stays. A high "
            f"{n.kick} sets the inner count to 0. {end}",
            f"Count the rising edges of {n.clk} at which {n.kick} is low; {n.kick} high clears the count. At {p.n} it "
            f"stops and {n.bark} is high. {end}",
            f"As {n.clk} rises, {n.kick} clears an inner count and its absence adds 1, up to {p.n} at most. {n.bark} "
            f"shows that {p.n} is reached. {end}",
            f"If {n.kick} is missing at {p.n} successive rising edges of {n.clk}, {n.bark} goes high and remains. "
            f"Each {n.kick} before starts the count from 0 again. {end}",
        )

    def body(self, p: Params, n: Names) -> str:
        kick, grow = f"({n.kick}) cnt <= 0;", f"(cnt != {p.n}) cnt <= cnt + 1;"
        moves = f"if ({n.kick} && !{n.bark}) cnt <= 0;\nelse if {grow}" if p.locked else f"if {kick}\nelse if {grow}"
        text = f"  reg [{p.n.bit_length() - 1}:0] cnt;\n  assign {n.bark} = cnt == {p.n};\n"
        return text + always(p, n, "cnt <= 0;", moves)

    def model(self, p: Params) -> Model:
        def step(missed: int, x: Inputs) -> int:
            if missed >= p.n:
                return missed if p.locked or not x.kick else 0
            return 0 if x.kick else missed + 1

        return Clocked(p, 0, step, lambda missed, x: {"bark": int(missed >= p.n)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        quiet = {"kick": 0, "en": 1}
        first = [quiet] * (p.n - 1) + [{"kick": 1, "en": 1}] + [quiet] * (p.n + 2)
        return [*first, {"kick": 1, "en": 1}, *[quiet] * 2, {"rst": 1 - p.low}, *[quiet] * (p.n + 1)]


@register
class Synchronizer(Family):
    """Flip-flops in a row for a signal from another clock domain."""

    name = "synchronizer"
    modules = ("synchronizer", "sync_ff", "cdc_sync", "bit_sync", "two_flop", "resync")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng, enable=False) | {
            "stages": rng.randint(2, 4),
            "value": rng.randint(0, 1),
            "pulse": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        pulse = [out("rise", 1, "rise", "rose", "edge_pulse", "pulse")] if p.pulse else []
        return [
            *control_ports(p),
            inp("x", 1, "async_in", "x", "ext", "raw", "remote"),
            out("y", 1, "sync_out", "y", "safe", "local_out", "q", reg=True),
            *pulse,
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        k = p.stages
        more = f" {n.rise} is 1 while the flip-flop before {n.y} is 1 and {n.y} is still 0." if p.pulse else ""
        return tell(
            p,
            n,
            f"all {k} flip-flops become {p.value}",
            f"Synchronise {n.x} to {n.clk} with {k} flip-flops in a row, on the rising edge; the last one is "
            f"{n.y}.{more}",
            f"{n.x} passes through {k} flip-flops clocked by rising {n.clk} and comes out at {n.y}.{more}",
            f"A synchroniser of {k} stages: the first flip-flop samples {n.x} as {n.clk} rises, the last drives "
            f"{n.y}.{more}",
            f"{n.y} is {n.x} after {k} flip-flops, to be safe against metastability; all take their input at the "
            f"rising edge of {n.clk}.{more}",
            f"The asynchronous {n.x} goes through a chain of {k} flip-flops on rising edges of {n.clk}, ending in "
            f"{n.y}.{more}",
        )

    def body(self, p: Params, n: Names) -> str:
        chain = [n.x, *(f"ff{i}" for i in range(1, p.stages)), n.y]
        text = f"  reg {', '.join(chain[1:-1])};\n"
        if p.pulse:
            text += f"  assign {n.rise} = {chain[-2]} & ~{n.y};\n"
        clear = "\n".join(f"{b} <= {p.value};" for b in chain[1:])
        return text + always(p, n, clear, "\n".join(f"{b} <= {a};" for a, b in pairwise(chain)))

    def model(self, p: Params) -> Model:
        def show(past: tuple[int, ...], x: Inputs) -> dict[str, int]:  # newest first
            return {"y": past[-1], "rise": int(past[-2:] == (1, 0))}

        return Clocked(p, (p.value,) * p.stages, lambda past, x: (x.x, *past[:-1]), show)
