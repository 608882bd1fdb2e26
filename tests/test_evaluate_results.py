"""Results of evaluations: averages, intervals, paired differences, and independence of order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import evaluate, models
from labkit.data import verilog
from labkit.errors import LabError
from labkit.evaluate import result
from labkit.evaluate.sandbox import Protections, protections
from tests.tiny import make_tiny_gemma4


def made(passes: dict[str, list[int]], samples: int = 1) -> evaluate.EvalResult:
    """A result from the number of passes of each problem, by family."""
    rows = [
        result.Row(
            f"{family}-{i}",
            family,
            "seen",
            tuple(result.Answer("", "pass" if k < n else "wrong_result", "", True) for k in range(samples)),
        )
        for family, counts in passes.items()
        for i, n in enumerate(counts)
    ]
    return result.collect(
        "m", rows, samples=samples, temperature=0.0, seed=0, generation_seconds=1.0, judge_seconds=1.0, tokens=1,
        protections=protections(), versions={},
    )  # fmt: skip


def test_families_weigh_the_same():
    found = made({"a": [1, 1, 1, 1], "b": [0]})
    assert found.pass_at_1 == pytest.approx(0.5)
    assert found.by_family() == {"a": (1.0, 4), "b": (0.0, 1)}
    assert found.failures == {"wrong_result": 1}


def test_an_interval_is_not_empty_where_all_fail():
    low, high = made({"a": [0] * 20}).interval
    assert low == 0 and 0.05 < high < 0.25


def test_pass_at_k_of_two_samples():
    found = made({"a": [1, 0]}, samples=2)
    assert found.pass_at_1 == pytest.approx(0.25) and found.pass_at(2) == pytest.approx(0.5)
    low, high = found.interval_at(2)
    assert 0 <= low < 0.5 < high <= 1 and found.interval_at(1) == found.interval
    assert found.difference(made({"a": [0, 0]}, samples=2), k=2)[0] == pytest.approx(0.5)


def test_a_paired_difference_needs_the_same_problems():
    better, worse = made({"a": [1, 1, 1, 0] * 10}), made({"a": [0, 1, 0, 0] * 10})
    gap, (low, high) = better.difference(worse)
    assert gap == pytest.approx(0.5) and 0 < low < gap < high
    with pytest.raises(LabError, match="same problems"):
        better.difference(made({"b": [1]}))


def test_json_both_ways_and_a_summary_without_answers():
    found = made({"a": [1, 0]})
    assert evaluate.EvalResult.from_json(found.to_json()) == found
    assert isinstance(evaluate.EvalResult.from_json(found.to_json()).protections, Protections)
    assert "rows" not in found.summary() and found.summary()["by_family"]["a"]["problems"] == 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_pass_at_1_is_the_mean_of_shares(counts):
    assert made({"a": counts}, samples=3).pass_at_1 == pytest.approx(sum(counts) / 3 / len(counts))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny_gemma4(
        tmp_path_factory.mktemp("tiny"), hidden_size=32, intermediate_size=32, num_hidden_layers=2
    )
    return models.load(folder)


def test_order_and_batches_do_not_matter_and_a_judge_of_ones_own_is_asked(tiny):
    tasks = verilog.problems("test_seen", 5, seed=0)

    def own(problem, text):
        return len(text) % 2 == 0

    options = {"judged_by": own, "max_new_tokens": 12}
    one = evaluate.evaluate(tiny.model, tiny.tokenizer, tasks, **options)
    two = evaluate.evaluate(tiny.model, tiny.tokenizer, tasks[::-1], batch_size=2, **options)
    assert {r.id: r.answers for r in one.rows} == {r.id: r.answers for r in two.rows}


def test_greedy_samples_and_empty_lists_are_refused(tiny):
    with pytest.raises(LabError, match="no problems"):
        evaluate.evaluate(tiny.model, tiny.tokenizer, [])
    with pytest.raises(LabError, match="all be the same"):
        evaluate.evaluate(tiny.model, tiny.tokenizer, verilog.problems("test_seen", 1), samples=3)
