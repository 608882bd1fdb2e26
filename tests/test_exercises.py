"""Every exercise: its solution passes, each declared wrong answer fails with its message, nothing is unattempted."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import exercises
from labkit.errors import LabError
from labkit.exercises import Choice, Coding, Number, Thought, budgets
from labkit.exercises.answers import as_list, is_unattempted

ALL = exercises.names()
WRONG = [pytest.param(n, i, id=f"{n}-{i}") for n in ALL for i in range(len(exercises.get(n).wrong))]


# ---------------------------------------------------------------------------------------------- over all exercises


@pytest.mark.parametrize("name", ALL)
def test_the_displayed_solution_passes(name):
    exercise = exercises.get(name)
    outcome = exercise.check(exercise.solved())
    assert outcome.status == "correct", outcome
    if isinstance(exercise, Coding):
        assert f"def {exercise.solution_code.__name__}(" in exercise.solution()


@pytest.mark.parametrize(("name", "index"), WRONG)
def test_a_declared_wrong_answer_fails_with_its_message(name, index):
    wrong = exercises.get(name).wrong[index]
    outcome = exercises.get(name).check(wrong.answer)
    assert outcome.status == "incorrect", outcome
    assert wrong.says in outcome.message


def untouched(*args):
    """Not written yet."""
    ...


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("empty", [None, ..., "", "  ", untouched, lambda: None, lambda x: ...])
def test_nothing_is_unattempted(name, empty):
    outcome = exercises.get(name).check(empty)
    assert outcome.status == "unattempted" and f"{name}.hint()" in outcome.message


@pytest.mark.parametrize("name", ALL)
def test_an_exercise_is_complete(name):
    exercise = exercises.get(name)
    assert exercise.hints and exercise.wrong and 1 <= exercise.minutes <= 20
    assert exercise.solution().strip()
    assert exercise.title in str(exercise) and exercise.title in exercise._repr_markdown_()
    assert str(exercise.hint(len(exercise.hints))).startswith("**Hint")
    with pytest.raises(LabError, match="hints 1 to"):
        exercise.hint(99)


def test_each_lab_has_its_number_of_exercises():
    assert len(exercises.names("start")) == 1
    assert len(exercises.names("lora")) == 5


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(LabError, match="lora_1"):
        exercises.get("lora1")
    with pytest.raises(LabError, match="lora_5"):
        exercises.get("lora_55")


@pytest.mark.parametrize(("path", "shape"), [("kv_einsum", (5376, 16, 256)), ("k_einsum", (5376, 4, 512))])
def test_the_adapter_formula_is_what_the_library_injects(path, shape):
    from labkit import lora
    from labkit.exercises.lora_sft.adapter_size import adapter_parameters

    linear = next(x for x in lora.linears_of("gemma4-31b") if x.path.endswith(f"/{path}"))
    assert adapter_parameters(*shape, 64, path == "kv_einsum") == linear.adapter_parameters(64)


def test_the_lengths_to_pack_are_those_of_the_published_recipe():
    from labkit.exercises.lora_sft.packing import codev_lengths

    lengths = codev_lengths(100_000)
    assert abs(np.mean(lengths) - 922) < 15 and abs(np.percentile(lengths, 99) - 2553) < 60


# ------------------------------------------------------------------------------------------------------ the frame

COMMON = {"title": "t", "minutes": 1, "question": "q", "hints": ("h",), "wrong": ()}
NUMBER = Number(name="n_1", **COMMON, solve=lambda: 1024.0, mistakes={1000.0: "GiB, not GB"})
CHOICE = Choice(
    name="c_1", **COMMON, options={"a": "A", "b": "B", "c": "C"}, right="ac", because="so", why_not={"b": "not b"}
)


@pytest.mark.parametrize(
    "same", [1024, 1024.0, np.int32(1024), np.float32(1024), jnp.asarray(1024), jnp.asarray([1024.0]), "1,024", [1024]]
)
def test_a_right_number_is_right_in_every_type(same):
    assert NUMBER.check(same).status == "correct"


def test_a_wrong_number_says_what_is_wrong():
    assert "GiB, not GB" in NUMBER.check(1000).message
    assert "too large" in NUMBER.check(5000).message and "too small" in NUMBER.check(-1).message
    for odd in ("many", True, [1, 2], {}):
        assert "one number" in NUMBER.check(odd).message


@given(st.floats(-1e300, 1e300))
def test_only_numbers_within_the_tolerance_pass(value):
    near = abs(value - 1024) <= 1e-6 * max(abs(value), 1024)
    assert (NUMBER.check(value).status == "correct") == near


@pytest.mark.parametrize("same", ["ac", "ca", "A, C", ["c", "a"], ("a", "c"), {"a", "c"}, np.array(["a", "c"])])
def test_letters_are_right_in_any_order_and_case(same):
    assert CHOICE.check(same).status == "correct"


def test_a_wrong_letter_says_why():
    assert "not b" in CHOICE.check("b").message
    assert "1 more option" in CHOICE.check("a").message
    assert "no option" in CHOICE.check("z").message


def test_a_thought_names_the_missing_point():
    exercise = Thought(name="t_1", **COMMON, points={"the mask": ("mask",)}, text="It is the mask.")
    assert "the mask" in exercise.check("because of the optimizer").message
    assert exercise.check("Another MASK").status == "correct"
    assert exercise.solution() == "It is the mask."


def double(x):
    """Twice x."""
    return 2 * x


CODE = Coding(
    name="k_1",
    **COMMON,
    solution_code=double,
    tests=(lambda f: None if f(2) == 4 else "not twice",),
    budgets=(budgets.Budget("calls", 0.5, "calls", lambda f: float(f(0)), "too many"),),
)


def test_code_that_raises_is_incorrect_and_says_where():
    def broken(x):
        return x / 0

    outcome = CODE.check(broken)
    assert outcome.status == "incorrect" and "ZeroDivisionError" in outcome.message and "broken" in outcome.message
    assert "its name" in CODE.check(4).message


def test_a_right_but_wasteful_answer_fails_on_its_budget():
    outcome = CODE.check(lambda x: 2 * x if x else 1)
    assert outcome.status == "incorrect" and "over budget" in outcome.message and "too many" in outcome.message
    assert outcome.used == ("calls: 1 calls of 0.5 calls",)
    assert CODE.check(double).status == "correct"


def test_an_interrupt_passes_through():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CODE.check(interrupted)


def test_outcomes_show_in_a_notebook_and_go_to_json():
    outcome = NUMBER.check("<b>")
    assert type(outcome).from_json(outcome.to_json()) == outcome
    assert "incorrect" in outcome._repr_html_() and "<b>incorrect" not in outcome._repr_html_()
    assert "✔ correct" in repr(NUMBER.check(1024))


def test_a_function_that_does_something_is_an_attempt():
    def attempt(x):
        return x

    def constant():
        return 5

    def stub():
        raise NotImplementedError

    assert not is_unattempted(attempt) and not is_unattempted(constant) and not is_unattempted(0)
    assert is_unattempted(stub)


def test_lists_come_out_of_every_container():
    assert as_list(jnp.arange(3)) == as_list((0, 1, 2)) == as_list(i for i in range(3)) == [0, 1, 2]


# ---------------------------------------------------------------------------------------------------- the measures


def test_python_bytes_sees_a_numpy_array():
    assert 8e6 < budgets.python_bytes(lambda: np.ones(1_000_000)) < 9e6


def test_temporary_bytes_are_those_of_the_compiled_program():
    x = jnp.ones((512, 512))
    assert budgets.temporary_bytes(lambda x: (jnp.sin(x @ x) @ x).sum(), x) >= x.nbytes
    assert budgets.temporary_bytes(lambda x: x + 1, x) == 0


def test_compilations_are_counted_once_a_shape():
    import jax

    @jax.jit
    def step(x):
        return x * 2

    arrays = [np.ones(n, np.float32) for n in (3, 3, 4)]
    assert budgets.compilations(lambda: [step(a) for a in arrays]) == 2
    assert budgets.compilations(lambda: [step(a) for a in arrays]) == 0


def test_cpu_seconds_do_not_count_sleep():
    import time

    assert budgets.cpu_seconds(lambda: time.sleep(0.05), repeats=1) < 0.04


def test_a_meter_counts_tokens():
    model = budgets.Meter(lambda prompt, tokens: "x" * tokens, cost=lambda prompt, tokens: tokens)
    assert model("p", tokens=3) == "xxx" and model("p", tokens=4) and model.used == 7


def test_amounts_are_readable():
    budget = budgets.Budget("temporaries", 24 * 2**20, "bytes", lambda _: 0, "")
    assert budget.describe(8.03 * 2**20) == "temporaries: 8.03 MiB of 24 MiB"
