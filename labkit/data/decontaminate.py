"""Does training hold the answers of the test? Compares references by their form and texts by n-grams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.records import Record

_TOKEN = re.compile(
    r"(?P<word>[`$]?[A-Za-z_][\w$]*)"
    r"|(?P<number>(?:\d[\d_]*\s*)?'[sS]?[bBdDhHoO]\s*[0-9a-fA-FxXzZ?_]+|\d[\d_.]*)"
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|(?P<string>"[^"\n]*")'
    r"|(?P<sign>\S)",
    re.DOTALL,
)

_RESERVED = """
accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin bind
bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking cmos config
const constraint context continue cover covergroup coverpoint cross deassign default defparam design disable
dist do edge else end endcase endclass endconfig endfunction endgenerate endmodule endprimitive endspecify
endtable endtask enum event expect export extends extern final first_match for force foreach forever fork
forkjoin function generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins implies import
incdir include initial inout input inside instance int integer interconnect interface intersect join join_any
join_none large let liblist library local localparam logic longint macromodule matches medium modport module
nand negedge nettype new nexttime nmos nor noshowcancelled not notif0 notif1 null or output package packed
parameter pmos posedge primitive priority program property protected pull0 pull1 pulldown pullup pure rand randc
randcase randsequence rcmos real realtime ref reg reject_on release repeat restrict return rnmos rpmos rtran
rtranif0 rtranif1 scalared sequence shortint shortreal signed small soft solve specify specparam static string
strong strong0 strong1 struct super supply0 supply1 table tagged task this throughout time timeprecision
timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union unique unique0 unsigned until
untyped use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while wildcard wire with
within wor xnor xor"""
KEYWORDS = frozenset(_RESERVED.split())  # of Verilog and SystemVerilog


def normal_form(code: str) -> str:
    """Verilog without what a rename or another constant changes.

    Comments and layout go, identifiers become `v0`, `v1`, ... in the order of their appearance, and every number,
    sized or not, becomes 0. Two modules with one normal form differ in names, widths and constants only.
    """
    seen: dict[str, str] = {}
    parts = []
    for match in _TOKEN.finditer(code):
        kind, text = match.lastgroup, match.group()
        if kind == "comment":
            continue
        if kind == "number":
            text = "0"
        elif kind == "word" and text not in KEYWORDS and text[0] not in "$`":
            text = seen.setdefault(text, f"v{len(seen)}")
        parts.append(text)
    return " ".join(parts)


@dataclass(frozen=True)
class Contamination(Record):
    """What a test set shares with a training set.

    Counts of test samples: `same_text` whose answer occurs verbatim in training, `same_form` whose answer has the
    normal form of a training answer, `same_prompt` whose prompt occurs verbatim. `overlap` is the mean share of a test
    sample's n-grams (prompt and answer, words) that training has, `heavy` the ids of samples above `limit`.
    """

    train: int
    test: int
    same_text: int
    same_form: int
    same_prompt: int
    forms: tuple[str, ...]
    n: int
    overlap: float
    limit: float
    heavy: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.test} test against {self.train} training samples: {self.same_text} same answers, "
            f"{self.same_form} same up to names and constants, {self.same_prompt} same prompts, "
            f"{100 * self.overlap:.1f} % of {self.n}-grams shared"
        )


def decontaminate(train: Iterable[Any], test: Iterable[Any], *, n: int = 13, limit: float = 0.8) -> Contamination:
    """Compare a test set with a training set.

    Args:
        train, test: `Problem`s, `Example`s, dictionaries with `spec`/`reference` or `prompt`/`completion`, or
            `(prompt, answer)` pairs.
        n: words in an n-gram.
        limit: share of a sample's n-grams found in training from which on it is listed in `heavy`.
    """
    if n < 1:
        raise LabError(f"n is {n}, but an n-gram has at least one word.", hint="13 is usual.")
    known = [_pair(sample, i) for i, sample in enumerate(train)]
    asked = [_pair(sample, i) for i, sample in enumerate(test)]
    prompts, texts = {p for _, p, _ in known}, {a.strip() for _, _, a in known}
    forms = {normal_form(a) for a in texts}
    grams = {gram for _, p, a in known for gram in _grams(p, a, n)}
    shares = [_share(_grams(p, a, n), grams) for _, p, a in asked]
    formed = tuple(i for i, _, a in asked if normal_form(a) in forms)
    return Contamination(
        train=len(known),
        test=len(asked),
        same_text=sum(a.strip() in texts for _, _, a in asked),
        same_form=len(formed),
        same_prompt=sum(p in prompts for _, p, _ in asked),
        forms=formed,
        n=n,
        overlap=sum(shares) / max(len(shares), 1),
        limit=limit,
        heavy=tuple(i for (i, _, _), share in zip(asked, shares, strict=True) if share > limit),
    )


def _pair(sample: Any, index: int) -> tuple[str, str, str]:
    """A sample as id, prompt and answer."""
    if isinstance(sample, Sequence) and not isinstance(sample, str) and len(sample) == 2:
        return str(index), *sample
    get = sample.get if isinstance(sample, dict) else lambda key: getattr(sample, key, None)
    name = str(get("id") or index)
    for prompt, answer in (("spec", "reference"), ("prompt", "completion")):
        if get(prompt) is not None and get(answer) is not None:
            return name, str(get(prompt)), str(get(answer))
    messages = get("messages")
    if messages:
        turns = [m if isinstance(m, dict) else {"role": m.role, "content": m.content} for m in messages]
        answers = [t["content"] for t in turns if t["role"] == "assistant"]
        return name, "\n".join(t["content"] for t in turns if t["role"] != "assistant"), "\n".join(answers)
    raise LabError(
        f"Sample {name} has neither spec and reference, nor prompt and completion, nor messages.",
        hint="Pass problems, examples or (prompt, answer) pairs.",
    )


def _grams(prompt: str, answer: str, n: int) -> Iterator[int]:
    words = f"{prompt} {answer}".split()
    return (hash(tuple(words[i : i + n])) for i in range(max(len(words) - n + 1, 0)))


def _share(grams: Iterable[int], known: set[int]) -> float:
    found = [gram in known for gram in grams]
    return sum(found) / len(found) if found else 0.0
