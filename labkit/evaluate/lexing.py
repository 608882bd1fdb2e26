"""Verilog text as tokens: enough to tell code from comments and strings, and to rename, nothing more."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<name>[A-Za-z_][\w$]*)
  | (?P<space>[^\S\n]+)
  | (?P<newline>\n)
  | (?P<number>(?:\d[\d_]*\s*)?'[sS]?[bodhBODH]\s*[0-9a-fA-FxXzZ?_]+
      |'[01xXzZ](?![\w$])|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
  | (?P<escaped>\\[^\s]+)
  | (?P<system>\$[A-Za-z_][\w$]*)
  | (?P<directive>`[A-Za-z_][\w$]*)
  | (?P<symbol>::|->|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_COMMENT_OR_STRING = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

KEYWORDS = frozenset(
    """
    always always_comb always_ff always_latch and assert assign assume automatic begin bit buf bufif0 bufif1 byte case
    casex casez cmos const continue deassign default defparam disable do edge else end endcase endfunction endgenerate
    endmodule endpackage endprimitive endprogram endspecify endtable endtask enum event export extern final for force
    forever fork function generate genvar if iff import initial inout input inside int integer interface join
    join_any join_none large localparam logic longint macromodule medium modport module nand negedge nmos nor not
    notif0 notif1 or output package packed parameter pmos posedge primitive priority program property pull0 pull1
    pulldown pullup rcmos real realtime reg release repeat return rnmos rpmos rtran rtranif0 rtranif1 scalared shortint
    shortreal signed small specify specparam static string strong0 strong1 struct supply0 supply1 table task time
    timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg typedef union unique unique0 unsigned
    var vectored void wait wand weak0 weak1 while wire wor xnor xor""".split()
)


_BETWEEN = frozenset(("comment", "newline", "space"))


class LexError(ValueError):
    """Text that cannot be split into tokens in only one way."""


class Token(NamedTuple):
    """A piece of code: `kind` is name, system, directive, string, number, escaped or symbol."""

    kind: str
    text: str
    line: int
    spaced: bool  # whether white space or a comment stands before it


def tokens(source: str) -> list[Token]:
    """The tokens of a source text, without comments and white space.

    Raises:
        LexError: a comment or a string that does not end.
    """
    found: list[Token] = []
    line, spaced = 1, True
    for match in _TOKEN.finditer(source):
        kind, text = str(match.lastgroup), match[0]
        if kind in _BETWEEN:
            line, spaced = line + text.count("\n"), True
            continue
        if text == '"' or (text == "/" and source.startswith("/*", match.start())):
            raise LexError(f"line {line}: a {'comment' if text == '/' else 'string'} does not end")
        found.append(Token(kind, text, line, spaced))
        spaced = False
    return found


def without_comments(source: str) -> str:
    """The text with every comment replaced by a space, and its line breaks kept."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else " " + "\n" * match[0].count("\n")

    return _COMMENT_OR_STRING.sub(blank, source)


def rename(source: str, names: Collection[str], suffix: str) -> str:
    """A text without comments, with `suffix` added to those identifiers.

    A name in a string, a macro or a system call is not one, and neither is a port in a connection (``.name(``).
    """
    if not names:
        return source
    words = "|".join(map(re.escape, sorted(names)))
    pattern = rf'"(?:[^"\\\n]|\\[^\n])*"|[(,]\s*\.\s*[A-Za-z_][\w$]*|(?<![\w$`\\])(?P<name>{words})(?![\w$])'
    return re.sub(pattern, lambda match: match[0] + suffix if match["name"] else match[0], source)


def declared_modules(code: list[Token]) -> list[str]:
    """The names of the modules that a text declares, in order."""
    kept = [t for t in code if t.text not in ("automatic", "static")]
    triples = zip(kept, kept[1:], [*kept[2:], None], strict=False)
    return [
        name.text
        for word, name, after in triples
        if word.text in ("module", "macromodule")
        and name.kind == "name"
        # in prose, as in "the module is", something else follows
        and (after is None or after.text in ("(", "#", ";", "import"))
    ]


def instances(code: list[Token]) -> list[tuple[str, str]]:
    """Pairs of module and instance name, for ``name instance (`` and ``name #(...) instance (``."""
    found = []
    for i, token in enumerate(code[:-2]):
        if token.kind != "name" or token.text in KEYWORDS:
            continue
        j = _after_parameters(code, i + 1)
        if j + 1 < len(code) and code[j].kind == "name" and code[j].text not in KEYWORDS and code[j + 1].text in "([":
            found.append((token.text, code[j].text))
    return found


def scope_names(code: list[Token]) -> set[str]:
    """Names by which code elsewhere could reach into these modules: modules, instances, tasks, functions and blocks."""
    names = set(declared_modules(code)) | {instance for _, instance in instances(code)}
    for i, token in enumerate(code[:-1]):
        if token.text in ("task", "function", "program", "package", "interface", "primitive", "class"):
            names.add(_declared_name(code, i + 1))
        elif token.text in ("begin", "fork") and code[i + 1].text == ":" and i + 2 < len(code):
            names.add(code[i + 2].text)
        elif token.text == ":" and code[i + 1].text in ("begin", "fork") and i and code[i - 1].kind == "name":
            names.add(code[i - 1].text)
    return names - {""}


def _after_parameters(code: list[Token], i: int) -> int:
    """The index after ``#( ... )``, or `i` when there is none."""
    if i + 1 >= len(code) or code[i].text != "#" or code[i + 1].text != "(":
        return i
    depth = 0
    for j in range(i + 1, len(code)):
        depth += {"(": 1, ")": -1}.get(code[j].text, 0)
        if depth == 0:
            return j + 1
    return len(code)


def _declared_name(code: list[Token], i: int) -> str:
    """The name in ``task automatic NAME (`` or ``function [7:0] NAME;``: the last one before a bracket or semicolon."""
    name = ""
    for token in code[i:]:
        if token.text in ("(", ";"):
            return name
        if token.kind == "name" and token.text not in KEYWORDS:
            name = token.text
    return ""


def port_directions(code: list[Token], module: str) -> dict[str, str]:
    """Port name to "input", "output" or "inout", for both styles of header; empty if the module is not there."""
    found: dict[str, str] = {}
    direction, depth = "", 0
    body = _without_subroutines(_body(code, module))
    for token, following in itertools.pairwise(body):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token.text, 0)
        if token.text in ("input", "output", "inout"):
            direction = token.text
        elif token.text in (")", ";"):
            direction = ""
        elif direction and depth == 0 and _is_port(token, following):
            found.setdefault(token.text, direction)
    return found


def _is_port(token: Token, following: Token) -> bool:
    return token.kind == "name" and token.text not in KEYWORDS and following.text in (",", ")", ";", "=", "[")


def _body(code: list[Token], module: str) -> list[Token]:
    """The tokens between a module's name and its `endmodule`."""
    for i, token in enumerate(code):
        if token.text == module and any(t.text in ("module", "macromodule") for t in code[max(0, i - 2) : i]):
            ends = (j for j in range(i, len(code)) if code[j].text == "endmodule")
            return code[i + 1 : next(ends, len(code))]
    return []


def _without_subroutines(body: list[Token]) -> list[Token]:
    """The tokens outside of tasks and functions, whose arguments are no ports."""
    kept, inside = [], ""
    for token in body:
        if token.text in ("task", "function"):
            inside = f"end{token.text}"
        if not inside:
            kept.append(token)
        if token.text == inside:
            inside = ""
    return kept
