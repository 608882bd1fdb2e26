"""Everything that decides a training run, in one record that is a TOML file too."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from labkit.errors import LabError, nearest
from labkit.records import Record, write_atomic

SCHEDULES = ("cosine", "constant", "linear")
TUNING = ("lora", "full")
PACKINGS = ("pack", "bucket", "pad")
LOSSES = ("answer", "assistant", "all")
REASONING = ("keep", "strip")


@dataclass(frozen=True)
class Recipe(Record):
    """A supervised fine-tuning run.

    `batch_size` is the rows of one update on all devices together; `accumulation` splits it into so many parts that
    follow one another. `data` is "verilog" (the built-in task, `samples` of it), or a JSONL file. `packing` as in
    `labkit.data.packing.plan`, `loss` and `reasoning` as in `labkit.data.chat.ChatOptions`.

    `learning_rate` is the peak, reached after `warmup` steps; `end_rate` is the share of it that is left at the end.
    `clip` limits the global norm of the gradient, 0 is no limit. `loss_chunk` is in positions of a row. `dtype` is that
    of the weights, and of the adapters with them; None keeps the checkpoint's.
    """

    model: str = "tiny-gemma4"
    data: str = "verilog"
    samples: int = 4000
    tuning: str = "lora"
    rank: int = 16
    alpha: float = 32.0
    targets: str = "all"
    qlora: str | None = None
    steps: int = 200
    seq_len: int = 256
    batch_size: int = 16
    accumulation: int = 1
    packing: str = "pack"
    loss: str = "answer"
    reasoning: str = "keep"
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    warmup: int = 10
    end_rate: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    dtype: str | None = None
    remat: str | None = None
    loss_chunk: int = 512
    save_every: int = 50
    keep: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        words = {"schedule": SCHEDULES, "tuning": TUNING, "packing": PACKINGS, "loss": LOSSES, "reasoning": REASONING}
        for name, choices in words.items():
            if getattr(self, name) not in choices:
                raise LabError(f"Recipe {name} is {getattr(self, name)!r}.", hint=f"Choices: {', '.join(choices)}.")
        for name in ("samples", "rank", "steps", "seq_len", "batch_size", "accumulation", "loss_chunk", "save_every"):
            if getattr(self, name) < 1:
                raise LabError(f"Recipe {name} is {getattr(self, name)}.", hint="It must be at least 1.")
        if min(self.warmup, self.clip, self.end_rate, self.weight_decay) < 0:
            raise LabError("Recipe warmup, clip, end_rate and weight_decay must not be negative.")
        if self.learning_rate <= 0:
            raise LabError(f"Recipe learning_rate is {self.learning_rate}.", hint="It must be above 0.")
        if self.batch_size % self.accumulation:
            raise LabError(
                f"A batch of {self.batch_size} rows does not divide into {self.accumulation} parts.",
                hint="Choose an accumulation that divides batch_size.",
            )

    def __str__(self) -> str:
        what = f"LoRA r{self.rank} on {self.targets}" if self.tuning == "lora" else "full fine-tuning"
        return (
            f"{self.model}: {what}, {self.steps} steps of {self.batch_size} x {self.seq_len} tokens, "
            f"{self.schedule} from {self.learning_rate:g}"
        )

    def to_toml(self) -> str:
        """The recipe as a TOML document; keys that are not set are left out."""
        pairs = {k: v for k, v in self.to_dict().items() if v is not None}
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in pairs.items())

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], **overrides: Any) -> Self:
        """The recipe of a TOML file; `overrides` win. Unknown keys are a `LabError`."""
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise LabError(f"{path} could not be read: {error.strerror}.") from error
        except tomllib.TOMLDecodeError as error:
            raise LabError(f"{path} is not a TOML file: {error}.") from error
        return cls.from_dict(values | overrides)

    def save_toml(self, path: str | os.PathLike[str]) -> None:
        """Write the TOML file, atomically."""
        write_atomic(path, self.to_toml())

    def replace(self, **changes: Any) -> Self:
        """The same recipe but for some fields."""
        return type(self).from_dict(self.to_dict() | changes)

    def hash(self) -> str:
        """Twelve hex digits that name what the recipe trains; how often it saves does not count."""
        values = {k: v for k, v in self.to_dict().items() if k not in ("save_every", "keep")}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Difference(Record):
    """One field in which two recipes differ; None where a recipe does not say."""

    field: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.a} | {self.b}"


@dataclass(frozen=True)
class Comparison(Record):
    """Every difference between two recipes."""

    names: tuple[str, str]
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        fields = ", ".join(d.field for d in self.differences) or "none"
        return f"{self.names[0]} against {self.names[1]}: {len(self.differences)} differences ({fields})"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{x}</th>" for x in ("", *self.names))
        rows = "".join(f"<tr><th>{d.field}</th><td>{d.a}</td><td>{d.b}</td></tr>" for d in self.differences)
        return f"<table><tr>{head}</tr>{rows}</table>"


def compare(a: Recipe | dict[str, Any], b: Recipe | dict[str, Any], names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Every field in which two recipes differ.

    A dictionary may leave fields out and have fields of its own: a published recipe seldom says everything, and says
    things that labkit's does not know.
    """
    left, right = (r.to_dict() if isinstance(r, Recipe) else dict(r) for r in (a, b))
    order = [*left, *(key for key in right if key not in left)]
    rows = [Difference(k, left.get(k), right.get(k)) for k in order if left.get(k) != right.get(k)]
    return Comparison(names, tuple(rows))


def published(name: str) -> dict[str, Any]:
    """A published recipe of `data/recipes/`, as far as its source tells."""
    from labkit import resources

    known = {p.stem: p for p in resources.path("recipes").glob("*.toml")}
    if name not in known:
        raise LabError(f"There is no published recipe {name!r}.", hint=f"Nearest: {nearest(name, sorted(known))}.")
    return tomllib.loads(known[name].read_text(encoding="utf-8"))
