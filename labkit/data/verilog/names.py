"""Names for modules and ports, composed of pieces so that a model has to copy them; some are kept for the tests."""

from __future__ import annotations

import hashlib
from random import Random

from labkit.data.decontaminate import KEYWORDS
from labkit.data.verilog.design import Names, Port


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


HELD_NAMES = 6  # one in so many of the composed names occurs in test splits only

TAGS = words("""
left right north south east west main aux core base fast slow big tiny hot cold red blue green gray top low mid
raw net bus bank lane slot unit cell node path port line row col tile ring gate key tag map mix run step wave
beam link page frame stage pipe tap lab bay hub pad dot arc fin ray oak elm fox owl bee ant sun moon sky sea
rock sand wind rain snow alpha beta gamma delta omega zeta pico nano micro macro vid aud mem ctl sys usr dev dsp
cpu gpu npu soc""")
MODULE_PREFIXES = words("""my the u m new simple basic fast small mini sub top user lab test demo custom hw rtl""")
MODULE_SUFFIXES = words("""core unit block mod top logic cell stage ip impl inst v2 v3 a b x w box lane""")
PORT_PREFIXES = words("""i o in out p s r x y d""")
PORT_SUFFIXES = words("""i o in out bus val sig w r p q x r1 d1 0 1 2""")


def held_name(name: str) -> bool:
    """Is this composed name kept for the test splits? A stable hash decides."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % HELD_NAMES == 0


def module_name(rng: Random, bases: tuple[str, ...], held: bool) -> str:
    """A module's name; a held-out one is always composed."""
    while True:
        base = rng.choice(bases)
        name = base if not held and rng.random() < 0.2 else _compose(rng, base)
        if name in KEYWORDS or (name != base and held_name(name) != held):
            continue
        return name


def _compose(rng: Random, base: str) -> str:
    style = rng.randrange(7)
    if style == 0:
        return f"{rng.choice(MODULE_PREFIXES)}_{base}"
    if style == 1:
        return f"{base}_{rng.choice(MODULE_SUFFIXES)}"
    if style == 2:
        return f"{base}{rng.randint(1, 32)}"
    if style == 3:
        return f"{rng.choice(TAGS)}_{base}"
    if style == 4:
        return f"{base}_{rng.choice(TAGS)}"
    if style == 5:
        return f"{rng.choice(TAGS)}_{rng.choice(TAGS)}"
    return f"{rng.choice(MODULE_PREFIXES)}_{base}_{rng.choice(TAGS)}"


def port_names(rng: Random, ports: list[Port], held: bool, taken: str) -> Names:
    """Distinct identifiers for the ports' roles, none of them the module's name `taken`.

    Two in three modules use the bare names of the pools, the others one style of prefix, suffix or invented names.
    In a test split (`held`) some names are composed ones that training never has, in training none is.
    """
    style = rng.choice(("bare", "prefix", "suffix", "tag", "invented")) if held or rng.random() < 0.4 else "bare"
    extra = rng.choice(TAGS)
    names: dict[str, str] = {}
    for port in ports:
        while True:
            name = _port_name(rng, port, style, extra)
            if name in KEYWORDS or name == taken or name in names.values() or name in LOCALS:
                continue
            if held_name(name) and not held and name not in port.pool:
                extra = rng.choice(TAGS) if style == "tag" else extra
                continue
            names[port.role] = name
            break
    return Names(**names)


LOCALS = frozenset(("i", "k", "t", "tb"))  # what bodies may declare themselves


def _port_name(rng: Random, port: Port, style: str, extra: str) -> str:
    name = rng.choice(port.pool)
    if style == "bare" or (port.kind != "data" and rng.random() < 0.7) or (style != "tag" and rng.random() < 0.2):
        return name
    if style == "prefix":
        return f"{rng.choice(PORT_PREFIXES)}_{name}"
    if style == "suffix":
        return f"{name}_{rng.choice(PORT_SUFFIXES)}"
    if style == "tag":
        return f"{extra}_{name}"
    first, second = rng.choice(TAGS), rng.choice(TAGS)
    return rng.choice((first, f"{first}_{second}", f"{first}{rng.randint(0, 9)}"))
