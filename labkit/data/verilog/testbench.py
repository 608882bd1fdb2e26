"""Self-checking Verilog testbenches: vectors written out, expected values from the family's golden model in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from types import SimpleNamespace

from labkit.data.verilog.design import Family, Model, Names, Params, Port

RANDOM_VECTORS = 48
EXHAUSTIVE_BITS = 6  # a combinational design with so few input bits is tried with all of its inputs
RESETS = 5  # resets among the random vectors, asserted when the outputs differ from those after a reset
RESET_GAP = 5  # vectors between two of them
PAUSES = 0.25  # share of directed vectors that come once more before, with the enable low
ODDS = {"en": 0.8, "load": 0.2, "clr": 0.1}  # share of ones, by role; other inputs of one bit get a half

_TEMPLATE = """\
module tb;
{signals}
  integer errors = 0, samples = 0;

  {top} dut({connections});

  // An x bit of `want` is not compared; an x bit of the design is a mismatch.
  task check(input [{out_top}:0] want);
    begin
      samples = samples + 1;
      if (want !== (want ^ {{{outputs}}} ^ want)) errors = errors + 1;
    end
  endtask

{step}

  initial begin
    #1;
{vectors}
    $display("Mismatches: %0d in %0d samples", errors, samples);
    $finish;
  end
