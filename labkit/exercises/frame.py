"""Exercises that check themselves: three outcomes, hints, and a solution that is the tested code.

Nothing is kept between calls: `check` sees only the answer that it is given, so cells can be run in any order.
"""

from __future__ import annotations

import html
import inspect
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from labkit.errors import LabError
from labkit.exercises.answers import as_choices, as_number, is_unattempted
from labkit.exercises.budgets import Budget
from labkit.records import Record

Status = Literal["correct", "incorrect", "unattempted"]
Test = Callable[[Any], str | None]  # an answer -> what is probably wrong with it, or None

_SIGN = {"correct": "✔", "incorrect": "✘", "unattempted": "○"}
_SHADE = {"correct": "#2fa07a", "incorrect": "#d55e00", "unattempted": "#808080"}


@dataclass(frozen=True)
class Outcome(Record):
    """What `check` found: the status, why, and what the answer used of its budgets (`"1.2 of 5 MiB ..."`)."""

    status: Status
    message: str
    used: tuple[str, ...] = ()

    def __str__(self) -> str:
        used = "".join(f"\n  {line}" for line in self.used)
        return f"{_SIGN[self.status]} {self.status}: {self.message}{used}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        used = "".join(f"<br><small>{html.escape(line)}</small>" for line in self.used)
        shade = _SHADE[self.status]
        return (
            f"<div style='border-left:4px solid {shade};padding:4px 12px'><b style='color:{shade}'>"
            f"{_SIGN[self.status]} {self.status}</b> {html.escape(self.message)}{used}</div>"
        )


