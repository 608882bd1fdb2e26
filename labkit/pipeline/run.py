"""Evaluate a base model, fine-tune it, evaluate it again, export it; each stage is kept, so a killed run goes on."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flax import nnx

import labkit
from labkit import convert, lora, models, sft
from labkit import evaluate as judging
from labkit.data import verilog
from labkit.data.problems import Problem
from labkit.errors import LabError
from labkit.evaluate.result import EvalResult
from labkit.models.loading import Loaded
from labkit.records import Record
from labkit.sft.run import TrainResult

# The main job's recipe: four to five minutes of training on two slow cores. Attention's cost grows with the row on a
# CPU, so short rows in buckets beat packed long ones there; with long samples it is the other way round.
RECIPE = sft.Recipe(
    steps=130, seq_len=256, batch_size=24, samples=6000, packing="bucket", learning_rate=4e-3, warmup=10, save_every=25
)
_SHOTS = 3  # solved examples in the control's prompt
_LIBRARIES = ("jax", "flax", "optax", "google-tunix", "qwix", "orbax-checkpoint", "grain")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Summary(Record):
    """One evaluation without its single answers. `by_family` maps a family to its pass@1."""

    pass_at_1: float
    interval: tuple[float, float]
    problems: int
    seen_wording: float | None
    unseen_wording: float | None
    failures: dict[str, int]
    by_family: dict[str, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"pass@1 {self.pass_at_1:.1%} ({low:.1%} to {high:.1%}) on {self.problems} problems"

    @classmethod
    def of(cls, result: EvalResult) -> Summary:
        """The summary of a result."""
        words = {row.wording for row in result.rows}
        return cls(
            pass_at_1=result.pass_at_1,
            interval=result.interval,
            problems=result.problems,
            seen_wording=result.wording("seen") if "seen" in words else None,
            unseen_wording=result.wording("unseen") if "unseen" in words else None,
            failures=result.failures,
            by_family={name: share for name, (share, _) in result.by_family().items()},
        )


@dataclass(frozen=True)
class RunReport(Record):
    """What the main job found. Controls map a name to pass@1; `seconds` a stage to its wall time."""

    out: str
    model: str
    base: Summary
    sft: Summary
    unseen_families: dict[str, Summary]
    controls: dict[str, float]
    train: TrainResult
    train_seconds: float
    useful_tokens_per_second: float
    adapter: str
    merged: str
    seconds: dict[str, float]
    versions: dict[str, str]
    export: convert.Verification | None = None

    def __str__(self) -> str:
        lines = [
            f"{'held-out problems':34}{'before':>9}{'after':>9}",
            f"{'families of the training set':34}{self.base.pass_at_1:>9.1%}{self.sft.pass_at_1:>9.1%}",
            *(
                f"{'  ' + words:34}{before:>9.1%}{after:>9.1%}"
                for words, before, after in (
                    ("in wordings of training", self.base.seen_wording, self.sft.seen_wording),
                    ("in wordings never seen", self.base.unseen_wording, self.sft.unseen_wording),
                )
                if before is not None and after is not None
            ),
            f"{'families never seen':34}{self.unseen_families['base'].pass_at_1:>9.1%}"
            f"{self.unseen_families['sft'].pass_at_1:>9.1%}",
            "",
            "controls (pass@1): " + ", ".join(f"{name} {share:.1%}" for name, share in self.controls.items()),
            f"training: {self.train}",
            f"export: {self.export or self.merged}",
            f"report: {self.out}/report.html",
        ]
        return "\n".join(lines)


def run(
    *,
    out: str | Path,
    model: str = "tiny-gemma4",
    recipe: sft.Recipe | None = None,
    problems: int = 414,
    unseen: int = 136,
    seed: int = 0,
) -> RunReport:
    """The main job. Killed at any time and called again with the same arguments, it goes on.

    Args:
        out: its own folder: `base.json`, `sft.json` and other stages, `train/`, `adapter/`, `merged/`, `report.*`.
        model: the base, a registry name or a directory.
        recipe: of the fine-tuning; default `RECIPE`.
        problems: held-out problems of the families that training has.
        unseen: problems of families that training never has.
        seed: of problems and training data.

    Raises:
        LabError: a folder that holds another run, and whatever a stage finds wrong.
    """
    folder = Path(out)
    recipe = recipe or RECIPE.replace(model=str(model), seed=seed)
    job = _Job(folder, recipe, problems, unseen, seed)
    loaded = models.load(model)
    report = _stages(job, loaded)
    report.save(folder / "report.json")
    from labkit.pipeline.report import write_html

    write_html(report, job.kept("base"), job.kept("sft"), folder / "report.html")
    return report


@dataclass(frozen=True)
class Settings(Record):
    """What a folder's stages were made with."""

    recipe: sft.Recipe
    problems: int
    unseen: int
    seed: int


