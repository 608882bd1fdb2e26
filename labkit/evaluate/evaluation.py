"""Let a model answer problems and judge what it wrote."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from flax import nnx

from labkit.data.problems import Problem
from labkit.errors import LabError
from labkit.evaluate import controls, result
from labkit.evaluate.extraction import Mode, extract_module
from labkit.evaluate.sampling import Sampling, generate
from labkit.evaluate.sandbox import Sandbox, in_parallel, program, protections
from labkit.evaluate.verdict import Verdict, judge
from labkit.progress import Progress

OwnJudge = Callable[[Problem, str], Verdict | bool]  # a user's judge: problem and answer -> verdict
_LIBRARIES = ("jax", "flax", "google-tunix", "qwix")


def evaluate(
    model: nnx.Module,
    tokenizer: Any,
    problems: Sequence[Problem],
    *,
    name: str = "model",
    samples: int = 1,
    prompt: controls.PromptBuilder = controls.question,
    judged_by: OwnJudge | None = None,
    mode: Mode = "generous",
    workers: int | None = None,
    **sampling: Unpack[Sampling],
) -> result.EvalResult:
    """Answers of a model to problems, judged by simulation; independent of the order of problems and of cores.

    Args:
        model, tokenizer: a Tunix model and its Transformers tokenizer.
        problems: what to answer.
        name: how the result calls the model.
        samples: answers to each problem; more than one needs a temperature.
        prompt: makes a prompt of a problem (`labkit.evaluate.controls` has the controls).
        judged_by: a judge of your own, from problem and answer to a `Verdict` or a bool; it needs no iverilog.
        mode: "generous" takes the first module out of any text, "strict" wants nothing else, and a model that stops.
        workers: judges at a time; None is one a core.
        sampling: as in `generate`: temperature (0, the default, is greedy), seed, max_new_tokens, batch_size, ...

    Raises:
        LabError: no problems, several greedy samples, prompts longer than the model's window, no iverilog.
    """
    _check(problems, samples, sampling.get("temperature", 0.0), judged_by)
    begun = time.monotonic()
    prompts = [prompt(problem, tokenizer) for problem in problems for _ in range(samples)]
    with Progress(f"{name}: answering", len(prompts)) as bar:
        written = generate(model, tokenizer, [p.text for p in prompts], progress=bar.at, **sampling)
    answered = time.monotonic()
    texts = [(p.opening + w.text, w.stopped) for p, w in zip(prompts, written, strict=True)]
    answers = _judge_all([(problems[i // samples], *t) for i, t in enumerate(texts)], judged_by, mode, workers, name)
    return result.collect(
        name, _rows(problems, answers, samples), samples=samples, temperature=sampling.get("temperature", 0.0),
        seed=sampling.get("seed", 0), generation_seconds=answered - begun, judge_seconds=time.monotonic() - answered,
        tokens=sum(w.tokens for w in written), protections=protections() if judged_by is None else None,
        versions={library: importlib.metadata.version(library) for library in _LIBRARIES},
    )  # fmt: skip


def _rows(problems: Sequence[Problem], answers: list[result.Answer], samples: int) -> list[result.Row]:
    parts = (tuple(answers[i : i + samples]) for i in range(0, len(answers), samples))
    return [result.Row(p.id, p.family, p.wording, part) for p, part in zip(problems, parts, strict=True)]


def _check(problems: Sequence[Problem], samples: int, temperature: float, judged_by: OwnJudge | None) -> None:
    if not problems:
        raise LabError("There are no problems to evaluate.", hint="Give at least one.")
    if samples > 1 and temperature <= 0:
        raise LabError(f"{samples} greedy samples would all be the same.", hint="Set temperature, such as 0.8.")
    if judged_by is None:
        program("iverilog")  # before minutes are spent on answers that nobody could judge


def evaluate_named(
    model: str | Path,
    *,
    problems: int = 414,
    split: str = "test_seen",
    seed: int = 0,
    samples: int = 1,
    temperature: float = 0.0,
) -> result.EvalResult:
    """`evaluate` for a model by registry name or directory, on problems of a split of the built-in task.

    `seed` is that of the problems and of the sampling.
    """
    from labkit import models
    from labkit.data import verilog

    tasks = verilog.problems(split, problems, seed=seed)
    loaded = models.load(model)
    return evaluate(
        loaded.model,
        loaded.tokenizer,
        tasks,
        name=Path(model).name,
        samples=samples,
        temperature=temperature,
        seed=seed,
    )


def _judge_all(
    tasks: list[tuple[Problem, str, bool]], own: OwnJudge | None, mode: Mode, workers: int | None, name: str
) -> list[result.Answer]:
    def verdict(sandbox: Sandbox | None, task: tuple[Problem, str, bool]) -> result.Answer:
        problem, text, stopped = task
        if own is not None:
            return _answer(own(problem, text), text, stopped)
        if mode == "strict" and not stopped:
            return result.Answer(text, "no_module", "the model did not end its answer", stopped)
        return _answer(judge(extract_module(text, problem.top, mode), problem, sandbox=sandbox), text, stopped)

    with Progress(f"{name}: judging", len(tasks)) as bar:
        if own is not None:
            return [verdict(None, task) for task in tasks]
        count = iter(range(1, len(tasks) + 1))
        return in_parallel(verdict, tasks, workers=workers, progress=lambda: bar.at(next(count)))


def _answer(found: Verdict | bool, text: str, stopped: bool) -> result.Answer:
    if isinstance(found, bool):
        found = Verdict("pass" if found else "wrong_result", "by the given judge", 0.0)
    return result.Answer(text, found.verdict, found.detail, stopped)
