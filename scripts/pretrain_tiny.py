"""Pretrain a tiny Gemma 4 base model on Verilog and prose, on a CPU; kill it at any time and run it again.

python scripts/pretrain_tiny.py --model data/models/tiny-gemma4 --work runs/pretrain --tokens 6e6

`--model` holds the tokenizer (scripts/make_tokenizer.py). Checkpoints go to `--work`; at the end
`model.safetensors` and `config.json` are written into `--model`.

Nothing in the documents is a question with an answer: the chat markers never occur. In three of four documents that
open with a comment the loss leaves the comment out, so that most of the gradient comes from code. Hidden matrices are
trained by Muon (Jordan et al. 2024), which needs fewer tokens than AdamW; embedding and norms by AdamW. The learning
rate warms up, stays, and falls to zero over the last part ("warm-up, stable, decay": Hu et al. 2024,
arXiv 2404.06395).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, serialization
from jaxtyping import Array, Float
from optax.contrib import MuonDimensionNumbers, muon
from transformers import AutoTokenizer

from labkit import convert, models
from labkit.data.batch import Batch
from labkit.data.chat import Tokenized
from labkit.data.masks import attention_mask
from labkit.data.packing import fill, first_fit_decreasing
from labkit.data.verilog import corpus
from labkit.records import write_atomic

Weights = dict[str, Array]
ROUND = 1000  # documents that are packed together
BATCH, WIDTH = 16, 256
COMMENTS_COUNTED = 4
BATCHES_A_ROUND = 31  # what a round of documents fills at least; the few rows beyond are left out
# How each kernel of Tunix's Gemma 4 maps its input axes to its output axes; axes before these are separate matrices.
MATRICES = {
    "q_einsum.w": MuonDimensionNumbers(1, (0, 2)),
    "kv_einsum.w": MuonDimensionNumbers(2, (1, 3)),
    "k_einsum.w": MuonDimensionNumbers(1, (0, 2)),
    "attn_vec_einsum.w": MuonDimensionNumbers((0, 1), 2),
    "_proj.kernel": MuonDimensionNumbers(0, 1),
}


def sample(tokenizer: Any, text: str, number: int) -> Tokenized:
    """A document's tokens; of its opening comment, only one document in `COMMENTS_COUNTED` counts the tokens."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    code = text.find("\nmodule ") + 1 if text.startswith("//") and number % COMMENTS_COUNTED else 0
    counted = [start >= code for start, _ in encoded["offset_mapping"]]
    return Tokenized("", np.asarray([2, *encoded["input_ids"], 1]), np.asarray([code == 0, *counted, True]))


def batches(tokenizer: Any, seed: int, first: int) -> Iterator[Batch]:
    """Packed batches number `first` and on; each round of documents is drawn from a seed of its own."""
    part, skip = divmod(first, BATCHES_A_ROUND)
    while True:
        documents = islice(corpus(1_000_000 * seed + part), ROUND)
        samples = [s for i, text in enumerate(documents) if len(s := sample(tokenizer, text, i)) <= WIDTH]
        order = np.random.default_rng(part).permutation(len(samples))
        rows = first_fit_decreasing(np.array([len(s) for s in samples]), order, WIDTH, ROUND)
        rows = [rows[i] for i in np.random.default_rng(part).permutation(len(rows))]
        if len(rows) < BATCH * BATCHES_A_ROUND:
            raise RuntimeError(f"round {part} has only {len(rows)} rows")
        for i in range(skip, BATCHES_A_ROUND):
            yield fill(samples, rows[i * BATCH : (i + 1) * BATCH], WIDTH)
        part, skip = part + 1, 0


def initial(spec: models.ModelSpec, seed: int) -> tuple[Any, Weights]:
    """The model's graph and weights as Transformers starts them: matrices N(0, 0.02), norms and scalars one."""
    graph, state = nnx.split(models.abstract(spec))
    rng = np.random.default_rng(seed)
    weights = {}
    for path, variable in nnx.to_flat_state(state):
        shape = variable.shape
        value = rng.normal(0, 0.02, shape) if len(shape) > 1 else np.ones(shape)
        weights[".".join(map(str, path))] = jnp.asarray(value, jnp.float32)
    return graph, weights


def bind(graph: Any, spec: models.ModelSpec, weights: Weights) -> nnx.Module:
    """The model with these weights."""
    state = nnx.state(models.abstract(spec))
    flat = [(path, variable.replace(weights[".".join(map(str, path))])) for path, variable in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(flat))