class Text(str):
    """A string that a notebook shows as Markdown and a terminal as it is."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Wrong:
    """An answer that must fail, and a piece of the message that it must get. Checked for every exercise."""

    answer: Any
    says: str


@dataclass(frozen=True)
class Exercise(ABC):
    """What all kinds share. `minutes` is what a reader may spend before looking at the solution."""

    name: str
    title: str
    minutes: int
    question: str
    hints: tuple[str, ...]
    wrong: tuple[Wrong, ...]

    kind: ClassVar[str] = ""

    def check(self, answer: Any = None) -> Outcome:
        """Judge an answer: unattempted for nothing, `...` or an untouched stub, else correct or incorrect."""
        if is_unattempted(answer):
            return Outcome("unattempted", f"Put your answer in place of the dots. Stuck? {self.name}.hint()")
        return self._judge(answer)

    def hint(self, number: int = 1) -> Text:
        """The `number`-th hint; later ones say more."""
        if not 1 <= number <= len(self.hints):
            raise LabError(f"{self.name} has hints 1 to {len(self.hints)}, not {number}.", hint="Then: solution().")
        return Text(f"**Hint {number} of {len(self.hints)}.** {self.hints[number - 1]}")

    @abstractmethod
    def solution(self) -> Text:
        """The solution that the tests run, with its reason."""

    @abstractmethod
    def solved(self) -> Any:
        """The answer that `solution` shows, as a value that `check` accepts."""

    @abstractmethod
    def _judge(self, answer: Any) -> Outcome:
        """The outcome for an answer that is one."""

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.minutes} min): {self.title}\n\n{_plain(self.question)}"

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return f"**Exercise `{self.name}`: {self.title}** *(up to {self.minutes} minutes)*\n\n{_plain(self.question)}"


@dataclass(frozen=True, repr=False)
class Number(Exercise):
    """A number within a tolerance. `mistakes` explains numbers that one gets by a known slip.

    `solve` computes the answer, and its source is the solution. Values are compared relative to the larger one.
    """

    solve: Callable[[], float] = field(kw_only=True)
    because: str = field(default="", kw_only=True)
    tolerance: float = field(default=1e-6, kw_only=True)
    mistakes: Mapping[float, str] = field(default_factory=dict, kw_only=True)

    kind: ClassVar[str] = "number"

    def solved(self) -> float:
        """The right number."""
        return self.solve()

    def solution(self) -> Text:
        """The code that computes the number."""
        return Text(f"{_code(self.solve)}\n\n= **{self.solve():,.12g}**\n\n{_plain(self.because)}".rstrip())

    def _judge(self, answer: Any) -> Outcome:
        value = as_number(answer)
        if value is None:
            return Outcome("incorrect", f"The answer is one number, not {type(answer).__name__}.")
        right = self.solve()
        if self._near(value, right):
            return Outcome("correct", f"{right:,.6g} it is.")
        for slip, why in self.mistakes.items():
            if self._near(value, slip):
                return Outcome("incorrect", why)
        side = "too large" if value > right else "too small"
        return Outcome("incorrect", f"{value:,.6g} is {side}.")

    def _near(self, a: float, b: float) -> bool:
        return abs(a - b) <= self.tolerance * max(abs(a), abs(b))


@dataclass(frozen=True, repr=False)
class Choice(Exercise):
    """One or several letters of a list, in any order and case. `why_not` explains each wrong letter."""

    options: Mapping[str, str] = field(kw_only=True)
    right: str = field(kw_only=True)  # "b", or "acd"
    because: str = field(kw_only=True)
    why_not: Mapping[str, str] = field(kw_only=True)

    kind: ClassVar[str] = "choice"

    def solved(self) -> str:
        """The right letters."""
        return self.right

    def solution(self) -> Text:
        """The right letters and the reason."""
        return Text(f"**{', '.join(self.right)}.** {_plain(self.because)}")

    def _judge(self, answer: Any) -> Outcome:
        chosen, right = as_choices(answer), set(self.right)
        unknown = sorted(chosen - set(self.options))
        if unknown:
            return Outcome("incorrect", f"{', '.join(unknown)} is no option: choose from {', '.join(self.options)}.")
        if chosen == right:
            return Outcome("correct", _plain(self.because))
        for letter in sorted(chosen - right):
            return Outcome("incorrect", f"{letter}: {self.why_not[letter]}")
        return Outcome("incorrect", f"Right so far, but {len(right - chosen)} more option(s) hold as well.")

    def _repr_markdown_(self) -> str:
        return super()._repr_markdown_() + "\n\n" + "\n".join(f"- **{k}** {v}" for k, v in self.options.items())

    def __str__(self) -> str:
        return super().__str__() + "\n\n" + "\n".join(f"  {k}) {v}" for k, v in self.options.items())

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Coding(Exercise):
    """A function (or a string, such as a pattern) that `tests` check, one after another, and then `budgets`.

    `solution_code` is the answer that is shown and tested: a function, or a function that returns the value when
    `value` is true.
    """

    solution_code: Callable[..., Any] = field(kw_only=True)
    tests: tuple[Test, ...] = field(kw_only=True)
    budgets: tuple[Budget, ...] = field(default=(), kw_only=True)
    value: bool = field(default=False, kw_only=True)
    because: str = field(default="", kw_only=True)
    praise: str = field(default="All tests pass.", kw_only=True)

    kind: ClassVar[str] = "code"

    def solved(self) -> Any:
        """The function, or the value that it returns."""
        return self.solution_code() if self.value else self.solution_code

    def solution(self) -> Text:
        """The source of the tested solution."""
        return Text(f"{_code(self.solution_code)}\n\n{_plain(self.because)}".rstrip())

    def _judge(self, answer: Any) -> Outcome:
        if not self.value and not callable(answer):
            got = type(answer).__name__
            return Outcome("incorrect", f"The answer is a function: hand over its name, not a call of it (a {got}).")
        used: list[str] = []
        try:
            for test in self.tests:
                if wrong := test(answer):
                    return Outcome("incorrect", wrong)
            for budget in self.budgets:
                spent = budget.measure(answer)
                used.append(budget.describe(spent))
                if spent > budget.limit:
                    return Outcome("incorrect", f"Right results, but over budget. {budget.advice}", tuple(used))
        except LabError as error:
            return Outcome("incorrect", str(error))
        except Exception as error:  # whatever the reader's code raises is a fault of the answer, not of the check
            return Outcome("incorrect", f"Your code raised {type(error).__name__}: {error}{_where(error)}")
        return Outcome("correct", self.praise, tuple(used))


@dataclass(frozen=True, repr=False)
class Thought(Exercise):
    """A few sentences. `points` maps what they must touch on to the words that show it."""

    points: Mapping[str, Iterable[str]] = field(kw_only=True)
    text: str = field(kw_only=True)

    kind: ClassVar[str] = "thought"

    def solved(self) -> str:
        """The model answer."""
        return _plain(self.text)

    def solution(self) -> Text:
        """The model answer."""
        return Text(self.solved())

    def _judge(self, answer: Any) -> Outcome:
        said = str(answer).lower()
        for point, words in self.points.items():
            if not any(word in said for word in words):
                return Outcome("incorrect", f"Your text leaves something out: {point}")
        return Outcome("correct", "Your text touches on every point. Compare its reasoning with the solution.")


def _code(function: Callable[..., Any]) -> str:
    return f"```python\n{textwrap.dedent(inspect.getsource(function)).rstrip()}\n```"


def _plain(text: str) -> str:
    """Text of a triple-quoted string without its indentation."""
    return inspect.cleandoc(text)


def _where(error: Exception) -> str:
    """The line of the reader's code in which an error arose, if a cell or a file tells."""
    frame = error.__traceback__
    last = ""
    while frame is not None:
        code = frame.tb_frame.f_code
        if "labkit" not in code.co_filename:
            last = f" (line {frame.tb_lineno} of {code.co_name})"
        frame = frame.tb_next
    return last
