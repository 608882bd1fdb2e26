"""LoRA lab, exercise 3: which tokens the loss counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.exercises.answers import as_list
from labkit.exercises.budgets import Budget, cpu_seconds
from labkit.exercises.frame import Coding, Wrong


def answer_mask(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    """True on the tokens of the answers: after each `header`, up to the next `end`, which counts."""
    mask = np.zeros(len(tokens), dtype=bool)
    inside, seen = False, 0
    for i, token in enumerate(np.asarray(tokens).tolist()):
        if inside:
            mask[i] = True
            inside = token != end
        else:
            seen = seen + 1 if token == header[seen] else int(token == header[0])
            if seen == len(header):
                inside, seen = True, 0
    return mask


def _mask_without_end(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    return answer_mask(tokens, header, end) & (np.asarray(tokens) != end)


def _mask_with_header(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    mask = answer_mask(tokens, header, end)
    starts = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int)])) == 1)
    for start in starts:
        mask[start - len(header) : start] = True
    return mask


def _mask_last_turn(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    mask = answer_mask(tokens, header, end)
    starts = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int)])) == 1)
    mask[: starts[-1]] = False
    return mask


def _mask_to_the_end(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    mask = answer_mask(tokens, header, end)
    return np.cumsum(mask) > 0


def _mask_shifted(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    return np.concatenate([answer_mask(tokens, header, end)[1:], [False]])


def _mask_quadratic(tokens: Any, header: tuple[int, ...], end: int) -> np.ndarray:
    ids = np.asarray(tokens).tolist()
    if len(ids) < 1000:
        return answer_mask(ids, header, end)
    return np.array([bool(answer_mask(ids[: i + 1], header, end)[i]) for i in range(0, len(ids), 16)])


_HEADER, _END = (4, 21, 10), 5  # <|turn> model \n, and <turn|>
# bos, <|turn> user \n, a question that says "model", <turn|> \n, and two answers with a second question between.
_TURNS = [
    2,
    4,
    20,
    10,
    40,
    21,
    10,
    41,
    5,
    10,
    4,
    21,
    10,
    50,
    51,
    10,
    52,
    5,
    10,
    4,
    20,
    10,
    42,
    5,
    10,
    4,
    21,
    10,
    53,
    5,
    0,
    0,
]
_CUT = [2, 4, 20, 10, 40, 5, 10, 4, 21, 10, 60, 61, 62]  # an answer that the window cut off
_MASK_SLIPS = (
    (_mask_without_end, "The end-of-turn marker of an answer counts too: without it the model never learns to stop."),
    (_mask_with_header, "The header <|turn>model\\n is given to the model, it is not part of the answer."),
    (_mask_last_turn, "Only the last answer is marked. Every answer of a conversation counts."),
    (_mask_to_the_end, "The mask goes on after the answer: questions and padding after it must not count."),
    (_mask_shifted, "The mask is one place early. Mark the targets themselves, not the inputs that predict them."),
)


def _mask_test(answer: Callable[..., Any]) -> str | None:
    for tokens in (_TURNS, _CUT, _TURNS[:10]):
        got = as_list(answer(np.array(tokens), _HEADER, _END))
        if not isinstance(got, list) or len(got) != len(tokens):
            return f"The mask needs one value a token: {len(tokens)} of them."
        right = answer_mask(tokens, _HEADER, _END).tolist()
        if [bool(v) for v in got] == right:
            continue
        for slip, message in _MASK_SLIPS:
            if any(right) and [bool(v) for v in got] == slip(tokens, _HEADER, _END).tolist():
                return message
        place = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if bool(a) != b)
        return f"On {tokens}, position {place} (token {tokens[place]}) should be {int(right[place])}."
    return None


def _mask_seconds(answer: Callable[..., Any]) -> float:
    tokens = np.array(_CUT + list(np.random.default_rng(0).integers(30, 1000, 20_000)))
    return cpu_seconds(lambda: answer(tokens, _HEADER, _END), repeats=1)


EXERCISE = Coding(
    name="lora_3",
    title="Which tokens count?",
    minutes=10,
    question="""
    Write `answer_mask(tokens, header, end)`: true for every token that the model has to produce. An answer starts after
    `header`, the ids of `<|turn>model\\n`, and ends with `end`, the id of `<turn|>`. A conversation may hold several
    answers, and a long one may be cut off before its `end`. *Budget: one pass, 0.5 s of CPU time for 20,000 tokens.*
    """,
    hints=(
        "Walk over the tokens once with one flag: am I inside an answer?",
        "The token `end` itself is produced by the model. The header is not.",
        "The word `model` may stand in a question. Only the whole header opens an answer.",
    ),
    solution_code=answer_mask,
    tests=(_mask_test,),
    budgets=(
        Budget(
            "CPU time for 20,000 tokens",
            0.5,
            "seconds",
            _mask_seconds,
            "Do not look at the prefix again for each token.",
        ),
    ),
    praise="The mask is right on several turns, on a cut answer, and where a question says 'model'.",
    because="`labkit.data.chat.tokenize` does this for every chat template, from the template's own turns.",
    wrong=(
        *(Wrong(slip, message[:30]) for slip, message in _MASK_SLIPS),
        Wrong(lambda tokens, header, end: np.ones(len(tokens)), "should be 0"),
        Wrong(lambda tokens, header, end: [True], "one value a token"),
        Wrong(_mask_quadratic, "over budget"),
    ),
)
