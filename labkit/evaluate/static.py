"""The static check: what a candidate's text may not contain, whatever sandbox it would run in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from labkit.evaluate.lexing import (
    LexError,
    Token,
    declared_modules,
    port_directions,
    scope_names,
    tokens,
    without_comments,
)

LONGEST = 200_000  # characters; a module of this course has hundreds

# Functions of values and types, and messages. Nothing that opens a file, ends the simulation or reaches a shell; and
# none that the name of such a call begins with, so that no macro can complete one.
SYSTEM_CALLS = frozenset(
    """$signed $unsigned $clog2 $bits $countones $onehot $onehot0 $isunknown $size $left $right $low $high $increment
    $dimensions $unpacked_dimensions $rtoi $itor $realtobits $bitstoreal $shortrealtobits $bitstoshortreal $cast
    $pow $sqrt $ceil $floor $ln $log10 $exp $random $urandom $urandom_range $time $stime $realtime
    $display $write $strobe $monitor $error $warning $info""".split()
)
DIRECTIVES = frozenset(
    "timescale default_nettype resetall celldefine endcelldefine define undef ifdef ifndef elsif else endif".split()
)
# Words that act on a net against its drivers or reach out of the module. Strengths are among them because an input
# that is driven from inside with more strength than from outside changes what the reference sees as well.
WORDS = frozenset(
    """force release bind alias program class export import tran tranif0 tranif1 rtran rtranif0 rtranif1 supply0 supply1
    strong0 strong1 pull0 pull1 weak0 weak1 highz0 highz1 pullup pulldown cmos rcmos nmos pmos rnmos rpmos""".split()
)


@dataclass(frozen=True)
class Surroundings:
    """What the check has to know of the testbench: names that lead into it, and whether the design has an inout."""

    names: frozenset[str] = frozenset()
    has_inout: bool = False


@dataclass(frozen=True)
class Inspection:
    """The outcome: the text to compile, without comments, and its modules; or a verdict and its reason.

    `verdict` is "" (go on), "no_module", "syntax_error" or "refused".
    """

    code: str
    modules: tuple[str, ...]
    verdict: str = ""
    reason: str = ""
    ports: dict[str, dict[str, str]] = field(default_factory=dict)  # module -> port -> direction


def inspect(candidate: str, surroundings: Surroundings | None = None) -> Inspection:
    """Check a candidate's text before anything reads it.

    What passes is compiled in the form that was checked: line ends unified and comments gone, so that no preprocessor
    can see other code than the check saw.
    """
    if len(candidate) > LONGEST:
        return Inspection("", (), "refused", f"longer than {LONGEST:,} characters")
    if "\0" in candidate:
        return Inspection("", (), "refused", "contains a null byte")
    source = re.sub(r"\r\n?|[\v\f\x85\u2028\u2029]", "\n", candidate)
    try:
        code = tokens(source)
    except LexError as error:
        found = "syntax_error" if re.search(r"\bmodule\b", source) else "no_module"
        return Inspection("", (), found, str(error))
    modules = tuple(declared_modules(code))
    if not modules:
        return Inspection("", (), "no_module", "no module in the answer")
    for rule in RULES:
        for token, reason in rule(code, surroundings or Surroundings()):
            return Inspection("", modules, "refused", f"line {token.line}: {reason}")
    ports = {module: port_directions(code, module) for module in modules}
    return Inspection(without_comments(source), modules, ports=ports)


Rule = Callable[[list[Token], Surroundings], Iterator[tuple[Token, str]]]


def _system_calls(code: list[Token], around: Surroundings) -> Iterator[tuple[Token, str]]:
    for token in code:
        if token.kind == "system" and token.text not in SYSTEM_CALLS:
            yield token, f"{token.text} is not allowed: a design has no use for files, the system or the simulator"
        if token.text == "$":
            yield token, "a lone $ is not allowed"


def _words(code: list[Token], around: Surroundings) -> Iterator[tuple[Token, str]]:
    for token in code:
        if token.kind == "name" and token.text in WORDS:
            yield token, f"`{token.text}` is not allowed: it can act outside of the module"
        if token.text == "inout" and not around.has_inout:
            yield token, "an inout port can drive the testbench's inputs, and this design has none"


def _odd_text(code: list[Token], around: Surroundings) -> Iterator[tuple[Token, str]]:
    for token in code:
        if token.kind == "escaped" and not re.fullmatch(r"\\[\w.\[\]]+", token.text):
            yield token, f"the escaped identifier {token.text[:20]!r} is not allowed"
        if token.kind == "string" and "`" in token.text:
            yield token, "a macro in a string is not allowed"


def _directives(code: list[Token], around: Surroundings) -> Iterator[tuple[Token, str]]:
    """Only harmless directives and plain macros: no `include, no arguments, no pasting of names out of pieces."""
    macros = {b.text for a, b in itertools.pairwise(code) if a.text == "`define"}
    for i, token in enumerate(code):
        if token.text == "`" or (token.kind == "directive" and token.text[1:] not in DIRECTIVES | macros):
            yield token, f"{token.text} is not an allowed directive"
        if token.text == "`define":
            yield from _definition(token, [t for t in code[i + 1 :] if t.line == token.line])
        if token.kind == "directive" and token.text[1:] in macros:
            neighbours = code[i - 1 : i] + code[i + 1 : i + 2]
            if (i and not token.spaced and _joins(code[i - 1])) or any(t.text in (".", "::") for t in neighbours):
                yield token, f"the macro {token.text} touches a name: not allowed"


def _joins(token: Token) -> bool:
    """Whether text that follows directly could become part of this token."""
    return token.kind in ("name", "system", "directive", "number", "escaped") or token.text in ("`", "$", "\\")


def _definition(define: Token, line: list[Token]) -> Iterator[tuple[Token, str]]:
    if len(line) > 1 and line[1].text == "(" and not line[1].spaced:
        yield define, "a macro with arguments is not allowed"
    for token in line[1:]:
        if token.kind in ("directive", "system", "escaped") or token.text in ("`", "$", ".", "\\", "::"):
            yield define, f"{token.text} in a macro is not allowed"


def _references(code: list[Token], around: Surroundings) -> Iterator[tuple[Token, str]]:
    """Names with dots, `disable` and calls that would be looked up in the testbench."""
    own = scope_names(code)
    for i, token in enumerate(code):
        plain = token.text.lstrip("\\")
        outside = plain in around.names or plain in ("$root", "$unit") or plain.startswith("genblk")
        follows = code[i + 1].text if i + 1 < len(code) else ""
        if outside and plain not in own and follows in (".", "::"):
            yield token, f"{plain}{follows} reaches into the testbench"
        if i and code[i - 1].text == "disable" and plain not in own and plain != "fork":
            yield token, f"disable {plain} would act outside of the module"


RULES: tuple[Rule, ...] = (_system_calls, _words, _odd_text, _directives, _references)
