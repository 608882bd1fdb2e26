"""Single-change mutants of a Verilog module, made token by token, to see what a testbench notices."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

Edit = tuple[int, int, str]  # characters from, to (exclusive), replacement

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\s+"  # skipped
    r"|(?P<token>\d*'[sS]?[bodhBODH][0-9a-fA-F_xXzZ?]+|\d+|\$?[A-Za-z_][\w$]*|\"[^\"]*\""
    r"|<<<|>>>|===|!==|<<|>>|<=|>=|==|!=|&&|\|\||~\^|\^~|~&|~\||[^\w\s])",
    re.DOTALL,
)
_SWAPS = {
    "+": ("-",), "-": ("+",), "&": ("|", "^"), "|": ("&", "^"), "^": ("|", "~^"), "~^": ("^",), "^~": ("^",),
    "&&": ("||",), "||": ("&&",), "==": ("!=",), "!=": ("==",), "<": (">", "<="), ">": ("<", ">="), "<=": ("<", ">"),
    ">=": (">", "<"), "<<": (">>",), ">>": ("<<",), ">>>": (">>",), "<<<": (">>",),
    "*": ("+",), "/": ("*",), "%": ("/",),
    "posedge": ("negedge",), "negedge": ("posedge",),
}  # fmt: skip
_ORDERED = {"-", "/", "%", "<<", ">>", ">>>", "<", ">", ">="}
_READ_AFTER = frozenset(["(", "!", "~", "+", "-", "&", "|", "^", "&&", "||", "?", "<", ">", "==", "=", ","])
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
_DECLARES = {"input", "output", "inout", "reg", "wire", "integer", "genvar", "signed", "parameter", "localparam"}


class _Text:
    """A module's tokens, with what is needed to say what each one does."""

    def __init__(self, source: str) -> None:
        found = [m for m in _TOKEN.finditer(source) if m.group("token")]
        self.source = source
        self.words = [m.group("token") for m in found]
        self.spans = [m.span("token") for m in found]
        self.partner = self._brackets()
        self.assigns = self._assignments()

    def _brackets(self) -> dict[int, int]:
        stack, partner = [], {}
        for i, word in enumerate(self.words):
            if word in _OPEN:
                stack.append(i)
            elif word in _CLOSE and stack:
                partner[i] = stack.pop()
                partner[partner[i]] = i
        return partner

    def _assignments(self) -> set[int]:
        """The tokens `=` and `<=` that assign: the first of a statement, outside brackets."""
        found, depth, fresh = set(), 0, True
        for i, word in enumerate(self.words):
            depth += (word in _OPEN) - (word in _CLOSE)
            if word in (";", "begin", "end", "else"):
                fresh = True
            elif word in ("=", "<=") and not depth and fresh:
                found.add(i)
                fresh = False
        return found

    def declared(self, i: int) -> bool:
        """Is the bracket that opens at token i a range in a declaration?"""
        return any(word in _DECLARES for word in self.words[max(0, i - 2) : i])

    def cut(self, first: int, last: int, text: str) -> Edit:
        """The edit that replaces the tokens from `first` to `last`, both included."""
        return self.spans[first][0], self.spans[last][1], text

    def between(self, first: int, last: int) -> str:
        """The source from token `first` to token `last`, both included."""
        return self.source[self.spans[first][0] : self.spans[last][1]]


def mutants(reference: str, limit: int, seed: int) -> list[str]:
    """At most `limit` modules that differ from `reference` by one change each, of as many kinds as possible."""
    text, rng = _Text(reference), Random(seed)
    by_kind: dict[str, list[Edit]] = defaultdict(list)
    for name, kind in _KINDS.items():
        by_kind[name].extend(kind(text))
    for edits in by_kind.values():
        rng.shuffle(edits)
    found: list[str] = []
    while any(by_kind.values()) and len(found) < limit:
        for edits in by_kind.values():
            if edits and len(found) < limit:
                start, stop, new = edits.pop()
                changed = reference[:start] + new + reference[stop:]
                if changed != reference and changed not in found:
                    found.append(changed)
    return found


def _operators(text: _Text) -> Iterator[Edit]:
    for i, word in enumerate(text.words):
        binary = i and (text.words[i - 1] in _CLOSE or re.match(r"[\w$]", text.words[i - 1]))
        if word in _SWAPS and i not in text.assigns and (binary or word in ("posedge", "negedge")):
            if text.words[i - 1] in ("assign", "begin", "else", "or", "return") and word not in ("posedge", "negedge"):
                continue
            for other in _SWAPS[word]:
                yield text.cut(i, i, other)


