"""`sft.train`'s step against a bare jitted Optax loop on the same batches: the ratio is to be at most 1.05.

python benchmarks/trainer_overhead.py [--steps 12] [--rounds 3] [--json]

Both sides take turns in one process, each with its model compiled beforehand; medians of the seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import optax
from flax import nnx

from labkit import lora, models, sft
from labkit.data import verilog
from labkit.data.batch import Batch
from labkit.data.pipeline import pipeline
from labkit.sft.trainer import SftTrainer, optimizer, schedule

RECIPE = sft.Recipe(seq_len=256, batch_size=8, samples=200, steps=10_000, save_every=10_000)


def bare(model: nnx.Module, batches: Iterator[Batch]) -> Iterator[float]:
    """Seconds of each step of the loop that one would write by hand."""
    graph, weights, rest = nnx.split(model, nnx.LoRAParam, ...)
    tx = optimizer(RECIPE, schedule(RECIPE))
    state = tx.init(weights)

    def loss(weights: Any, batch: Batch) -> Any:
        found = sft.sums(nnx.merge(graph, weights, rest), batch)
        return found.loss / found.tokens

    @jax.jit
    def step(weights: Any, state: Any, batch: Batch) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, batch)
        updates, state = tx.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, value

    for batch in batches:
        begun = time.perf_counter()
        weights, state, value = step(weights, state, batch)
        value.block_until_ready()
        yield time.perf_counter() - begun


def trainers(model: nnx.Module, data: Any, steps: int, rounds: int) -> Iterator[list[float]]:
    """Seconds of the steps of one trainer that is run `steps` further in each round."""
    with tempfile.TemporaryDirectory() as out:
        rows: list[sft.StepMetrics] = []
        trainer = SftTrainer(model, RECIPE, iter(data), Path(out), on_step=rows.append)
        trainer.is_managed_externally = True  # several calls of train, closed by nobody
        for _ in range(rounds + 1):
            trainer.data_hooks.steps = trainer.train_steps + steps
            begun = len(rows)
            trainer._clock = time.monotonic()
            trainer.train(())
            trainer.read_metrics(0)
            yield [row.seconds for row in rows[begun:]]


def main() -> None:
    """Take turns, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    loaded = models.load("tiny-gemma4")
    examples = verilog.examples(verilog.drafts("train", RECIPE.samples, 0))
    data = pipeline(examples, loaded.tokenizer, seq_len=RECIPE.seq_len, batch_size=RECIPE.batch_size)
    kept = list(islice(data, 40))
    hand = bare(lora.inject(loaded.model, RECIPE.rank, RECIPE.alpha)[0], cycle(kept))
    ours = trainers(lora.inject(loaded.model, RECIPE.rank, RECIPE.alpha)[0], data, args.steps, args.rounds)
    next(ours), list(islice(hand, 2))  # both compiled
    ratios, seconds = [], []
    for _ in range(args.rounds):
        mine, theirs = next(ours), list(islice(hand, args.steps))
        ratios.append(statistics.median(mine) / statistics.median(theirs))
        seconds.append((statistics.median(mine), statistics.median(theirs)))
        print(f"sft.train {seconds[-1][0]:.3f} s, bare {seconds[-1][1]:.3f} s a step", file=sys.stderr)
    result = {"ratio": statistics.median(ratios), "ratios": ratios, "seconds": seconds}
    print(json.dumps(result) if args.json else f"sft.train's step takes {result['ratio']:.3f} times the bare loop's")


if __name__ == "__main__":
    main()
