"""What an evaluation found: pass@k with its interval, by family, and what became of each answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.evaluate import passk
from labkit.evaluate.sandbox import Protections
from labkit.records import Record


@dataclass(frozen=True)
class Answer(Record):
    """One sampled answer: the text that the model wrote, and what the judge said of it."""

    text: str
    verdict: str
    detail: str
    stopped: bool

    @property
    def passed(self) -> bool:
        """Whether it is a pass."""
        return self.verdict == "pass"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.detail}"


@dataclass(frozen=True)
class Row(Record):
    """One problem and its answers."""

    id: str
    family: str
    wording: str
    answers: tuple[Answer, ...]

    @property
    def passes(self) -> int:
        """How many of the answers pass."""
        return sum(a.passed for a in self.answers)

    def __str__(self) -> str:
        return f"{self.id}: {self.passes} of {len(self.answers)} pass"


@dataclass(frozen=True)
class EvalResult(Record):
    """An evaluation. `pass_at_1` is macro-averaged over families, `interval` its 95 % interval.

    `failures` counts the answers that do not pass, by verdict.
    """

    model: str
    problems: int
    samples: int
    temperature: float
    seed: int
    pass_at_1: float
    interval: tuple[float, float]
    failures: dict[str, int]
    rows: tuple[Row, ...]
    generation_seconds: float
    judge_seconds: float
    tokens: int
    protections: Protections | None  # None where the judge was the caller's own
    versions: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        low, high = self.interval
        worst = ", ".join(f"{count} {verdict}" for verdict, count in list(self.failures.items())[:3])
        return f"{self.model}: pass@1 {self.pass_at_1:.1%} ({low:.1%} to {high:.1%}) on {self.problems} problems" + (
            f"; failures: {worst}" if worst else ""
        )

    def by_family(self) -> dict[str, tuple[float, int]]:
        """Family -> its pass@1 and its number of problems, in alphabetical order."""
        shares = _shares(self.rows, 1)
        return {name: (float(np.mean(shares[name])), len(shares[name])) for name in sorted(shares)}

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k, macro-averaged over families."""
        return passk.macro_average(_shares(self.rows, k))

    def interval_at(self, k: int) -> tuple[float, float]:
        """The 95 % interval of `pass_at(k)`: Wilson's where each problem has one answer, else by bootstrap."""
        return _interval(_shares(self.rows, k), self.samples, self.seed)

    def wording(self, which: str) -> float:
        """pass@1 over the problems with "seen" or "unseen" wording, each problem weighing the same."""
        rows = [row for row in self.rows if row.wording == which]
        if not rows:
            raise LabError(f"No problem here has {which!r} wording.")
        return float(np.mean([row.passes / len(row.answers) for row in rows]))

    def difference(self, other: EvalResult, *, k: int = 1, seed: int = 0) -> tuple[float, tuple[float, float]]:
        """This pass@k minus another's on the same problems, with its 95 % paired bootstrap interval."""
        theirs = {row.id: row for row in other.rows}
        if theirs.keys() != {row.id for row in self.rows}:
            raise LabError("The two results are not of the same problems.", hint="Evaluate both on the same list.")
        gaps: dict[str, list[float]] = {}
        for row in self.rows:
            gaps.setdefault(row.family, []).append(_share(row, k) - _share(theirs[row.id], k))
        return passk.macro_average(gaps), passk.bootstrap(gaps, seed=seed)

    def summary(self) -> dict[str, Any]:
        """Everything but the single answers, as plain values."""
        values = self.to_dict()
        del values["rows"]
        return values | {"by_family": {k: {"pass_at_1": p, "problems": n} for k, (p, n) in self.by_family().items()}}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{name}</td><td>{share:.0%}</td><td>{count}</td></tr>"
            for name, (share, count) in self.by_family().items()
        )
        return f"<p>{self}</p><table><tr><th>family</th><th>pass@1</th><th>problems</th></tr>{rows}</table>"


def collect(
    model: str,
    rows: list[Row],
    *,
    samples: int,
    temperature: float,
    seed: int,
    generation_seconds: float,
    judge_seconds: float,
    tokens: int,
    protections: Protections | None,
    versions: dict[str, str],
) -> EvalResult:
    """The result of judged rows."""
    shares = _shares(tuple(rows), 1)
    counted = Counter(a.verdict for row in rows for a in row.answers if not a.passed)
    return EvalResult(
        model=model,
        problems=len(rows),
        samples=samples,
        temperature=temperature,
        seed=seed,
        pass_at_1=passk.macro_average(shares),
        interval=_interval(shares, samples, seed),
        failures=dict(counted.most_common()),
        rows=tuple(rows),
        generation_seconds=generation_seconds,
        judge_seconds=judge_seconds,
        tokens=tokens,
        protections=protections,
        versions=versions,
    )


def _interval(shares: dict[str, list[float]], samples: int, seed: int) -> tuple[float, float]:
    return passk.macro_interval(shares) if samples == 1 else passk.bootstrap(shares, seed=seed)


def _share(row: Row, k: int) -> float:
    return passk.pass_at_k(len(row.answers), row.passes, k)


def _shares(rows: tuple[Row, ...], k: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.family, []).append(_share(row, k))
    return found
