"""The Verilog in a model's answer: out of reasoning, tags, fences and prose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from labkit.evaluate.lexing import LexError, instances, tokens

Mode = Literal["generous", "strict"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_THINK = re.compile(r"\A.*</think>|<think>.*", re.DOTALL)  # what comes before its end, or never ends
# Pieces of a source file that count outside of modules, and modules; in this order at the same place.
_PIECE = re.compile(
    r"""
    ^[ \t]*`(?:timescale|default_nettype|define|undef|resetall|include|ifdef|ifndef|elsif|else|endif)\b[^\n]*
  | ^[ \t]*typedef\b[^{;]*(?:\{[^}]*\})?[^;]*;
  | ^[ \t]*package\s+\w+\s*;.*?\bendpackage\b
  | (?P<module>(?:^[ \t]*|(?<=;)[ \t]*|(?<=\bendmodule)[ \t]+)(?:macro)?module\s+
      (?:automatic\s+|static\s+)?(?P<name>[A-Za-z_]\w*)\s*
      (?:\#|\(|;|import\b).*?(?:\bendmodule\b|(?=^[ \t]*module\s)|\Z))
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class _Piece:
    text: str
    module: str  # its name, or "" for a directive, type or package


def extract_module(text: str, top: str | None = None, mode: Mode = "generous") -> str:
    """The module that an answer gives, with the modules, types and directives that it needs; "" if there is none.

    Reasoning (``<think>``) is dropped, then the last ``<answer>`` and the fenced blocks are looked into. Words in
    comments do not count. Of several modules the one called `top` is taken, else the first, and those that it uses.

    Args:
        text: what the model wrote.
        top: the name of the wanted module.
        mode: "generous" finds a module among anything; "strict" wants an answer that is one fenced block or nothing
            but complete Verilog.
    """
    answer = _THINK.sub("", text).rpartition("<answer>")[2].partition("</answer>")[0]
    if mode == "strict":
        return _strict(answer, top)
    blocks = [block for block in _FENCE.findall(answer) if any(p.module for p in _pieces(block))]
    named = [block for block in blocks if any(p.module == top for p in _pieces(block))]
    return _needed(_pieces((named or blocks or [answer])[-1]), top)


def _strict(answer: str, top: str | None) -> str:
    blocks = _FENCE.findall(answer)
    if len(blocks) > 1 or (blocks and _FENCE.sub("", answer).strip()):
        return ""
    code = blocks[0] if blocks else answer
    pieces = _pieces(code)
    rest = _PIECE.sub("", _masked(code))
    whole = all(p.text.rstrip().endswith("endmodule") for p in pieces if p.module)
    return _needed(pieces, top) if whole and not rest.strip() else ""


def _masked(text: str) -> str:
    """The text with comments blanked out, of the same length."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _pieces(text: str) -> list[_Piece]:
    found = []
    for m in _PIECE.finditer(_masked(text)):
        start, end = m.end() - len(m[0].lstrip()), m.start() + len(m[0].rstrip())  # no comment around a piece
        found.append(_Piece(text[start:end], m["name"] if m["module"] else ""))
    return found


def _needed(pieces: list[_Piece], top: str | None) -> str:
    """The wanted module and all that it instantiates, in the order of the text, with what stands outside of modules."""
    modules = {p.module: p for p in reversed(pieces) if p.module}
    if not modules:
        return ""
    wanted = {top if top in modules else next(p.module for p in pieces if p.module)}
    while more := {name for w in wanted for name in _used(modules[w].text) if name in modules} - wanted:
        wanted |= more
    kept = [p for p in pieces if not p.module or (p.module in wanted and modules[p.module] is p)]
    return "\n".join(p.text for p in kept) + "\n"


def _used(module: str) -> set[str]:
    try:
        return {name for name, _ in instances(tokens(module))}
    except LexError:  # the judge will say so
        return set()
