"""Clocked families: small memories and the counters of a FIFO."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.data.verilog.clocked import Clocked, always, control, control_ports, tell
from labkit.data.verilog.design import Family, Inputs, Model, Names, Params, Port, inp, out, register

WRITE = ("we", "wr_en", "write", "wen", "store")
DATA = ("wdata", "din", "data_in", "d", "wr_data")
NO_RESET = {"style": "none", "low": 0}


def _array(p: Params) -> str:
    return f"  reg [{p.width - 1}:0] mem [0:{2**p.abits - 1}];\n"


@register
class Ram(Family):
    """A single-port memory, read at once or at the clock edge."""

    name = "ram"
    modules = ("ram", "memory", "sp_ram", "scratchpad", "data_mem", "storage")

    def sample(self, rng: Random) -> dict[str, Any]:
        read = rng.choice(("now", "old", "new", "hold"))
        return NO_RESET | {
            "width": rng.randint(2, 12),
            "abits": rng.randint(2, 4),
            "read": read,
            "en": rng.randint(0, 1),
        }

    def ports(self, p: Params) -> list[Port]:
        q = out("q", p.width, "rdata", "dout", "data_out", "q", "rd_data", reg=p.read != "now")
        return [
            *control_ports(p),
            inp("we", 1, *WRITE),
            inp("addr", p.abits, "addr", "address", "a", "index", "adr"),
            inp("d", p.width, *DATA),
            q,
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        size = f"{2**p.abits} words of {p.width} bits"
        read = {
            "now": f"{n.q} always shows the word at {n.addr}, without waiting for the clock.",
            "old": f"At every such edge {n.q} takes the word at {n.addr} as it was before any write.",
            "new": f"At every such edge {n.q} takes the word at {n.addr}, or {n.d} if it is being written.",
            "hold": f"When {n.we} is 0, {n.q} takes the word at {n.addr} at that edge; a write leaves {n.q} as it is.",
        }[p.read]
        return tell(
            p,
            n,
            "",
            f"A memory of {size}. On the rising edge of {n.clk}, if {n.we} is 1, {n.d} is stored at address {n.addr}. "
            f"{read}",
            f"Store {size}. {n.we} high writes {n.d} into the word selected by {n.addr} as {n.clk} rises. {read}",
            f"A single-port RAM with {size}: when {n.we} is set, the rising edge of {n.clk} puts {n.d} at {n.addr}. "
            f"{read}",
            f"RAM, {size}, one address {n.addr} for both uses. Writing of {n.d} takes place at a rising edge of "
            f"{n.clk} with {n.we} high. {read}",
            f"There are {size}. With rising {n.clk} and {n.we} at 1 the word number {n.addr} becomes {n.d}. {read}",
        )

    def body(self, p: Params, n: Names) -> str:
        write, word = f"if ({n.we}) mem[{n.addr}] <= {n.d};", f"mem[{n.addr}]"
        if p.read == "now":
            return f"{_array(p)}  assign {n.q} = {word};\n" + always(p, n, "", write)
        read = {
            "old": f"\n{n.q} <= {word};",
            "new": f"\n{n.q} <= {n.we} ? {n.d} : {word};",
            "hold": f"\nelse {n.q} <= {word};",
        }[p.read]
        return _array(p) + always(p, n, "", write + read)

    def model(self, p: Params) -> Model:
        def step(s: tuple[dict[int, int], int | None], x: Inputs) -> tuple[dict[int, int], int | None]:
            old, shown = s
            words = old | {x.addr: x.d} if x.we else old
            if p.read == "hold" and x.we:
                return words, shown
            return words, (words if p.read == "new" else old).get(x.addr)

        def show(s: tuple[dict[int, int], int | None], x: Inputs) -> dict[str, int | None]:
            return {"q": s[0].get(x.addr) if p.read == "now" else s[1]}

        return Clocked(p, ({}, None), step, show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        writes = [{"we": 1, "addr": a, "en": 1} for a in range(2**p.abits)]
        return writes + [{"we": 0, "addr": a, "en": 1} for a in reversed(range(2**p.abits))]


@register
class RegisterFile(Family):
    """A register file with a write port and one or two read ports."""

    name = "register_file"
    modules = ("register_file", "regfile", "reg_bank", "gpr", "cpu_regs", "reg_array")

    def sample(self, rng: Random) -> dict[str, Any]:
        drawn = {"width": rng.randint(2, 10), "abits": rng.randint(2, 3), "two": rng.randint(0, 1)}
        return NO_RESET | drawn | {"zero": rng.randint(0, 1), "late": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        late = bool(p.late)
        found = [
            *control_ports(p),
            inp("we", 1, *WRITE),
            inp("wa", p.abits, "waddr", "wr_addr", "rd_dest", "wa"),
            inp("d", p.width, *DATA),
            inp("ra", p.abits, "raddr", "ra", "rs1", "rd_addr"),
        ]
        one = out("q", p.width, "rdata", "q", "rdata1", "dout_a", reg=late)
        if not p.two:
            return [*found, one]
        return [
            *found,
            inp("rb", p.abits, "raddr2", "rb", "rs2", "rd_addr2"),
            one,
            out("r", p.width, "r2", "q2", "rdata2", "dout_b", reg=late),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        size = f"{2**p.abits} registers of {p.width} bits"
        pairs = f"{n.q} shows the register {n.ra}" + (f" and {n.r} the register {n.rb}" if p.two else "")
        read = f"At each such edge, {pairs}, as before the write." if p.late else f"Reading takes no clock: {pairs}."
        zero = " Register 0 always reads as 0." if p.zero else ""
        return tell(
            p,
            n,
            "",
            f"A register file: {size}. On the rising edge of {n.clk}, if {n.we} is 1, register {n.wa} takes {n.d}. "
            f"{read}{zero}",
            f"It holds {size}. {n.we} high stores {n.d} in the one numbered {n.wa} as {n.clk} rises. {read}{zero}",
            f"A bank of {size}, written at rising edges of {n.clk}: with {n.we} set, {n.d} goes to register {n.wa}. "
            f"{read}{zero}",
            f"{size[0].upper() + size[1:]}. When {n.we} is high, the rising edge of {n.clk} copies {n.d} to number "
            f"{n.wa}. {read}{zero}",
            f"There are {size}. With rising {n.clk} and {n.we} at 1, {n.d} is put into register {n.wa}. {read}{zero}",
        )

    def body(self, p: Params, n: Names) -> str:
        def word(address: str) -> str:
            return f"{address} == 0 ? 0 : mem[{address}]" if p.zero else f"mem[{address}]"

        reads = [(n.q, n.ra), (n.r, n.rb)] if p.two else [(n.q, n.ra)]
        write = f"if ({n.we}) mem[{n.wa}] <= {n.d};"
        if p.late:
            return _array(p) + always(p, n, "", "\n".join([write, *(f"{q} <= {word(a)};" for q, a in reads)]))
        return _array(p) + "".join(f"  assign {q} = {word(a)};\n" for q, a in reads) + always(p, n, "", write)

    def model(self, p: Params) -> Model:
        def read(words: dict[int, int], address: int) -> int | None:
            return 0 if p.zero and address == 0 else words.get(address)

        def both(words: dict[int, int], x: Inputs) -> dict[str, int | None]:
            return {"q": read(words, x.ra), "r": read(words, x.rb) if p.two else None}

        def step(s: tuple[dict[int, int], Any], x: Inputs) -> tuple[dict[int, int], Any]:
            return (s[0] | {x.wa: x.d} if x.we else s[0]), both(s[0], x)

        start: tuple[dict[int, int], Any] = ({}, {"q": None, "r": None})
        return Clocked(p, start, step, lambda s, x: s[1] if p.late else both(s[0], x))

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        size = 2**p.abits
        writes = [{"we": 1, "wa": a, "ra": (a - 1) % size} for a in range(size)]
        return [
            *writes,
            {"we": 0, "wa": 0},
            *({"we": i % 3 == 1, "wa": i // 2 % size, "ra": i // 2 % size} for i in range(2 * size)),
        ]


@register
class FifoLevel(Family):
    """How many words a FIFO holds."""

    name = "fifo_level"
    modules = ("fifo_level", "fifo_count", "occupancy", "queue_level", "fill_level", "credit_track")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng, enable=False) | {
            "depth": rng.choice((3, 4, 5, 6, 7, 8, 10, 12)),
            "flags": rng.choice(("both", "full", "empty")),
        }

    def ports(self, p: Params) -> list[Port]:
        full = [out("full", 1, "full", "is_full", "no_room")] if p.flags != "empty" else []
        empty = [out("empty", 1, "empty", "is_empty", "no_data")] if p.flags != "full" else []
        count = out("q", p.depth.bit_length(), "level", "count", "used", "fill", reg=True)
        return [
            *control_ports(p),
            inp("push", 1, "push", "wr", "write_en", "put"),
            inp("pop", 1, "pop", "rd", "read_en", "take"),
            count,
            *full,
            *empty,
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        flags = []
        if p.flags != "empty":
            flags.append(f"{n.full} is 1 when it is {p.depth}")
        if p.flags != "full":
            flags.append(f"{n.empty} is 1 when it is 0")
        flag = " and ".join(flags)
        return tell(
            p,
            n,
            f"{n.q} becomes 0",
            f"{n.q} counts the words in a FIFO of {p.depth}. On each rising edge of {n.clk}, {n.push} alone adds 1 "
            f"unless it is {p.depth}, {n.pop} alone subtracts 1 unless it is 0, and both or neither leave it. {flag}.",
            f"The level {n.q} of a queue for {p.depth} words: as {n.clk} rises, it grows by 1 with {n.push} and falls "
            f"by 1 with {n.pop}, never beyond 0 or {p.depth}; both at once keep it. {flag}.",
            f"Track the occupancy of a FIFO, 0 to {p.depth}, in {n.q}. A push ({n.push}) without a pop adds one and a "
            f"pop ({n.pop}) without a push takes one, at rising edges of {n.clk}; at the limits they are ignored. "
            f"{flag}.",
            f"At a rising edge of {n.clk}, if only {n.push} is 1 then {n.q} goes up by one (at most {p.depth}); if "
            f"only {n.pop} is 1 it goes down by one (at least 0); else it holds. {flag}.",
            f"{n.q} is the number of stored words, between 0 and {p.depth}. With rising {n.clk}: {n.push} and not "
            f"{n.pop} means one more, {n.pop} and not {n.push} one less, if possible; otherwise no change. {flag}.",
        )

    def body(self, p: Params, n: Names) -> str:
        text = f"  assign {n.full} = {n.q} == {p.depth};\n" if p.flags != "empty" else ""
        text += f"  assign {n.empty} = {n.q} == 0;\n" if p.flags != "full" else ""
        full = f"!{n.full}" if p.flags != "empty" else f"{n.q} != {p.depth}"
        empty = f"!{n.empty}" if p.flags != "full" else f"{n.q} != 0"
        moves = (
            f"if ({n.push} && !{n.pop} && {full}) {n.q} <= {n.q} + 1;\n"
            f"else if ({n.pop} && !{n.push} && {empty}) {n.q} <= {n.q} - 1;"
        )
        return text + always(p, n, f"{n.q} <= 0;", moves)

    def model(self, p: Params) -> Model:
        def step(level: int, x: Inputs) -> int:
            return min(max(level + x.push - x.pop, 0), p.depth)

        return Clocked(p, 0, step, lambda s, x: {"q": s, "full": int(s >= p.depth), "empty": int(s <= 0)})

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        push, pop, both = {"push": 1, "pop": 0}, {"push": 0, "pop": 1}, {"push": 1, "pop": 1}
        return [pop, both, *[push] * (p.depth + 2), both, both, *[pop] * (p.depth + 2), both, push, push, both]


@register
class FifoPointers(Family):
    """Write and read pointers of a FIFO with a wrap bit."""

    name = "fifo_pointers"
    modules = ("fifo_pointers", "fifo_ptr", "ring_pointers", "queue_ptrs", "fifo_ctrl", "buffer_ctrl")

    def sample(self, rng: Random) -> dict[str, Any]:
        return control(rng, enable=False) | {"abits": rng.randint(2, 4), "guard": rng.randint(0, 1)}

    def ports(self, p: Params) -> list[Port]:
        return [
            *control_ports(p),
            inp("push", 1, "push", "wr", "write_en", "put"),
            inp("pop", 1, "pop", "rd", "read_en", "take"),
            out("w", p.abits + 1, "wptr", "wr_ptr", "head", "w_index", reg=True),
            out("r", p.abits + 1, "rptr", "rd_ptr", "tail", "r_index", reg=True),
            out("full", 1, "full", "is_full", "no_room"),
            out("empty", 1, "empty", "is_empty", "no_data"),
        ]

    def says(self, p: Params, n: Names) -> list[str]:
        push, pop, bits = n.push, n.pop, p.abits + 1
        if p.guard:
            push, pop = f"{n.push} (unless {n.full})", f"{n.pop} (unless {n.empty})"
        flags = f"{n.empty} is 1 when the pointers are equal, {n.full} when only their top bits differ."
        return tell(
            p,
            n,
            "both pointers become 0",
            f"Pointers of a FIFO with {2**p.abits} places, {bits} bits each. On each rising edge of {n.clk}, {push} "
            f"adds 1 to {n.w} and {pop} adds 1 to {n.r}; they wrap. {flags}",
            f"{n.w} and {n.r} have {bits} bits, one more than the {2**p.abits} places need. As {n.clk} rises, {n.w} "
            f"moves up by one with {push}, {n.r} with {pop}. {flags}",
            f"Keep the write pointer {n.w} and the read pointer {n.r} ({bits} bits, wrapping): at the rising edge of "
            f"{n.clk}, {push} advances the first, {pop} the second. {flags}",
            f"Two {bits}-bit counters on the rising edge of {n.clk}: {n.w} counts {push}, {n.r} counts {pop}. {flags}",
            f"With rising {n.clk}, {push} makes {n.w} one greater and {pop} makes {n.r} one greater, in {bits} bits. "
            f"{flags}",
        )

    def body(self, p: Params, n: Names) -> str:
        push, pop = (f"{n.push} && !{n.full}", f"{n.pop} && !{n.empty}") if p.guard else (n.push, n.pop)
        moves = f"if ({push}) {n.w} <= {n.w} + 1;\nif ({pop}) {n.r} <= {n.r} + 1;"
        return f"  assign {n.empty} = {n.w} == {n.r};\n  assign {n.full} = ({n.w} ^ {n.r}) == {2**p.abits};\n" + always(
            p, n, f"{n.w} <= 0;\n{n.r} <= 0;", moves
        )

    def model(self, p: Params) -> Model:
        places = 2**p.abits

        def step(s: tuple[int, int], x: Inputs) -> tuple[int, int]:
            written, taken = s
            room, stock = not p.guard or written - taken < places, not p.guard or written > taken
            return written + (x.push and room), taken + (x.pop and stock)

        def show(s: tuple[int, int], x: Inputs) -> dict[str, int]:
            used = (s[0] - s[1]) % (2 * places)
            return {"w": s[0], "r": s[1], "full": int(used == places), "empty": int(used == 0)}

        return Clocked(p, (0, 0), step, show)

    def stimuli(self, p: Params, rng: Random) -> list[dict[str, int]]:
        push, pop, both = {"push": 1, "pop": 0}, {"push": 0, "pop": 1}, {"push": 1, "pop": 1}
        fill, drain = [push] * (2**p.abits + 1), [pop] * (2**p.abits + 1)
        return [pop, *fill, both, both, *drain, both, *fill, *drain, *[both] * 3]
