"""What a step holds and moves: an objective for each kind, registered by the module that owns the step.

Standard library only. An objective turns a `Job` into `Needs`: the arrays that live as long as the job, and two
functions of the mesh's axis sizes, for what comes and goes within a step and for what goes over the links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from labkit.errors import LabError, nearest
from labkit.mesh.rules import Arrays, Split
from labkit.mesh.traffic import Transfer
from labkit.models.spec import ModelSpec
from labkit.records import Record

KINDS = ("weights", "adapters", "optimizer", "gradients", "activations", "logits", "kv_cache")
REMAT = ("none", "block", "decoder")
Sizes = Mapping[str, int]
Splits = Mapping[Arrays, Split]


@dataclass(frozen=True)
class Job(Record):
    """One step of a job on all devices together: `batch` rows of `seq` tokens.

    `rank` and `targets` are those of LoRA; `dtype` of weights and computation, and of what is trained; `remat`
    ("none", "block", "decoder") what the backward pass computes again; `accumulation` in how many parts the batch is
    computed; `loss_chunk` how many positions of a row have their logits at a time.
    """

    model: str
    seq: int
    batch: int
    objective: str = "train_lora"
    rank: int = 16
    targets: str = "all"
    dtype: str = "bfloat16"
    remat: str = "decoder"
    accumulation: int = 1
    loss_chunk: int = 512

    def __post_init__(self) -> None:
        for name in ("seq", "batch", "rank", "accumulation", "loss_chunk"):
            if getattr(self, name) < 1:
                raise LabError(f"{name} is {getattr(self, name)}.", hint="It must be at least 1.")
        if self.remat not in REMAT:
            raise LabError(f"Unknown remat {self.remat!r}.", hint=f"Choices: {', '.join(REMAT)}.")
        if self.batch % self.accumulation:
            raise LabError(
                f"A batch of {self.batch} rows does not divide into {self.accumulation} parts.",
                hint="Choose an accumulation that divides the batch.",
            )

    def __str__(self) -> str:
        return f"{self.objective} of {self.model}, {self.batch} x {self.seq} tokens"


@dataclass(frozen=True)
class Held:
    """Arrays that live as long as the job. Those of one kind are added up; `copies` such as AdamW's two moments."""

    kind: str
    arrays: tuple[Arrays, ...]
    copies: int = 1


@dataclass(frozen=True)
class Needs:
    """What an objective needs.

    `held` are arrays; `scalars` are bytes of counters by kind, whole on each device. `working(sizes)` gives for each
    moment that could be the peak, by its name, the bytes of one device by kind of what comes and goes;
    `transfers(sizes, splits)` what the collectives of one step move. `rules` are changes to the family's sharding
    rules, `axes` the mesh axes that the step can use, outermost first.
    """

    held: tuple[Held, ...]
    working: Callable[[Sizes], Mapping[str, Mapping[str, float]]]
    transfers: Callable[[Sizes, Splits], Sequence[Transfer]]
    scalars: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, str | None] = field(default_factory=dict)
    axes: tuple[str, ...] = ("dp", "fsdp", "tp")


Objective = Callable[[Job, ModelSpec], Needs]
_OBJECTIVES: dict[str, Objective] = {}


def objective(name: str) -> Callable[[Objective], Objective]:
    """Register a function of (job, spec) as an objective that `plan` knows by name."""

    def register(function: Objective) -> Objective:
        _OBJECTIVES[name] = function
        return function

    return register


def registered() -> tuple[str, ...]:
    """The names that are registered."""
    return tuple(_OBJECTIVES)


def needs(job: Job, spec: ModelSpec) -> Needs:
    """What the objective of a job needs.

    Raises:
        LabError: an objective that nobody has registered.
    """
    if job.objective not in _OBJECTIVES:
        raise LabError(
            f"There is no objective {job.objective!r}.",
            hint=f"Nearest: {nearest(job.objective, registered())}. Others come with the module of their step.",
        )
    return _OBJECTIVES[job.objective](job, spec)