def _reductions(text: _Text) -> Iterator[Edit]:
    """A unary operator dropped, or a reduction by another one."""
    for i, word in enumerate(text.words):
        before = text.words[i - 1] if i else ";"
        unary = before in (
            "(",
            "{",
            ",",
            "?",
            ":",
            "=",
            "<=",
            "==",
            "!=",
            "&",
            "|",
            "^",
            "&&",
            "||",
            "+",
            "-",
            "~",
            "!",
        )
        if unary and word in ("~", "!"):
            yield text.cut(i, i, "")
        elif unary and word in ("&", "|", "^", "~&", "~|", "~^"):
            yield text.cut(i, i, {"&": "|", "|": "&", "^": "|", "~&": "~|", "~|": "~&", "~^": "^"}[word])


def _constants(text: _Text) -> Iterator[Edit]:
    for i, word in enumerate(text.words):
        if not re.match(r"\d|'", word) or _in_declared_range(text, i):
            continue
        for by in (1, -1):
            new = _shifted(word, by)
            if new is not None:
                yield text.cut(i, i, new)


def _in_declared_range(text: _Text, i: int) -> bool:
    opens = [j for j in text.partner if text.words[j] == "[" and j < i < text.partner[j]]
    return any(text.declared(j) or ":" in text.words[j : text.partner[j]] for j in opens)


def _shifted(literal: str, by: int) -> str | None:
    """A literal plus or minus one, within its size; None if there is none."""
    if literal.isdigit():
        return str(int(literal) + by) if int(literal) + by >= 0 else None
    size, base, digits = re.match(r"(\d*)'[sS]?([bodhBODH])(\w+)", literal + "_").groups()  # type: ignore[union-attr]
    digits = digits.replace("_", "")
    radix = {"b": 2, "o": 8, "d": 10, "h": 16}[base.lower()]
    if re.search(r"[xXzZ?]", digits) or not size:
        return None
    value = (int(digits, radix) + by) % 2 ** int(size)
    return f"{size}'d{value}"


def _widths(text: _Text) -> Iterator[Edit]:
    """The top bit of a declared range, the ends of a part-select, or the last word of a memory, off by one."""
    for i, word in enumerate(text.words[:-3]):
        if word == "[" and text.words[i + 2] == ":" and text.words[i + 1].isdigit() and text.words[i + 3].isdigit():
            high, low = int(text.words[i + 1]), int(text.words[i + 3])
            if text.declared(i) and high > low:
                yield text.cut(i + 1, i + 1, str(high - 1))
            elif high < low:
                yield text.cut(i + 3, i + 3, str(low - 1))
            elif not text.declared(i):
                yield text.cut(i + 1, i + 1, str(high + 1 if high == low else high - 1))
                yield text.cut(i + 3, i + 3, str(low + 1 if low < high else max(low - 1, 0)))


def _conditions(text: _Text) -> Iterator[Edit]:
    """`if (c)` and `c ? a : b` with the condition negated, or always true."""
    for i, word in enumerate(text.words):
        if word == "if":
            close = text.partner[i + 1]
            yield text.cut(i + 1, close, f"(!({text.between(i + 2, close - 1)}))")
            yield text.cut(i + 1, close, "(1)")
        elif word == "?":
            first = _condition_start(text, i)
            yield text.cut(first, i - 1, f"!({text.between(first, i - 1)})")


def _condition_start(text: _Text, question: int) -> int:
    i = question - 1
    while i > 0:
        if text.words[i] in _CLOSE:
            i = text.partner[i]
        previous = text.words[i - 1]
        if i - 1 in text.assigns or previous in ("(", "[", "{", ",", "?", ":", "=", ";"):
            return i
        i -= 1
    return i


def _operands(text: _Text) -> Iterator[Edit]:
    """The operands of an operator that is not commutative, or the two parts of a concatenation, swapped."""
    for i, word in enumerate(text.words):
        if word in _ORDERED and 0 < i < len(text.words) - 1 and i not in text.assigns:
            first, last = _operand_before(text, i), _operand_after(text, i)
            if first is not None and last is not None:
                yield text.cut(first, last, f"{text.between(i + 1, last)} {word} {text.between(first, i - 1)}")
        elif word == "{":
            commas = [j for j in range(i, text.partner[i]) if text.words[j] == "," and _depth(text, i, j) == 1]
            if len(commas) == 1:
                left, right = text.between(i + 1, commas[0] - 1), text.between(commas[0] + 1, text.partner[i] - 1)
                yield text.cut(i, text.partner[i], f"{{{right}, {left}}}")


def _depth(text: _Text, first: int, last: int) -> int:
    return sum((w in _OPEN) - (w in _CLOSE) for w in text.words[first:last])