endmodule
"""

_CLOCKED = """\
  // New inputs while the clock is still high (a latch lets them through), the falling edge, a sample, the rising
  // edge, a sample.
  task step(input [{in_top}:0] drive, input [{out_top}:0] low, input [{out_top}:0] high);
    begin
      {{{inputs}}} = drive;
      #2 {clock} = 0;
      #4 check(low);
      {clock} = 1;
      #4 check(high);
    end
  endtask"""

_COMBINATIONAL = """\
  task step(input [{in_top}:0] drive, input [{out_top}:0] want);
    begin
      {{{inputs}}} = drive;
      #10 check(want);
    end
  endtask"""


def build(family: Family, params: Params, names: Names, top: str, ports: list[Port], seed: int) -> str:
    """The text of a testbench `tb` of the module `top`.

    Its last line of output, the only one, is ``Mismatches: X in Y samples``. A combinational design is sampled once a
    vector, a clocked one twice: with the new inputs before the rising edge, and after it.
    """
    rng = Random(seed)
    model = family.model(params)
    clock = next((p for p in ports if p.kind == "clock"), None)
    inputs = [p for p in ports if p.direction == "input" and p.kind != "clock"]
    outputs = [p for p in ports if p.direction == "output"]
    directed = family.stimuli(params, rng)
    rows: Iterator[tuple[str, ...]]
    if clock:
        rows = _clocked_rows(model, inputs, outputs, directed, rng)
    else:
        rows = _combinational_rows(model, inputs, outputs, directed, rng)
    fields = {
        "in_top": sum(p.width for p in inputs) - 1,
        "out_top": sum(p.width for p in outputs) - 1,
        "inputs": ", ".join(_signal(p, names) for p in inputs),
        "outputs": ", ".join(_signal(p, names) for p in outputs),
        "clock": clock and _signal(clock, names),
    }
    return _TEMPLATE.format(
        top=top,
        signals="\n".join(_declaration(p, names) for p in ports),
        connections=", ".join(f".{getattr(names, p.role)}({_signal(p, names)})" for p in ports),
        step=(_CLOCKED if clock else _COMBINATIONAL).format(**fields),
        vectors="\n".join(f"    step({', '.join(row)});" for row in rows),
        **fields,
    )


def _signal(port: Port, names: Names) -> str:
    """The testbench's own signal at a port; the prefix keeps it apart from the tasks' names."""
    return ("o_" if port.direction == "output" else "i_") + getattr(names, port.role)


def _declaration(port: Port, names: Names) -> str:
    kind = "wire" if port.direction == "output" else "reg"
    span = f" [{port.width - 1}:0]" if port.width > 1 else ""
    return f"  {kind}{span} {_signal(port, names)}{' = 0' if port.kind == 'clock' else ''};"


def _combinational_rows(
    model: Model, inputs: list[Port], outputs: list[Port], directed: list[dict[str, int]], rng: Random
) -> Iterator[tuple[str, str]]:
    for x in _combinational_inputs(inputs, directed, rng):
        yield _literal(inputs, vars(x)), _literal(outputs, model.outputs(x))


def _combinational_inputs(inputs: list[Port], directed: list[dict[str, int]], rng: Random) -> Iterator[SimpleNamespace]:
    bits = sum(p.width for p in inputs)
    if bits <= EXHAUSTIVE_BITS:
        for code in range(2**bits):
            yield _unpack(inputs, code)
        return
    for code in (0, 2**bits - 1):
        yield _unpack(inputs, code)
    for fixed in directed:
        yield _draw(inputs, rng, fixed)
    for _ in range(RANDOM_VECTORS):
        yield _draw(inputs, rng, {})


def _unpack(inputs: list[Port], code: int) -> SimpleNamespace:
    values = {}
    for port in reversed(inputs):
        values[port.role] = code & ((1 << port.width) - 1)
        code >>= port.width
    return SimpleNamespace(**values)


def _clocked_rows(
    model: Model, inputs: list[Port], outputs: list[Port], directed: list[dict[str, int]], rng: Random
) -> Iterator[tuple[str, str, str]]:
    """Reset, the directed vectors, reset, then random vectors with resets where they show."""
    in_reset = {p.role: int(not p.active_low) for p in inputs if p.kind == "reset"}
    now: Mapping[str, int | None] = {}

    def row(fixed: dict[str, int]) -> tuple[str, str, str]:
        nonlocal now
        x = _draw(inputs, rng, fixed)
        model.settle(x)
        low = _literal(outputs, model.outputs(x))
        model.edge(x)
        now = model.outputs(x)
        return _literal(inputs, vars(x)), low, _literal(outputs, now)

    if in_reset:
        yield row(in_reset)
        yield row(in_reset)
    idle, left, since = dict(now), RESETS if in_reset else 0, 0
    gated = any(p.role == "en" for p in inputs)
    for fixed in directed:
        if gated and fixed.get("en") and rng.random() < PAUSES:
            yield row(fixed | {"en": 0})
        yield row(fixed)
    for i in range(RANDOM_VECTORS + 2 * left):
        due = left and since >= RESET_GAP and (dict(now) != idle or i > RANDOM_VECTORS)
        yield row(in_reset if due else {})
        left, since = (left - 1, 0) if due else (left, since + 1)


def _draw(inputs: list[Port], rng: Random, fixed: Mapping[str, int]) -> SimpleNamespace:
    """One input vector: the fixed values, resets idle, the rest random with corners and equal operands."""
    values: dict[str, int] = {}
    for port in inputs:
        if port.role in fixed:
            values[port.role] = fixed[port.role] & ((1 << port.width) - 1)
        elif port.kind == "reset":
            values[port.role] = int(port.active_low)
        elif port.width == 1:
            values[port.role] = int(rng.random() < ODDS.get(port.role, 0.5))
        else:
            peers = [values[q.role] for q in inputs if q.role in values and q.width == port.width]
            values[port.role] = _word(port.width, peers, rng)
    return SimpleNamespace(**values)


def _word(width: int, peers: list[int], rng: Random) -> int:
    """A random word: often a corner, an operand's own value, or its neighbour."""
    full = (1 << width) - 1
    luck = rng.random()
    if peers and luck < 0.2:
        return (rng.choice(peers) + rng.choice((-1, 0, 0, 1))) & full
    if luck < 0.35:
        return rng.choice((0, 1, full, full >> 1, (full >> 1) + 1, 1 << rng.randrange(width)))
    return rng.getrandbits(width)


def _literal(ports: list[Port], values: Mapping[str, int | None]) -> str:
    """The values packed in the ports' order as one sized literal, undefined ones as x."""
    bits = sum(p.width for p in ports)
    if any(values[p.role] is None for p in ports):
        text = "".join(_binary(values[p.role], p.width) for p in ports)
        return f"{bits}'b{text}"
    code = 0
    for port in ports:
        code = code << port.width | (int(values[port.role]) & ((1 << port.width) - 1))  # type: ignore[arg-type]
    return f"{bits}'h{code:x}"


def _binary(value: int | None, width: int) -> str:
    return "x" * width if value is None else f"{value & ((1 << width) - 1):0{width}b}"
