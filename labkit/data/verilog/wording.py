"""The sentences around a behaviour: how a specification opens and how it lists the ports. The last are held out."""

from __future__ import annotations

from itertools import groupby
from random import Random

from labkit.data.verilog.design import Names, Port

OPENINGS = (
    "Write a Verilog module named {top}.",
    "Implement the Verilog module {top}.",
    "Design a module called {top} in Verilog.",
    "Create a Verilog module with the name {top}.",
    "The module {top} is needed.",
    "Please write {top}, a synthesizable Verilog module.",
    "Describe {top} in Verilog.",
    "Module name: {top}.",
    "I need a Verilog module, {top}.",
    "Build a circuit {top}.",
    "Give the Verilog code of a module {top}.",
    "Task: code the hardware block {top}.",
    "Provide an implementation of {top} in Verilog.",
    "Your job is to write the RTL of {top}.",
)
HELD_OPENINGS = 2


def opening(rng: Random, top: str, held: bool) -> str:
    """The first sentence, which names the module."""
    choices = OPENINGS[-HELD_OPENINGS:] if held else OPENINGS[:-HELD_OPENINGS]
    return rng.choice(choices).format(top=top)


def port_list(rng: Random, ports: list[Port], n: Names, held: bool) -> str:
    """The sentence with name, direction and width of every port, in the order of the header."""
    style = _STYLES[-1] if held else rng.choice(_STYLES[:-1])
    return style([(p.direction, getattr(n, p.role), p.width) for p in ports])


Listed = list[tuple[str, str, int]]


def _bits(width: int) -> str:
    return "1 bit" if width == 1 else f"{width} bits"


def _groups(ports: Listed) -> list[tuple[str, Listed]]:
    return [(direction, list(group)) for direction, group in groupby(ports, key=lambda p: p[0])]


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _colon(ports: Listed) -> str:
    parts = []
    for direction, group in _groups(ports):
        label = direction.capitalize() + ("s" if len(group) > 1 else "")
        parts.append(f"{label}: {', '.join(f'{name} ({_bits(width)})' for _, name, width in group)}.")
    return " ".join(parts)


def _header(ports: Listed) -> str:
    def one(direction: str, name: str, width: int) -> str:
        return f"{direction} {f'[{width - 1}:0] ' if width > 1 else ''}{name}"

    return f"Ports: {', '.join(one(*port) for port in ports)}."


def _bullets(ports: Listed) -> str:
    lines = [f"- {direction} {name}, {_bits(width)}" for direction, name, width in ports]
    return "Ports:\n" + "\n".join(lines) + "\n"


def _sentence(ports: Listed) -> str:
    parts = [f"{f'{width}-bit' if width > 1 else 'one-bit'} {direction} {name}" for direction, name, width in ports]
    return f"Its ports are, in order, the {_and(parts)}."


def _brackets(ports: Listed) -> str:
    parts = []
    for direction, group in _groups(ports):
        names = [f"{name}[{width - 1}:0]" if width > 1 else name for _, name, width in group]
        parts.append(f"{direction}{'s' if len(group) > 1 else ''} {_and(names)}")
    return f"It has the {_and(parts)}."


def _typed(ports: Listed) -> str:
    parts = [f"{name} ({'in' if direction == 'input' else 'out'}, {width})" for direction, name, width in ports]
    return f"Interface with widths: {', '.join(parts)}."


_STYLES = (_colon, _header, _bullets, _sentence, _brackets, _typed)
