"""Plain English about digital design, in the vocabulary of the specifications, put together from parts."""

from __future__ import annotations

from random import Random

THINGS = """adder|subtractor|comparator|multiplexer|decoder|encoder|priority encoder|shifter|counter|register|shift
register|parity generator|parity checker|arithmetic unit|saturating adder|state machine|edge detector|Gray code
converter|clock divider|barrel shifter|demultiplexer|population counter|timer|arbiter|FIFO|register file|debouncer"""
KINDS = tuple(thing.replace("\n", " ") for thing in THINGS.split("|"))
PLACES = (
    "a small processor",
    "a display driver",
    "a serial link",
    "a memory controller",
    "a bus",
    "a sensor",
    "a pipeline",
)
SIGNALS = (
    "the clock",
    "the reset",
    "the enable",
    "the select input",
    "the carry",
    "the result",
    "the data input",
    "the valid flag",
)

SENTENCES = (
    "A {kind} is a common block of {place}.",
    "In {place} a {kind} works on {w} bits at a time.",
    "The width of a {kind} is often {w} bits, and sometimes {v}.",
    "A vector of {w} bits has indices {top} down to 0, and its most significant bit is bit {top}.",
    "With {w} bits an unsigned number is at most {full}.",
    "A signed number of {w} bits is negative when bit {top} is 1.",
    "A combinational block has no memory: its output depends only on its inputs.",
    "A clocked block changes its state on the rising edge of the clock.",
    "A synchronous reset acts on the clock edge, an asynchronous one acts at once.",
    "An active low signal does its work when it is 0.",
    "An active high signal does its work when it is 1.",
    "When {signal} is low, the output of the {kind} is zero.",
    "When {signal} is high, the {kind} holds its value.",
    "Name {signal} clearly, so that the reader of a {kind} knows what it does.",
    "A {kind} may be tested by comparing its outputs with expected values.",
    "First list the ports of the {kind}, then describe what each output does.",
    "The sum of two {w}-bit numbers needs {next} bits if the carry is kept.",
    "A {kind} and a {other} are often used together.",
    "A one-hot code of {w} bits has exactly one bit set.",
    "A shift left by one place multiplies by 2, and a shift right by one place divides by 2.",
    "In Gray code two neighbours differ in one bit.",
    "The parity of a word is the exclusive or of all its bits.",
    "A multiplexer passes one of its inputs to the output; a select input chooses which.",
    "Saturation means that a result too large stays at the largest value instead of wrapping around.",
    "The lowest set bit has priority in some designs, the highest set bit in others.",
    "Use an assign statement for simple logic and an always block for a register.",
    "The {kind} is enabled by {signal}.",
)


def paragraph(rng: Random) -> str:
    """Two to five sentences."""
    width = rng.randint(2, 16)
    fields = {
        "kind": rng.choice(KINDS),
        "other": rng.choice(KINDS),
        "place": rng.choice(PLACES),
        "signal": rng.choice(SIGNALS),
        "w": width,
        "v": rng.choice((16, 24, 32)),
        "top": width - 1,
        "next": width + 1,
        "full": (1 << width) - 1,
    }
    text = " ".join(s.format(**fields) for s in rng.sample(SENTENCES, rng.randint(2, 5)))
    return text.replace(" a a", " an a").replace(" a e", " an e").replace("A e", "An e").replace("A a", "An a") + "\n"
