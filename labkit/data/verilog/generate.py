"""Draws problems from the families: parameters, names, wording, and which split each of them may be in."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from labkit.data.decontaminate import normal_form
from labkit.data.examples import Example
from labkit.data.problems import PortInfo, Problem
from labkit.data.verilog import testbench
from labkit.data.verilog.design import FAMILIES, Family, Names, Params, Port, header
from labkit.data.verilog.names import module_name, port_names
from labkit.data.verilog.wording import opening, port_list
from labkit.errors import LabError, nearest

SPLITS = ("train", "test_seen", "test_unseen")
# What the tiny models are trained on: families whose specification and module take about 200 tokens together or less,
# of every kind. All others, long ones and a few short ones, are never trained on: they are the split `test_unseen`.
SEEN_FAMILIES = frozenset(
    """
    absolute accumulator add_sub adder bcd_add bit_select bit_trick comparator concat counter d_register decoder
    edge_detector encoder extend gate_chain gates gray gray_counter johnson_counter leading_count lfsr majority
    mask_merge min_max modulo_counter multiply mux2 mux_case one_hot_check parity popcount priority_encoder
    range_detect reduction reverse rotate saturating_add saturating_counter scale select_op shift_register shifter
    subtractor toggle up_down_counter
    """.split()
)
HELD_PARAMS = 5  # one parameter setting in so many is kept for the tests
HELD_FORMS = 5  # and one normal form of the reference in so many
TRIES = 5000


@dataclass(frozen=True)
class Draft:
    """A problem without its testbench, and what is needed to build that."""

    family: Family
    split: str
    spec: str
    reference: str
    top: str
    ports: list[Port]
    params: Params
    names: Names
    wording: str
    seed: int = field(default=0)


def families(split: str) -> list[str]:
    """The names of the families of a split, in alphabetical order."""
    if split not in SPLITS:
        raise LabError(f"There is no split {split!r}.", hint=f"Nearest: {nearest(split, SPLITS)}.")
    return sorted(name for name in FAMILIES if (name in SEEN_FAMILIES) != (split == "test_unseen"))


def problems(split: str, count: int, seed: int = 0) -> list[Problem]:
    """`count` problems of a split, the families in equal shares; the same seed gives the same problems.

    Training never sees a test's parameter setting, normal form of the reference, composed names, or (where `wording`
    is "unseen") wording and opening. `test_unseen` has families that training never has.
    """
    return [_problem(draft, i) for i, draft in enumerate(drafts(split, count, seed))]


def drafts(split: str, count: int, seed: int | str = 0) -> Iterator[Draft]:
    """The same as `problems`, one by one and without testbenches: fast."""
    chosen = families(split)
    order = Random(f"{seed}/{split}/order")
    for start in range(0, count, len(chosen)):
        turn = order.sample(chosen, len(chosen))
        for offset, name in enumerate(turn[: count - start]):
            yield draft(FAMILIES[name], split, Random(f"{seed}/{split}/{start + offset}"))


def draft(family: Family, split: str, rng: Random) -> Draft:
    """One problem of a family that may be in the split."""
    held = split != "train"
    for _ in range(TRIES):
        values = family.sample(rng)
        if held_params(family.name, values) != held and split != "test_unseen":
            continue
        params = SimpleNamespace(**values)
        ports = _shuffled(rng, family.ports(params))
        top = module_name(rng, family.modules, held)
        names = port_names(rng, ports, held, top)
        body = family.body(params, names)
        reference = header(top, ports, names) + body + "endmodule\n"
        if held_form(reference) == held and not _clash(body, names):
            break
    else:
        raise LabError(
            f"Family {family.name!r} has no design for the split {split!r}.", hint="Give it more parameters."
        )
    unseen = held and rng.random() < 0.5
    spec = _spec(rng, family.says(params, names), ports, names, top, unseen)
    wording = "unseen" if unseen else "seen"
    return Draft(family, split, spec, reference, top, ports, params, names, wording, rng.getrandbits(32))


def held_params(family: str, values: dict[str, Any]) -> bool:
    """Is this setting of a family kept for the tests?"""
    return _hash(f"{family} {json.dumps(values, sort_keys=True)}") % HELD_PARAMS == 0


def held_form(reference: str) -> bool:
    """Is the normal form of this module kept for the tests? The same form is never on both sides."""
    return _hash(normal_form(reference)) % HELD_FORMS == 0


def comment(text: str, rng: Random) -> str:
    """A specification as Verilog comments: one line a sentence, or one block."""
    if rng.random() < 0.3:
        return f"/* {text} */\n"
    return "".join(f"// {line}\n" for line in re.split(r"\n|(?<=\.) (?=[A-Z])", text))


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def _shuffled(rng: Random, ports: list[Port]) -> list[Port]:
    """The ports in the family's order, or inputs or groups in another; clock and reset stay in front."""
    control = [p for p in ports if p.kind != "data"]
    inputs = [p for p in ports if p.kind == "data" and p.direction == "input"]
    outputs = [p for p in ports if p.direction == "output"]
    if rng.random() < 0.35:
        rng.shuffle(inputs)
    if len(outputs) > 1 and rng.random() < 0.35:
        rng.shuffle(outputs)
    return control + (outputs + inputs if rng.random() < 0.15 else inputs + outputs)


_DECLARED = re.compile(r"^\s*(?:reg|wire|integer|genvar|localparam)\b\s*(?:signed\s*)?(?:\[[^\]]*\]\s*)?([^;]*);", re.M)


def _clash(body: str, names: Names) -> bool:
    """Does the body declare a name that a port already has?"""
    declared = {word for line in _DECLARED.findall(body) for word in re.findall(r"[A-Za-z_]\w*", line.split("=")[0])}
    return not declared.isdisjoint(vars(names).values()) if declared else False


def _spec(rng: Random, says: list[str], ports: list[Port], names: Names, top: str, unseen: bool) -> str:
    behaviour = says[-1] if unseen else rng.choice(says[:-1])
    first, listed = opening(rng, top, unseen), port_list(rng, ports, names, unseen)
    parts = [first, behaviour, listed] if rng.random() < 0.2 else [first, listed, behaviour]
    return re.sub(r"\n +", "\n", " ".join(parts)).strip()


def _problem(drawn: Draft, index: int) -> Problem:
    infos = tuple(PortInfo(getattr(drawn.names, p.role), p.direction, p.width) for p in drawn.ports)
    bench = testbench.build(drawn.family, drawn.params, drawn.names, drawn.top, drawn.ports, drawn.seed)
    return Problem(
        id=f"{drawn.split}-{index:05d}-{drawn.family.name}",
        family=drawn.family.name,
        split=drawn.split,
        spec=drawn.spec,
        reference=drawn.reference,
        testbench=bench,
        top=drawn.top,
        ports=infos,
        params=vars(drawn.params),
        wording=drawn.wording,
    )


def examples(source: Iterable[Draft | Problem]) -> list[Example]:
    """Training samples: the user gives the specification, the assistant answers with the module's text alone."""
    return [Example.of(spec, reference, id=str(i)) for i, (spec, reference) in enumerate(pairs(source))]


def pairs(source: Iterable[Draft | Problem]) -> Iterator[tuple[str, str]]:
    """Specification and reference of each."""
    return ((item.spec, item.reference) for item in source)
