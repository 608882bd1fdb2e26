"""The sentences around a behaviour: how a specification opens and how it lists the ports.

Both are composed of pieces, so that a model has to learn where a name stands instead of a dozen sentences by heart.
One composition in `HELD` is kept for the tests: its pieces occur in training, the composition never does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import TypeVar

from labkit.data.verilog.design import Names, Port

HELD = 5  # one in so many compositions occurs in unseen wordings only

_VERBS = ("write", "implement", "design", "create", "build", "describe", "develop", "code", "provide", "define", "make")
_KINDS = ("module", "Verilog module", "synthesizable module", "circuit", "hardware block", "block", "unit")
_NAMED = ("named {top}", "called {top}", "{top}", "with the name {top}", "that is called {top}")
_TAILS = ("", "", " in Verilog", " as RTL code")
_REQUESTS = (
    "{Verb} a {kind} {named}{tail}.",
    "{Verb} the {kind} {top}{tail}.",
    "{Verb} {top}, a {kind}{tail}.",
    "{Verb} an implementation of the {kind} {top}{tail}.",
    "{Verb} the Verilog code of a {kind} {named}.",
    "Please {verb} a {kind} {named}{tail}.",
    "Please {verb} the {kind} {top}{tail}.",
    "Your task is to {verb} a {kind} {named}{tail}.",
    "Your job is to {verb} the {kind} {top}{tail}.",
    "Task: {verb} the {kind} {top}{tail}.",
    "I need a {kind} {named}{tail}.",
    "We want a {kind}, {top}{tail}.",
    "The {kind} {top} is needed{tail}.",
    "A {kind} {named} is to be written{tail}.",
    "Name of the {kind}: {top}.",
    "{top}: a {kind}{tail}.",
)

_LABELS = (
    "Ports: ",
    "Interface: ",
    "Signals: ",
    "Port list: ",
    "Its ports are, in order, ",
    "The ports are ",
    "It has the ports ",
)
_ITEMS = (
    "{direction} {range} {name}",
    "{direction} {name}{index}",
    "{direction} {name} ({bits})",
    "{size} {direction} {name}",
    "{name} ({direction}, {bits})",
    "{name} ({short}, {width})",
    "{direction} {name}, {bits}",
    "{name}: {direction}, {bits}",
)
_GROUP_LABELS = ("{Direction}{s}: ", "{Direction} port{s}: ", "The {direction}{s}: ")
_GROUP_ITEMS = ("{name} ({bits})", "{name}{index}", "{range} {name}", "{size} {name}", "{name} of {bits}")

Composition = TypeVar("Composition")


def opening(rng: Random, top: str, held: bool) -> str:
    """The first sentence, which names the module."""
    return _composed(_opening, rng, held).format(top=top)


def port_list(rng: Random, ports: list[Port], n: Names, held: bool) -> str:
    """The sentence with name, direction and width of every port, in the order of the header."""
    style = _composed(_style, rng, held)
    return style.write([(p.direction, getattr(n, p.role), p.width) for p in ports])


def held_wording(composition: object) -> bool:
    """Is this composition kept for unseen wordings? A stable hash decides."""
    return int(hashlib.sha256(str(composition).encode()).hexdigest()[:8], 16) % HELD == 0


def _composed(compose: Callable[[Random], Composition], rng: Random, held: bool) -> Composition:
    while held_wording(composition := compose(rng)) != held:
        pass
    return composition


def _opening(rng: Random) -> str:
    verb, kind = rng.choice(_VERBS), rng.choice(_KINDS)
    return rng.choice(_REQUESTS).format(
        verb=verb,
        Verb=verb.capitalize(),
        kind=kind,
        named=rng.choice(_NAMED),
        tail=rng.choice(_TAILS),
        top="{top}",
    )


Listed = list[tuple[str, str, int]]  # direction, name and width of each port


@dataclass(frozen=True)
class _Style:
    """How ports are listed: one by one after a label, or grouped by direction with a label for each group."""

    label: str
    item: str
    grouped: bool
    bullets: bool

    def write(self, ports: Listed) -> str:
        """The whole sentence, or the lines."""
        if not self.grouped:
            return self._listed(self.label, ports)
        return " ".join(
            self._listed(_filled(self.label, direction, s="s" if len(group) > 1 else ""), group)
            for direction, group in _groups(ports)
        )

    def _listed(self, label: str, ports: Listed) -> str:
        items = [" ".join(_described(self.item, *port).split()) for port in ports]
        if self.bullets:
            return label.strip(" ") + "".join(f"\n- {item}" for item in items) + "\n"
        return f"{label}{('; ' if ', ' in self.item and '(' not in self.item else ', ').join(items)}."


def _style(rng: Random) -> _Style:
    if rng.random() < 0.4:
        return _Style(rng.choice(_GROUP_LABELS), rng.choice(_GROUP_ITEMS), grouped=True, bullets=False)
    label, item = rng.choice(_LABELS), rng.choice(_ITEMS)
    return _Style(label, item, grouped=False, bullets=label.endswith(": ") and rng.random() < 0.3)


def _groups(ports: Listed) -> list[tuple[str, Listed]]:
    return [(direction, list(group)) for direction, group in groupby(ports, key=lambda p: p[0])]


def _filled(template: str, direction: str, **fields: object) -> str:
    return template.format(direction=direction, Direction=direction.capitalize(), **fields)


def _described(item: str, direction: str, name: str, width: int) -> str:
    span = f"[{width - 1}:0]" if width > 1 else ""
    return _filled(
        item,
        direction,
        short=direction.removesuffix("put"),
        name=name,
        width=width,
        bits="1 bit" if width == 1 else f"{width} bits",
        size="one-bit" if width == 1 else f"{width}-bit",
        range=span,
        index=span,
    )