def _operand_before(text: _Text, i: int) -> int | None:
    first = i - 1
    if text.words[first] in _CLOSE:
        first = text.partner[first]
        if text.words[first] == "[" or text.words[first - 1].startswith("$"):
            first -= 1
    return first if re.match(r"[\w$({]", text.words[first]) else None


def _operand_after(text: _Text, i: int) -> int | None:
    last = i + 1
    if text.words[last].startswith("$") or (text.words[last].isidentifier() and text.words[last + 1] == "["):
        last += 1
    if not re.match(r"[\w$({\[]", text.words[last]):
        return None
    return text.partner.get(last, last)


def _indices(text: _Text) -> Iterator[Edit]:
    """A constant index of one bit, off by one."""
    for i, word in enumerate(text.words[:-2]):
        if word == "[" and text.words[i + 1].isdigit() and text.words[i + 2] == "]":
            index = int(text.words[i + 1])
            yield text.cut(i + 1, i + 1, str(index - 1 if index else 1))


def _statements(text: _Text) -> Iterator[Edit]:
    """An else branch, or one assignment in an always block, dropped."""
    for i, word in enumerate(text.words):
        if word == "else":
            yield text.cut(i, _statement_end(text, i + 1), "")
        elif i in text.assigns:
            first = _target_start(text, i)
            if first and text.words[first - 1] not in _DECLARES | {"assign", "]"}:
                yield text.cut(first, text.words.index(";", i), ";")


def _target_start(text: _Text, assign: int) -> int:
    """The first token of what is assigned: a name, perhaps indexed, or a concatenation."""
    first = assign - 1
    while text.words[first] in _CLOSE:
        first = text.partner[first]
        if text.words[first] == "{":
            return first
        first -= 1
    return first


def _statement_end(text: _Text, i: int) -> int:
    """The last token of the statement that begins at token i."""
    word = text.words[i]
    if word in ("begin", "case", "casez", "casex"):
        depth = 0
        for j in range(i, len(text.words)):
            depth += text.words[j] in ("begin", "case", "casez", "casex")
            depth -= text.words[j] in ("end", "endcase")
            if not depth:
                return j
    if word in ("if", "for", "while"):
        end = _statement_end(text, text.partner[i + 1] + 1)
        has_else = word == "if" and end + 1 < len(text.words) and text.words[end + 1] == "else"
        return _statement_end(text, end + 2) if has_else else end
    return text.words.index(";", i)


def _resets(text: _Text) -> Iterator[Edit]:
    """An edge of the reset dropped from the sensitivity list."""
    for i, word in enumerate(text.words):
        if word == "or" and text.words[i + 1] in ("posedge", "negedge"):
            yield text.cut(i, i + 2, "")


def _signals(text: _Text) -> Iterator[Edit]:
    """A port that is read, replaced by another input of the same width, but the clock.

    Never by an output: a loop without a clock could swing for ever.
    """
    widths, inputs = _port_widths(text), _inputs(text)
    for i, word in enumerate(text.words[:-1]):
        if word not in widths or i < text.words.index(";") or _clock(text, word):
            continue
        if i - 1 in text.assigns or text.words[i - 1] in _READ_AFTER:
            for other in widths:
                if other in inputs and other != word and widths[other] == widths[word] and not _clock(text, other):
                    yield text.cut(i, i, other)


def _clock(text: _Text, name: str) -> bool:
    return any(word == name and before in ("posedge", "negedge") for before, word in pairwise(text.words))


def _port_widths(text: _Text) -> dict[str, str]:
    """Each port's name with the text of its range."""
    found, span = {}, ""
    for i, word in _header(text):
        if word == "[":
            span = text.between(i, text.partner[i])
        elif word in ("input", "output"):
            span = ""
        elif word.isidentifier() and text.words[i + 1] in (",", ")") and i > 2:
            found[word] = span
    return found


def _inputs(text: _Text) -> set[str]:
    found, direction = set(), ""
    for i, word in _header(text):
        if word in ("input", "output"):
            direction = word
        elif direction == "input" and word.isidentifier() and text.words[i + 1] in (",", ")"):
            found.add(word)
    return found


def _header(text: _Text) -> list[tuple[int, str]]:
    return list(enumerate(text.words[: text.words.index(";")]))


_KINDS: dict[str, Callable[[_Text], Iterator[Edit]]] = {
    "operator": _operators,
    "constant": _constants,
    "condition": _conditions,
    "operands": _operands,
    "width": _widths,
    "statement": _statements,
    "signal": _signals,
    "index": _indices,
    "unary": _reductions,
    "reset": _resets,
}