class _Job:
    """The stages of one folder: made once, read afterwards."""

    def __init__(self, folder: Path, recipe: sft.Recipe, problems: int, unseen: int, seed: int) -> None:
        self.folder, self.recipe, self.seed = folder, recipe, seed
        self.problems, self.unseen = problems, unseen
        mark, mine = folder / "settings.json", Settings(recipe, problems, unseen, seed)
        if mark.exists():
            if Settings.from_json(mark.read_text(encoding="utf-8")) != mine:
                raise LabError(f"{folder} holds a run with other settings.", hint="Choose another folder with --out.")
        elif folder.exists() and any(folder.iterdir()):
            raise LabError(f"{folder} holds something that is no labkit run.", hint="Choose another folder with --out.")
        else:
            mine.save(mark)

    def stage(self, name: str, kind: type[R], make: Callable[[], R]) -> R:
        """The record of a stage, made if it is not there yet."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            make().save(path)
        return kind.from_json(path.read_text(encoding="utf-8"))

    def kept(self, name: str) -> EvalResult:
        """The evaluation that a stage left."""
        return EvalResult.from_json((self.folder / f"{name}.json").read_text(encoding="utf-8"))


def _stages(job: _Job, loaded: Loaded) -> RunReport:
    seen = verilog.problems("test_seen", job.problems, seed=job.seed)
    new = verilog.problems("test_unseen", job.unseen, seed=job.seed)
    drawn = verilog.problems("train", 4 * _SHOTS, seed=job.seed + 1)
    shots = sorted(drawn, key=lambda p: len(p.spec) + len(p.reference))[:_SHOTS]  # three long ones leave no room

    def ask(name: str, model: nnx.Module, tasks: Sequence[Problem], **options: Any) -> EvalResult:
        return job.stage(
            name,
            EvalResult,
            lambda: judging.evaluate(model, loaded.tokenizer, tasks, name=name, seed=job.seed, **options),
        )

    base = ask("base", loaded.model, seen)
    base_new = ask("base_unseen_families", loaded.model, new)
    few = ask("base_three_examples", loaded.model, seen, prompt=judging.controls.few_shot(shots))
    header = ask("base_given_the_header", loaded.model, seen, prompt=judging.controls.complete_header)
    tuned, trained = _train(job, loaded)
    after = ask("sft", tuned, seen)
    after_new = ask("sft_unseen_families", tuned, new)
    mixed = ask("sft_shuffled_specifications", tuned, judging.controls.shuffled(seen, job.seed))
    seconds = {"train": trained.train_seconds}
    for name, result in (("base", base), ("sft", after)):
        seconds |= {f"{name}: answers": result.generation_seconds, f"{name}: judging": result.judge_seconds}
    return RunReport(
        out=str(job.folder),
        model=job.recipe.model,
        base=Summary.of(base),
        sft=Summary.of(after),
        unseen_families={"base": Summary.of(base_new), "sft": Summary.of(after_new)},
        controls={
            "base, three examples in the prompt": few.pass_at_1,
            "base, given the reference's header": header.pass_at_1,
            "after, specifications shuffled": mixed.pass_at_1,
        },
        train=trained,
        train_seconds=trained.train_seconds,
        useful_tokens_per_second=trained.useful_tokens_per_second,
        adapter=_export(job, "adapter", tuned, loaded),
        merged=_export(job, "merged", tuned, loaded),
        seconds=seconds,
        versions=_versions(),
        export=_verified(job, loaded) if lora.is_injected(tuned) else None,
    )


def _verified(job: _Job, loaded: Loaded) -> convert.Verification | None:
    """The merged export compared with the adapter over its base, tensor by tensor and in what they say.

    Not of QLoRA, whose merged model has the base as nf4 rounded it.
    """
    if job.recipe.qlora is not None:
        return None
    adapter, merged = job.folder / "adapter", job.folder / "merged"
    found = job.stage("export", convert.Verification, lambda: convert.verify(adapter, merged, base=loaded.directory))
    if not found.equal:
        raise LabError(f"The exports are not one model: {found}.", hint=f"Remove {adapter} and {merged}; run again.")
    return found


def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return found | {"labkit": labkit.__version__, "python": platform.python_version()}


def _train(job: _Job, loaded: Loaded) -> tuple[nnx.Module, sft.TrainResult]:
    model, data = sft.prepare(job.recipe, loaded)
    return model, sft.train(model, data, job.recipe, out=job.folder / "train")


def _export(job: _Job, name: str, tuned: nnx.Module, loaded: Loaded) -> str:
    out = job.folder / name
    if out.exists():
        return str(out)
    if name == "merged":
        origin = {"recipe": job.recipe.to_dict(), "base": loaded.spec.name}
        convert.to_hf(tuned, out, spec=loaded.spec, files=loaded.directory, provenance=origin)
    elif lora.is_injected(tuned):
        convert.to_peft(tuned, out, spec=loaded.spec)
    return str(out)
