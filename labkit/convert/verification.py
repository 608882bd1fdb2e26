"""Are two checkpoints the same, tensor by tensor and in what they say?"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.convert import probing
from labkit.convert.loading import load
from labkit.convert.merging import Merger
from labkit.convert.opening import open_source
from labkit.convert.shards import as_bytes
from labkit.convert.sources import Source
from labkit.errors import LabError
from labkit.records import Record, write_atomic

_LISTED = 20  # tensors that the result lists, the most different first


@dataclass(frozen=True)
class Gap(Record):
    """One tensor of two checkpoints: `equal` is bit for bit in one dtype, `difference` the largest in float32."""

    name: str
    equal: bool
    difference: float

    def __str__(self) -> str:
        return f"{self.name}: {'equal' if self.equal else f'differs by up to {self.difference:.3g}'}"


@dataclass(frozen=True)
class Verification(Record):
    """Two checkpoints compared.

    `equal` is bit for bit, in one dtype, adapters merged. Differences are of float32 values. `argmax_agreement` is the
    share of the probe's tokens after which both find the same next one likeliest, `greedy_agreement` the share of
    prompts that both continue alike to the end. `gaps` lists the tensors that differ most.
    """

    a: str
    b: str
    equal: bool
    tensors: int
    different_tensors: int
    max_abs_difference: float
    worst_tensor: str
    max_logit_difference: float
    mean_logit_difference: float
    argmax_agreement: float
    greedy_agreement: float
    gaps: tuple[Gap, ...] = ()

    def __str__(self) -> str:
        if self.equal:
            return f"{self.a} and {self.b} are equal, bit for bit ({self.tensors} tensors)"
        return (
            f"{self.a} and {self.b} differ in {self.different_tensors} of {self.tensors} tensors, by up to "
            f"{self.max_abs_difference:.3g} in {self.worst_tensor}; logits by up to {self.max_logit_difference:.3g}, "
            f"{self.argmax_agreement:.1%} of the likeliest tokens and {self.greedy_agreement:.0%} of the greedy "
            "continuations agree"
        )

    def write_report(self, path: str | Path) -> None:
        """One page of HTML: the verdict, the figures, the tensors that differ most."""
        page = f"<!doctype html><meta charset='utf-8'><title>labkit verify</title>{self._repr_html_()}\n"
        write_atomic(path, page)

    def _repr_html_(self) -> str:
        figures = (
            ("tensors that differ", f"{self.different_tensors:,} of {self.tensors:,}"),
            ("largest difference", f"{self.max_abs_difference:.3g} in {self.worst_tensor}"),
            ("logits, largest difference", f"{self.max_logit_difference:.3g}"),
            ("logits, mean difference", f"{self.mean_logit_difference:.3g}"),
            ("likeliest next token agrees", f"{self.argmax_agreement:.1%}"),
            ("greedy continuations agree", f"{self.greedy_agreement:.0%}"),
        )
        listed = tuple((gap.name, f"{gap.difference:.3g}") for gap in self.gaps if not gap.equal)
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(name)}</td><td style='text-align:left'>{html.escape(value)}"
            "</td></tr>"
            for name, value in figures + listed
        )
        return f"<table><caption style='text-align:left'>{html.escape(str(self))}</caption>{rows}</table>"


def verify(
    a: str | Path, b: str | Path, *, base: str | Path | None = None, seed: int = 0, allow_other_base: bool = False
) -> Verification:
    """Compare two checkpoints of one shape, of any kind: their tensors one by one, then what the models say.

    The tensors are compared by their Hugging Face names, adapters merged, a piece of each at a time. The models then
    run in Tunix one after the other (adapters unmerged), on tokens drawn from `seed`.

    Args:
        a: a Hugging Face or PEFT directory, an Orbax checkpoint, a run's folder, or a registry name.
        b: the same.
        base: of adapters that stand alone; None is the one that they name.
        seed: of the probe.
        allow_other_base: take adapters that say they were trained on other weights.

    Raises:
        LabError: models of different parameters, or files that cannot be read.
    """
    one, two = (open_source(side, base=base, allow_other_base=allow_other_base) for side in (a, b))
    gaps = sorted(_gaps(str(a), one, str(b), two), key=lambda gap: -gap.difference)
    models = [load(side, base=base, allow_other_base=allow_other_base).model for side in (a, b)]
    said = probing.compare(models[0], models[1], one.spec.vocab_size, seed)
    return Verification(
        a=str(a),
        b=str(b),
        equal=all(gap.equal for gap in gaps),
        tensors=len(gaps),
        different_tensors=sum(not gap.equal for gap in gaps),
        max_abs_difference=gaps[0].difference,
        worst_tensor=gaps[0].name,
        max_logit_difference=said.max_difference,
        mean_logit_difference=said.mean_difference,
        argmax_agreement=said.argmax_agreement,
        greedy_agreement=said.greedy_agreement,
        gaps=tuple(gap for gap in gaps if not gap.equal)[:_LISTED],
    )


def _gaps(a: str, one: Source, b: str, two: Source) -> Iterator[Gap]:
    """Each tensor of both; a piece of each at a time is in memory."""
    for name in sorted(one.tensors.keys() | two.tensors.keys()):
        shapes = [side.tensors[name].shape if name in side.tensors else None for side in (one, two)]
        if shapes[0] != shapes[1]:
            raise LabError(f"{name} is {shapes[0]} in {a} and {shapes[1]} in {b}.", hint="Compare models of one shape.")
    left, right = (Merger(side.adapters, None) for side in (one, two))
    for name in one.tensors:
        same, difference = True, 0.0
        tensors = one.tensors[name], two.tensors[name]
        ranges = list(max(tensors, key=lambda tensor: tensor.block).ranges())
        for (x, _), (y, _) in zip(left.pieces(tensors[0], ranges), right.pieces(tensors[1], ranges), strict=True):
            if x.dtype != y.dtype or as_bytes(x) != as_bytes(y):
                same, difference = False, max(difference, _difference(x, y))
        yield Gap(name, same, difference)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference; infinite where only one of the two is a number."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    differ = a != b
    gaps = np.abs(np.subtract(a, b, where=differ, out=np.zeros_like(a)))
    return float(np.where(np.isnan(a) & np.isnan(b), 0.0, np.nan_to_num(gaps, nan=np.inf)).max(initial=0.0))
