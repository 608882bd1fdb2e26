"""The Verilog generator: every reference is right, splits do not leak, the same seed gives the same problems."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data.decontaminate import KEYWORDS, decontaminate, normal_form
from labkit.data.problems import Problem
from labkit.data.verilog import corpus, drafts, examples, families, problems
from labkit.data.verilog.design import FAMILIES
from labkit.data.verilog.generate import draft, held_form
from labkit.data.verilog.names import held_name
from labkit.data.verilog.scoring import passes
from labkit.data.verilog.wording import _style, held_wording
from labkit.errors import LabError

SPLITS = ("train", "test_seen", "test_unseen")


@pytest.fixture(scope="module")
def train() -> list:
    return list(drafts("train", 3000, seed=11))


@pytest.fixture(scope="module")
def seen() -> list:
    return list(drafts("test_seen", 400, seed=11))


@pytest.fixture(scope="module")
def unseen() -> list:
    return list(drafts("test_unseen", 100, seed=11))


def test_at_least_forty_families_of_both_kinds_and_five_held_out():
    assert len(FAMILIES) >= 40
    assert set(families("train")) == set(families("test_seen"))
    held = set(families("test_unseen"))
    assert len(held) >= 5
    assert not held & set(families("train"))
    clocked = {name for name in held if any(p.kind == "clock" for p in _ports(name))}
    assert clocked and held - clocked


def _ports(name: str) -> list:
    family = FAMILIES[name]
    return family.ports(SimpleNamespace(**family.sample(Random(0))))


def test_every_reference_passes_its_own_testbench():
    chosen = [p for s in ("test_seen", "test_unseen") for p in problems(s, len(families(s)), seed=3)]
    assert {p.family for p in chosen} == set(FAMILIES)
    with ThreadPoolExecutor(2) as pool:
        verdicts = pool.map(lambda p: passes(p.reference, p.testbench), chosen)
    assert [p.id for p, verdict in zip(chosen, verdicts, strict=True) if not verdict] == []


def test_the_same_seed_gives_the_same_problems_and_another_seed_others():
    once, again = problems("test_seen", 6, seed=1), problems("test_seen", 6, seed=1)
    assert once == again
    assert not {p.spec for p in once} & {p.spec for p in problems("test_seen", 6, seed=2)}


def test_a_longer_draw_begins_with_the_shorter_one():
    shorter, longer = drafts("train", 50, seed=4), drafts("train", 200, seed=4)
    assert [d.spec for d in shorter] == [d.spec for d in islice(longer, 50)]


def test_families_have_equal_shares_and_none_above_five_percent(seen):
    counts = Counter(d.family.name for d in seen)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert max(counts.values()) <= 0.05 * len(seen)
    assert 0.4 < sum(d.wording == "unseen" for d in seen) / len(seen) < 0.6


def test_no_test_form_text_or_prompt_occurs_in_training(train, seen, unseen):
    report = decontaminate(train, [*seen, *unseen])
    assert (report.same_text, report.same_form, report.same_prompt) == (0, 0, 0), report


def test_no_test_parameters_or_names_occur_in_training(train, seen):
    def settings(some: list) -> set[str]:
        return {f"{d.family.name} {sorted(vars(d.params).items())}" for d in some}

    assert not settings(train) & settings(seen)
    assert not {d.top for d in train} & {d.top for d in seen}
    for d in train:
        composed = [getattr(d.names, p.role) for p in d.ports if getattr(d.names, p.role) not in p.pool]
        assert not any(held_name(name) for name in composed)


def test_held_out_compositions_and_behaviours_only_where_the_problem_says_unseen(train, seen):
    def openings(some: list) -> set[str]:
        return {re.split(r"(?<=\.) ", d.spec)[0].replace(d.top, "{top}") for d in some}

    trained = openings(train)
    assert not any(held_wording(text) for text in trained) and len(trained) > len(train) / 3
    assert all(held_wording(text) for text in openings([d for d in seen if d.wording == "unseen"]))
    assert not any(held_wording(text) for text in openings([d for d in seen if d.wording == "seen"]))
    for d in [*train[:300], *seen]:
        assert (d.family.says(d.params, d.names)[-1] in d.spec) == (d.wording == "unseen")


def test_every_piece_of_a_held_port_list_occurs_in_training():
    kept, held = ([_style(rng) for _ in range(4000)] for rng in (Random(0), Random(1)))
    kept, held = [s for s in kept if not held_wording(s)], {s for s in held if held_wording(s)}
    assert held and not held & set(kept)
    assert {s.label for s in held} <= {s.label for s in kept} and {s.item for s in held} <= {s.item for s in kept}


def test_specs_name_the_module_and_every_port_with_its_width(train, seen, unseen):
    for d in [*train, *seen, *unseen]:
        words = set(re.findall(r"\w+", d.spec))
        assert {d.top, *vars(d.names).values()} <= words, d.spec
        assert len(set(vars(d.names).values()) | {d.top}) == len(d.ports) + 1
        assert not KEYWORDS & {d.top, *vars(d.names).values()}
        assert {f"{p.width}" for p in d.ports} <= set(re.findall(r"\d+", re.sub(r"\[(\d+):0\]", _width, d.spec))) | {
            "1"
        }


def _width(match: re.Match) -> str:
    return f" {int(match.group(1)) + 1} "


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_has_five_wordings_and_eight_forms(name):
    family, forms = FAMILIES[name], set()
    for i in range(60):  # half of them with held-out forms, whether the family is trained on or not
        drawn = draft(family, ("train", "test_unseen")[i % 2], Random(i))
        forms.add(normal_form(drawn.reference))
        told = family.says(drawn.params, drawn.names)
        assert len(set(told)) == len(told) >= 5
        for text in told:
            words = set(re.findall(r"\w+", text))
            assert {getattr(drawn.names, p.role) for p in drawn.ports if p.kind == "data"} <= words, text
            assert len(words) <= 110
    assert len(forms) >= 8
    assert len(family.modules) >= 6


@pytest.mark.parametrize("name", families("test_seen"))
def test_a_seen_family_has_held_out_designs(name):
    drawn = draft(FAMILIES[name], "test_seen", Random(0))
    assert held_form(drawn.reference)


def test_specs_and_modules_are_short(train):
    assert sum(len(d.spec.split()) for d in train) / len(train) < 60
    assert max(len(d.spec.split()) for d in train) <= 120


def test_problems_carry_ports_and_parameters_and_travel_as_json():
    (problem,) = problems("test_unseen", 1)
    assert Problem.from_json(problem.to_json()) == problem
    declared = re.findall(r"(input|output) (?:reg )?(?:\[(\d+):0\] )?(\w+)", problem.reference.split(");")[0])
    assert [(p.direction, p.width, p.name) for p in problem.ports] == [(d, int(w or 0) + 1, n) for d, w, n in declared]
    assert problem.top in str(problem)


def test_unknown_split_names_the_nearest():
    with pytest.raises(LabError, match="test_seen"):
        problems("test_sen", 1)


def test_examples_ask_the_spec_and_answer_the_module():
    drawn = list(drafts("train", 3))
    for example, d in zip(examples(drawn), drawn, strict=True):
        assert [m.role for m in example.messages] == ["user", "assistant"]
        assert (example.messages[0].content, example.answer) == (d.spec, d.reference)
        assert example.answer.startswith(f"module {d.top}(") and example.answer.endswith("endmodule\n")


def test_corpus_is_of_training_designs_in_the_stated_shares():
    documents = list(islice(corpus(seed=1), 2000))
    assert documents == list(islice(corpus(seed=1), 2000))
    modules = [m for text in documents for m in re.findall(r"^module.*?^endmodule\n", text, re.S | re.M)]
    assert not any(held_form(module) for module in modules)
    whole = [text for text in documents if text.endswith("endmodule\n") and text.startswith("/")]
    assert 0.45 < len(whole) / len(documents) < 0.55
    assert 0.66 < len(modules) / len(documents) < 0.74
    prose = [text for text in documents if "endmodule" not in text and text[0].isupper() and text.endswith(".\n")]
    assert 0.17 < len(prose) / len(documents) < 0.27
    assert not any("<|" in text for text in documents)


CODE = "module m(input [7:0] a, output y);\n  // all ones?\n  assign y = a == 8'hff;\nendmodule\n"


def test_normal_form_forgets_names_constants_comments_and_layout_only():
    twin = "module  other(input [3:0] w,\n output q); assign q = w==4'b0101; endmodule"
    assert normal_form(CODE) == normal_form(twin)
    assert normal_form(CODE) != normal_form(CODE.replace("==", "!="))
    assert normal_form("assign y = a - b;") != normal_form("assign y = b - b;")
    assert normal_form("assign y = a - b;") == normal_form("assign q = b - a;")


@given(st.permutations(["alpha", "beta_2", "_c", "d$e", "Wide"]), st.integers(0, 4095))
def test_normal_form_is_the_same_after_any_renaming(names, number):
    text = "module {0}(input {1}, input {2}, output {3}); wire {4} = {1} ^ {2}; assign {3} = {4} + 12'd5; endmodule"
    renamed = text.format(*names).replace("12'd5", str(number))
    assert normal_form(renamed) == normal_form(text.format("m", "a", "b", "y", "t"))


def test_decontamination_finds_what_is_shared():
    renamed = CODE.replace("y", "done").replace("8'hff", "8'd7").replace("module m", "module n")
    other = "module p(input a, output y);\n  assign y = ~a;\nendmodule\n"
    report = decontaminate([("Compare.", CODE)], [("Compare.", CODE), ("Match it.", renamed), ("Invert.", other)])
    assert (report.same_text, report.same_form, report.same_prompt) == (1, 2, 1)
    assert report.forms == ("0", "1")
    assert report.heavy == ("0",)
    assert 0 < report.overlap < 1


def test_decontamination_reads_the_users_own_samples():
    chat = {"id": "c", "messages": [{"role": "user", "content": "Do."}, {"role": "assistant", "content": CODE}]}
    report = decontaminate([{"prompt": "Do.", "completion": CODE}], [chat])
    assert report.same_text == report.same_prompt == 1
    with pytest.raises(LabError, match="Sample x"):
        decontaminate([{"id": "x", "text": "nothing"}], [])
    with pytest.raises(LabError, match="n is 0"):
        decontaminate([], [], n=0)
