"""Prompts of an evaluation: the plain question, and the controls that show what a score is made of."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.data.problems import Problem


@dataclass(frozen=True)
class Prompt:
    """What the model is given, as text; `opening` is the part of the answer that the prompt already holds."""

    text: str
    opening: str = ""


PromptBuilder = Callable[["Problem", Any], Prompt]  # from a problem and a tokenizer


def question(problem: Problem, tokenizer: Any) -> Prompt:
    """The specification as the user's turn of the tokenizer's chat template."""
    return Prompt(_chat(tokenizer, [{"role": "user", "content": problem.spec}]))


def complete_header(problem: Problem, tokenizer: Any) -> Prompt:
    """The question, and the reference's own header as the start of the answer."""
    found = re.match(r"\s*module\b[^;]*;\n?", problem.reference)
    if found is None:
        raise LabError(f"The reference of {problem.id} has no module header.", hint="Check the data.")
    plain = question(problem, tokenizer)
    return Prompt(plain.text + found[0], opening=found[0])


def few_shot(examples: Sequence[Problem], chat: bool = False) -> PromptBuilder:
    """Solved examples before the question.

    Args:
        examples: problems of the training split.
        chat: as turns of a chat; else as plain text, which a base model has seen.
    """

    def build(problem: Problem, tokenizer: Any) -> Prompt:
        if chat:
            turns = [
                {"role": role, "content": content}
                for e in examples
                for role, content in (("user", e.spec), ("assistant", e.reference))
            ]
            return Prompt(_chat(tokenizer, [*turns, {"role": "user", "content": problem.spec}]))
        solved = "".join(f"{_comment(e.spec)}\n{e.reference.strip()}\n\n" for e in examples)
        return Prompt(f"{solved}{_comment(problem.spec)}\n")

    return build


def shuffled(problems: Sequence[Problem], seed: int = 0) -> list[Problem]:
    """The problems with their specifications passed on, so that no problem keeps its own (a control).

    Raises:
        LabError: fewer than two problems.
    """
    if len(problems) < 2:
        raise LabError("Specifications can only be shuffled among two problems or more.")
    order = list(range(len(problems)))
    random.Random(seed).shuffle(order)
    giver = {order[i]: order[i - 1] for i in range(len(order))}  # one cycle: nobody gives to itself
    return [dataclasses.replace(p, spec=problems[giver[i]].spec) for i, p in enumerate(problems)]


def _chat(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _comment(text: str) -> str:
    return "\n".join(f"// {line}" for line in text.splitlines())