def optimizer(rate: optax.Schedule) -> optax.GradientTransformation:
    """Muon for the hidden matrices, AdamW at a tenth of its rate for the rest; layer scalars stay as they are."""

    def numbers(weights: Weights) -> dict[str, MuonDimensionNumbers | None]:
        return {name: next((n for end, n in MATRICES.items() if name.endswith(end)), None) for name in weights}

    def fixed(weights: Weights) -> dict[str, str]:
        return {name: "fixed" if name.endswith("skip_scale") else "trained" for name in weights}

    trained = optax.chain(
        optax.clip_by_global_norm(1.0),
        muon(
            rate,
            weight_decay=0.05,
            adam_b2=0.95,
            adam_learning_rate=lambda step: 0.15 * rate(step),
            muon_weight_dimension_numbers=numbers,
        ),
    )
    return optax.partition({"trained": trained, "fixed": optax.set_to_zero()}, fixed)


def loss(model: nnx.Module, batch: Batch) -> Float[Array, ""]:
    """Mean cross-entropy over all tokens of the documents."""
    logits, _ = model(batch.tokens, batch.positions, None, attention_mask(batch.segment_ids))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], batch.tokens[:, 1:])
    counted = batch.loss_mask[:, 1:]
    return jnp.sum(losses * counted) / jnp.sum(counted)


def train(args: argparse.Namespace, spec: models.ModelSpec) -> Weights:
    """All steps, from the newest checkpoint on."""
    total = int(args.tokens / (BATCH * WIDTH))
    falling = int(total * args.decay)
    rate = optax.join_schedules(
        [
            optax.linear_schedule(0, args.learning_rate, 60),
            optax.constant_schedule(args.learning_rate),
            optax.linear_schedule(args.learning_rate, 0, falling),
        ],
        [60, total - falling],
    )
    graph, weights = initial(spec, args.seed)
    tx = optimizer(rate)
    state = {"weights": weights, "opt": tx.init(weights), "step": 0}
    saved = args.work / "checkpoint.msgpack"
    if saved.exists():
        state = serialization.from_bytes(state, saved.read_bytes())
        print(f"going on at step {state['step']} of {total}", file=sys.stderr)

    @jax.jit
    def step(weights: Weights, opt: Any, batch: Batch) -> tuple[Weights, Any, Array]:
        value, grads = jax.value_and_grad(lambda w: loss(bind(graph, spec, w), batch))(weights)
        updates, opt = tx.update(grads, opt, weights)
        return optax.apply_updates(weights, updates), opt, value

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    begun, first = time.monotonic(), int(state["step"])
    for number, batch in enumerate(batches(tokenizer, args.seed, first), start=first + 1):
        if number > total:
            break
        state["weights"], state["opt"], value = step(state["weights"], state["opt"], batch)
        state["step"] = number
        if number % 20 == 0:
            pace = (number - first) * BATCH * WIDTH / (time.monotonic() - begun)
            line = {"step": number, "loss": round(float(value), 4), "slots_per_second": round(pace)}
            with (args.work / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(f"step {number}/{total} loss {line['loss']:.3f} {pace:.0f} slots/s", file=sys.stderr, flush=True)
        if number % args.save_every == 0 or number == total:
            write_atomic(saved, serialization.to_bytes(jax.device_get(state)))
    return state["weights"]


def main() -> None:
    """Train, then export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", default="tiny-gemma4", help="registry name of the shape")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokens", type=float, default=6e6, help="slots of all batches, padding included")
    parser.add_argument("--decay", type=float, default=0.3, help="last share of the steps in which the rate falls")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    spec = models.get(args.name)
    export(train(args, spec), spec, args)


def export(weights: Weights, spec: models.ModelSpec, args: argparse.Namespace) -> None:
    """Put weights and configuration beside the tokenizer in `--model`."""
    graph, _ = nnx.split(models.abstract(spec))
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        source.mkdir()
        write_atomic(source / "config.json", json.dumps(hf_config(spec), indent=2))
        done = convert.to_hf(bind(graph, spec, weights), out, spec=spec, files=source)
        for name in ("model.safetensors", "config.json", "provenance.json"):
            os.replace(out / name, args.model / name)
    print(done, file=sys.stderr)


def hf_config(spec: models.ModelSpec) -> dict[str, Any]:
    """Transformers' `config.json` of a Gemma 4 text model."""
    kinds = {"local": "sliding_attention", "global": "full_attention"}
    rope = {"partial_rotary_factor": spec.rope_proportion, "rope_theta": spec.rope_theta, "rope_type": "proportional"}
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "float32",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.embed_dim,
        "intermediate_size": spec.hidden_dim,
        "num_hidden_layers": spec.num_layers,
        "layer_types": [kinds[kind] for kind in spec.layer_types],
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "num_global_key_value_heads": spec.num_global_kv_heads,
        "global_head_dim": spec.global_head_dim,
        "attention_k_eq_v": spec.k_eq_v,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": spec.sliding_window,
        "final_logit_softcapping": spec.final_logit_softcap,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": spec.vocab_size,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "use_bidirectional_attention": None,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.norm_eps,
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_theta": spec.local_rope_theta, "rope_type": "default"},
        },
        "tie_word_embeddings": spec.tied_embeddings,
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "use_cache": True,
    }


if __name__ == "__main__":
    main()
