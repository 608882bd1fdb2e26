"""Clocked families: state machines."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register


@register
class TrafficLight(Family):
    """Green, yellow, red with fixed times."""

    name = "traffic_light"
    modules = ("traffic_light", "traffic", "lights", "signal_fsm", "crossing", "road_light")

    def sample(self, rng: Random) -> dict[str, Any]:
        times = {"green": rng.randint(2, 9), "yellow": rng.randint(1, 4), "red": rng.randint(2, 9)}
        return control(rng) | times | {"packed": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        if p.packed:
            return [*control_ports(p), out("rgb", 3, "lights", "lamp", "ryg", "colours", "light_out")]
        names = (("red", "stop_lamp", "r_lamp"), ("yellow", "amber", "y_lamp"), ("green", "go_lamp", "g_lamp"))
        return [*control_ports(p), *(out(pool[0], 1, *pool) for pool in names)]

    def says(self, p: Params, n: Names) -> list[str]:
        g, y, r = p.green, p.yellow, p.red
        lamps = (
            f"{n.rgb} is 001 for green, 010 for yellow, 100 for red"
            if p.packed
            else f"{n.green}, {n.yellow} and {n.red} are 1 in their own phase only"
        )
        return tell(
            p,
            n,
            "green begins anew with count 0",
            f"A traffic light: green for {g} cycles of {n.clk}, then yellow for {y}, then red for {r}, and again from "
            f"green, stepping on rising edges. Here {lamps}.",
            f"A counter of the rising edges of {n.clk} runs from 0 to {g + y + r - 1} and repeats. The first {g} "
            f"counts are green, the next {y} yellow, the last {r} red: {lamps}.",
            f"Green, yellow, red in turn, for {g}, {y} and {r} clock cycles of {n.clk} (rising edge); then green once "
            f"more. In the outputs {lamps}.",
            f"The phases follow each other as {n.clk} rises: {g} cycles green, {y} yellow, {r} red, in a loop of "
            f"{g + y + r}. For the lamps, {lamps}.",
            f"Lamps in a loop of {g + y + r} rising edges of {n.clk}, first green {g}, next yellow {y}, at last red "
            f"{r}; {lamps}.",
        )

    def body(self, p: Params, n: Names) -> str:
        total, change = p.green + p.yellow + p.red, p.green + p.yellow
        text = f"  reg [{(total - 1).bit_length() - 1}:0] cnt;\n"
        if p.packed:
            text += f"  assign {n.rgb} = cnt < {p.green} ? 1 : cnt < {change} ? 2 : 4;\n"
        else:
            text += f"  assign {n.green} = cnt < {p.green};\n  assign {n.red} = cnt >= {change};\n"
            text += f"  assign {n.yellow} = !{n.green} && !{n.red};\n"
        return text + always(p, n, "cnt <= 0;", f"cnt <= cnt == {total - 1} ? 0 : cnt + 1;")

    def model(self, p: Params) -> Model:
        phases = ["green"] * p.green + ["yellow"] * p.yellow + ["red"] * p.red
        codes = {"green": 1, "yellow": 2, "red": 4}

        def show(s: int, x: Inputs) -> dict[str, int]:
            return {"rgb": codes[phases[s]], **{c: int(c == phases[s]) for c in codes}}

        return Clocked(p, 0, lambda s, x: (s + 1) % len(phases), show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"en": 1}] * (p.green + p.yellow + p.red + 4)


@register
class JobFsm(Family):
    """Idle, busy and done, driven by start, finish and acknowledge."""

    name = "job_fsm"
    modules = ("job_fsm", "task_fsm", "control_fsm", "worker_ctrl", "job_ctrl", "sequencer")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"abort": rng.randint(0, 1), "chain": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        abort = [inp("clr", 1, "abort", "cancel", "kill", "give_up")] if p.abort else []
        return [
            *control_ports(p),
            inp("start", 1, "start", "go", "begin_job", "launch"),
            inp("finish", 1, "finish", "ready", "complete", "end_job"),
            *abort,
            out("busy", 1, "busy", "running", "active", "working"),
            out("done", 1, "done", "is_done", "finished", "result_ok"),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        after = f"to busy if {n.start} is 1, else to idle" if p.chain else "to idle"
        stop = f" But {n.clr} high sends every state to idle." if p.abort else ""
        return tell(
            p,
            n,
            "the state is idle",
            f"Three states, changed on rising edges of {n.clk}. Idle goes to busy when {n.start} is 1; busy goes to "
            f"done when {n.finish} is 1; done goes {after}.{stop} {n.busy} is 1 in busy, {n.done} in done.",
            f"A state machine on the rising edge of {n.clk}: {n.start} takes it from idle to busy, {n.finish} from "
            f"busy to done, and the next edge from done {after}.{stop} {n.busy} and {n.done} show these two states.",
            f"As {n.clk} rises: idle waits for {n.start}, then busy waits for {n.finish}, then done lasts one cycle "
            f"and leads {after}.{stop} Outputs: {n.busy} is high in busy only, {n.done} in done only.",
            f"Control of a job by {n.clk} rising. States: idle ({n.start} leads to busy), busy ({n.busy} is 1, "
            f"{n.finish} leads to done), done ({n.done} is 1, leads {after}).{stop}",
            f"From idle, {n.start} begins a job ({n.busy} high) until {n.finish}; then for one cycle {n.done} is "
            f"high, and it goes {after}, always at a rising edge of {n.clk}.{stop}",
        )

    def body(self, p: Params, n: Names) -> str:
        moves = [
            f"  0: if ({n.start}) st <= 1;",
            f"  1: if ({n.finish}) st <= 2;",
            f"  default: st <= {n.start if p.chain else 0};",
        ]
        case = "\n".join(["case (st)", *moves, "endcase"])
        text = f"  reg [1:0] st;\n  assign {n.busy} = st == 1;\n  assign {n.done} = st == 2;\n"
        return text + always(p, n, "st <= 0;", f"if ({n.clr}) st <= 0;\nelse {case}" if p.abort else case)

    def model(self, p: Params) -> Model:
        def step(s: str, x: Inputs) -> str:
            if p.abort and x.clr:
                return "idle"
            if s == "busy":
                return "done" if x.finish else "busy"
            return "busy" if x.start and (s == "idle" or p.chain) else "idle"

        return Clocked(p, "idle", step, lambda s, x: {"busy": int(s == "busy"), "done": int(s == "done")})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        moves = [
            (0, 1),
            (1, 0),
            (1, 0),
            (0, 0),
            (0, 1),
            (0, 0),
            (0, 1),
            (1, 1),
            (1, 1),
            (1, 1),
            (1, 1),
            (0, 0),
            (0, 1),
            (1, 0),
        ]
        return [{"start": a, "finish": b, "clr": 0, "en": 1} for a, b in moves] + [{"clr": 1, "en": 1}]


@register
class Arbiter(Family):
    """Two requesters that take turns."""

    name = "arbiter"
    modules = ("arbiter", "rr_arbiter", "fair_arbiter", "grant_unit", "turn_taker", "bus_arbiter")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng) | {"park": rng.randint(0, 1), "first": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("req", 2, "req", "request", "ask", "want", "reqs"),
            out("g", 2, "grant", "gnt", "g", "given", "win", reg=True),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        idle = "keeps its value" if p.park else "becomes 0"
        first = p.first
        return tell(
            p,
            n,
            f"{n.g} becomes 0",
            f"A fair arbiter of two. On each rising edge of {n.clk}: one request bit of {n.req} gets its bit of "
            f"{n.g}; with both, bit {1 - first} of {n.g} is set if bit {first} was granted, else bit {first}; with "
            f"none, {n.g} {idle}.",
            f"As {n.clk} rises, {n.g} becomes {n.req} if exactly one bit of it is set. If both are set the grant "
            f"changes sides: bit {1 - first} when {n.g} has only bit {first} set, otherwise bit {first}. Without "
            f"requests {n.g} {idle}.",
            f"{n.g} is one-hot. At the rising edge of {n.clk} a lone request in {n.req} wins; two requests alternate, "
            f"bit {1 - first} after bit {first} and bit {first} in all other cases; with no request {n.g} {idle}.",
            f"Grants alternate when both bits of {n.req} ask: if {n.g}[{first}] is set, then bit {1 - first}, else "
            f"bit {first}. A single request is granted at once, and with none {n.g} {idle}. All on the rising edge of "
            f"{n.clk}.",
            f"Round robin between {n.req}[0] and {n.req}[1] with every rising {n.clk}. A lone one wins. For both, the "
            f"winner is bit {first}, or bit {1 - first} if {n.g}[{first}] was set. For none, {n.g} {idle}.",
        )

    def body(self, p: Params, n: Names) -> str:
        one, other = (2, 1) if p.first else (1, 2)
        gate = f"if ({n.req} != 0) " if p.park else ""
        both = f"if ({n.req} == 3) {n.g} <= {n.g} == {one} ? {other} : {one};"
        return always(p, n, f"{n.g} <= 0;", f"{both}\nelse {gate}{n.g} <= {n.req};")

    def model(self, p: Params) -> Model:
        def step(s: set[int], x: Inputs) -> set[int]:
            asking = {i for i in (0, 1) if x.req >> i & 1}
            if len(asking) == 2:
                return {1 - p.first} if p.first in s else {p.first}
            return asking or (s if p.park else set())

        return Clocked(p, set(), step, lambda s, x: {"g": sum(2**i for i in s)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        return [{"req": r, "en": 1} for r in (3, 3, 3, 0, 3, 1, 0, 3, 2, 0, 3, 3, 1, 3, 0, 0, 2, 3)]


@register
class CodeLock(Family):
    """A lock that opens after the right keys in a row."""

    name = "code_lock"
    modules = ("code_lock", "lock_fsm", "key_lock", "combination", "door_lock", "safe_lock")

    def sample(self, rng: Random) -> dict[str, Any]:
        drawn = control(rng) | {"width": rng.randint(2, 4), "stay": rng.randint(0, 1)}
        return drawn | {"code": [rng.randrange(2 ** drawn["width"]) for _ in range(rng.choice((2, 3)))]}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("key", p.width, "key", "digit", "code_in", "symbol", "button"),
            out("open", 1, "open", "unlock", "opened", "door", "ok"),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        keys = ", ".join(map(str, p.code[:-1])) + f" and {p.code[-1]}"
        then = "stays open until reset" if p.stay else "closes at the next edge, whatever the key, and starts anew"
        return tell(
            p,
            n,
            "the lock starts anew, closed",
            f"A lock reads {n.key} ({p.width} bits) on each rising edge of {n.clk}. When the keys are {keys} in this "
            f"order, one an edge, {n.open} becomes 1. A wrong key starts from the beginning. Once open it {then}.",
            f"{n.open} is 1 after the keys {keys} came in a row on {n.key}, one at each rising edge of {n.clk}. Any "
            f"other key sends the lock back to its first state (that key is not tried again). An open lock {then}.",
            f"Step by step, as {n.clk} rises, {n.key} must be {keys}; then {n.open} is high. A mistake means the "
            f"first step again, at the next edge. The open lock {then}.",
            f"State machine: each right key on {n.key} (the order is {keys}) moves it one state on at the rising edge "
            f"of {n.clk}, a wrong one to the start. In the last state {n.open} is 1, and it {then}.",
            f"The code is {keys}, given on {n.key} at successive rising edges of {n.clk}. With the last right key "
            f"{n.open} goes to 1; every wrong key means back to the start. Opened, the lock {then}.",
        )

    def body(self, p: Params, n: Names) -> str:
        last = len(p.code)
        moves = [f"  {i}: st <= {n.key} == {key} ? {i + 1} : 0;" for i, key in enumerate(p.code)]
        if not p.stay:
            moves.append("  default: st <= 0;")
        text = f"  reg [1:0] st;\n  assign {n.open} = st == {last};\n"
        return text + always(p, n, "st <= 0;", "\n".join(["case (st)", *moves, "endcase"]))

    def model(self, p: Params) -> Model:
        def step(s: list[int], x: Inputs) -> list[int]:
            if s == p.code:
                return s if p.stay else []
            tried = [*s, x.key]
            return tried if tried == p.code[: len(tried)] else []

        return Clocked(p, [], step, lambda s, x: {"open": int(s == p.code)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        code = p.code
        tries = [[*code, *code, code[0], *code, 0, *code]]
        for i, key in enumerate(code):
            slip, near = (key + 1) % 2**p.width, key ^ 2 ** (p.width - 1)
            tries += [[*code[:i], slip, *code[i:], slip], [*code[:i], near, *code[i + 1 :], slip], [*code, *code]]
        again = {"rst": 1 - p.low}
        half = [*({"key": key, "en": 1} for key in code[:-1]), again, {"key": code[-1], "en": 1}]
        return half + [v for keys in tries for v in (again, *({"key": key, "en": 1} for key in keys))]
