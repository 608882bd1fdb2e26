"""Packing against the published recipe's padding to the maximum: useful tokens a second through one training step.

Sample lengths are those of CodeV-R1 (mean 922 tokens, p99 2,553, padded to 3,072; arXiv 2605.25645), a sixth of them
for the tiny model: a log-normal law with that mean and p99, longer samples left out. Both sides run the same compiled
step (forward, backward and AdamW of the whole model, rows of 512), alternately, on their own batches. The useful tokens
of a step are the mean over the whole epoch, so the ratio carries the noise of the clock only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from labkit import models
from labkit.data import masks, packing
from labkit.data.chat import Tokenized
from labkit.data.pipeline import Pipeline
from labkit.models.building import model_class

MEAN, P99, PADDED, SCALE = 922, 2553, 3072, 6


def make_samples(count: int, seed: int) -> list[Tokenized]:
    """Random tokens in samples whose lengths follow CodeV-R1's, scaled down; the second half of each counts."""
    # A log-normal law with median m and width s has mean m exp(s^2 / 2) and p99 m exp(2.326 s).
    s = 2.326 - (2.326**2 - 2 * np.log(P99 / MEAN)) ** 0.5
    rng = np.random.default_rng(seed)
    lengths = (rng.lognormal(np.log(MEAN / SCALE) - s**2 / 2, s, count)).astype(int)
    lengths = lengths[(lengths > 1) & (lengths <= PADDED // SCALE)]
    tokens = (rng.integers(6, 1024, n).astype(np.int32) for n in lengths)
    return [Tokenized(str(i), t, np.arange(len(t)) > len(t) // 2) for i, t in enumerate(tokens)]


def make_step():
    """One jitted training step of the tiny model: batch in, loss out, weights updated in place."""
    spec = models.get("tiny-gemma4")
    model = model_class(spec)(models.config(spec), rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)

    def loss(model, batch):
        mask = masks.attention_mask(batch.segment_ids)
        logits, _ = model(batch.tokens, batch.positions, None, mask)
        nats = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], batch.tokens[:, 1:])
        return jnp.sum(nats * batch.loss_mask[:, 1:]) / jnp.maximum(jnp.sum(batch.loss_mask[:, 1:]), 1)

    @nnx.jit
    def step(model, optimizer, batch):
        value, grads = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, grads)
        return value

    return lambda batch: step(model, optimizer, batch).block_until_ready()


def seconds_a_step(step, batches) -> float:
    """Wall time of one step, the making of its batch included."""
    start = time.perf_counter()
    step(jax.tree.map(jnp.asarray, next(batches)))
    return time.perf_counter() - start


def grain_padding(samples: list[Tokenized], width: int, bins: int) -> float:
    """Padding share that Grain's own packer leaves with as many open rows."""
    source = grain.MapDataset.source([{"tokens": s.tokens} for s in samples]).to_iter_dataset()
    packer = grain.experimental.FirstFitPackIterDataset
    rows = list(packer(source, length_struct={"tokens": width}, num_packing_bins=bins, shuffle_bins=False))
    return 1 - sum(len(s) for s in samples) / (len(rows) * width)


def run(rounds: int, rows: int, count: int, seed: int) -> dict:
    """Both sides, alternately, after one step of warm-up each."""
    samples = make_samples(count, seed)
    width = PADDED // SCALE
    feeds = {k: Pipeline(samples, seq_len=width, batch_size=rows, packing=k, seed=seed) for k in ("pad", "pack")}
    step, batches = make_step(), {k: iter(f) for k, f in feeds.items()}
    for k in feeds:
        seconds_a_step(step, batches[k])
    times: dict[str, list[float]] = {k: [] for k in feeds}
    for i in range(rounds):
        for k in sorted(feeds, reverse=bool(i % 2)):
            times[k].append(seconds_a_step(step, batches[k]))
    useful = {k: f.stats.useful_share * rows * width for k, f in feeds.items()}
    rates = {k: useful[k] / statistics.median(t) for k, t in times.items()}
    buckets = packing.plan([len(s) for s in samples], seq_len=width, batch_size=rows, packing="bucket", seed=seed)
    return {
        "samples": len(samples),
        "mean_tokens": float(np.mean([len(s) for s in samples])),
        "width": width,
        "rows": rows,
        "rounds": rounds,
        "step_seconds": {k: statistics.median(t) for k, t in times.items()},
        "useful_tokens_per_second": rates,
        "padding_share": {k: f.stats.padding_share for k, f in feeds.items()}
        | {"bucket": packing.stats(samples, buckets, "bucket").padding_share}
        | {f"grain first fit, {bins} rows": grain_padding(samples, width, bins) for bins in (16, 64, 300)},
        "ratio": statistics.median(
            (useful["pack"] / a) / (useful["pad"] / b) for a, b in zip(times["pack"], times["pad"], strict=True)
        ),
    }


def main() -> None:
    """Print the ratio, or all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each side")
    parser.add_argument("--rows", type=int, default=4, help="rows of 512 tokens a step")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = run(args.rounds, args.rows, args.samples, args.seed)
    if args.json:
        print(json.dumps(result))
        return
    for side, seconds in result["step_seconds"].items():
        rate = result["useful_tokens_per_second"][side]
        print(f"{side:5} {seconds:.3f} s a step, {rate:,.0f} useful tokens/s")
    for how, share in result["padding_share"].items():
        print(f"padding, {how}: {share:.1%}")
    print(f"packing / padding to the maximum: {result['ratio']:.2f} times the useful tokens a second (target 3)")


if __name__ == "__main__":
    main()
