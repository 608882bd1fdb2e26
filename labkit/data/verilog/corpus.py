"""Documents for pretraining, of the training split only: commented modules, modules alone, prose, and copying."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from labkit.data.verilog.design import header
from labkit.data.verilog.generate import Draft, comment, drafts
from labkit.data.verilog.names import MODULE_PREFIXES, MODULE_SUFFIXES, TAGS, held_name
from labkit.data.verilog.prose import paragraph
from labkit.data.verilog.wording import opening, port_list

ROUND = 1000  # drafts drawn at a time
# What may stand between a specification in plain text and the prose after it.
_BREAKS = (
    "\n",
    "\n",
    "\n\n",
    "\n\n\n",
    " ",
    "\n---\n",
    "\n===\n\n",
    "\n>>\n",
    "\n## ",
    "\n* ",
    "\n1. ",
    "\n\nReply: ",
    "\n|\n",
)


def corpus(seed: int = 0) -> Iterator[str]:
    """Documents without end: 50 % a specification in comments then its module, 20 % a module alone or with the
    comment after it, 20 % prose, 10 % copying of names. Nothing of it is a question with an answer: where a
    specification stands as plain text, more prose follows it, and no module."""
    for part in count():
        for i, drawn in enumerate(drafts("train", ROUND, f"{seed}/corpus/{part}")):
            yield document(drawn, Random(f"{seed}/document/{part}/{i}"))


def document(drawn: Draft, rng: Random) -> str:
    """One document about a draft."""
    luck = rng.random()
    if luck < 0.5:
        return comment(drawn.spec, rng) + drawn.reference
    if luck < 0.6:
        return drawn.reference
    if luck < 0.7:
        return drawn.reference + comment(drawn.spec, rng)
    return _prose(drawn, rng) if luck < 0.9 else _copy(drawn, rng)


def _prose(drawn: Draft, rng: Random) -> str:
    """A paragraph, or a specification among paragraphs, as in a catalogue of requirements."""
    if rng.random() < 0.1:
        return paragraph(rng)
    before = paragraph(rng) if rng.random() < 0.3 else ""
    return f"{before}{drawn.spec.strip()}{rng.choice(_BREAKS)}{paragraph(rng)}"


def _copy(drawn: Draft, rng: Random) -> str:
    """Names, then the same names again."""
    if rng.random() < 0.4:
        listed = port_list(rng, drawn.ports, drawn.names, held=False)
        text = f"{opening(rng, drawn.top, held=False)} {listed}"
        return comment(text.strip(), rng) + header(drawn.top, drawn.ports, drawn.names)
    names = [_name(rng) for _ in range(rng.randint(2, 7))]
    line = ", ".join(names)
    style = rng.randrange(4)
    if style == 0:
        return f"Names: {line}.\nAgain: {line}.\n"
    if style == 1:
        return f"// {line}\n" + "".join(f"  wire {name};\n" for name in names)
    if style == 2:
        return f"The module {names[0]} has {line}.\nmodule {names[0]}(\n  " + ",\n  ".join(names[1:]) + "\n);\n"
    return " ".join(names) + "\n" + " ".join(names) + "\n"


def _name(rng: Random) -> str:
    while True:
        parts = [
            rng.choice((TAGS, MODULE_PREFIXES, MODULE_SUFFIXES)[rng.randrange(3)]) for _ in range(rng.randint(1, 3))
        ]
        name = "_".join(parts) + (str(rng.randint(0, 32)) if rng.random() < 0.25 else "")
        if not held_name(name):
            return name
