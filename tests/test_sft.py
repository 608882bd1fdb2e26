"""What `labkit.sft` promises: an exact loss, the same update however the batch is cut, and resuming bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import lora, models, sft
from labkit.data.batch import Batch
from labkit.data.chat import Tokenized
from labkit.data.masks import attention_mask
from labkit.data.packing import fill
from labkit.errors import LabError
from labkit.sft import metrics
from labkit.sft.trainer import gradient, schedule
from tests.tiny import make_tiny_gemma4

SHAPE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "sliding_window": 8, "vocab_size": 1024}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return make_tiny_gemma4(tmp_path_factory.mktemp("tiny"), **SHAPE)


@pytest.fixture(scope="module")
def adapted(directory) -> nnx.Module:
    """A model with adapters whose B is not zero, so that all of them have gradients."""
    model, _ = lora.inject(models.load(directory).model, 2, 4.0)
    state = lora.state(model)
    rng = np.random.default_rng(0)
    nnx.update(model, jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype), state))
    return model


def samples(count: int, seed: int = 0, longest: int = 14) -> list[Tokenized]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        size = int(rng.integers(4, longest))
        counted = rng.random(size) < 0.6
        counted[0], counted[-1] = False, True
        made.append(Tokenized(str(i), rng.integers(6, 1024, size).astype(np.int32), counted))
    return made


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 10),
    st.sampled_from([0.0, 5.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_chunked_loss_and_gradient_equal_the_plain_ones(rows, length, chunk, softcap, train_head, seed):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(rows, length, 6)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(11, 6)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 11, (rows, length)))
    counted = jnp.asarray(rng.random((rows, length)) < 0.7)

    def mean(function, **options):
        def loss(h, w):
            found = function(h, sft.Head(w, softcap), targets, counted, **options)
            return found.loss * 0.37, found

        return jax.value_and_grad(loss, argnums=(0, 1) if train_head else (0,), has_aux=True)(hidden, weight)

    (_, plain), plain_grads = mean(sft.plain_cross_entropy)
    (_, chunked), grads = mean(sft.chunked_cross_entropy, chunk=chunk, train_head=train_head)
    np.testing.assert_allclose(chunked, plain, rtol=1e-5, atol=1e-5)
    for a, b in zip(grads, plain_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_hidden_states_give_the_models_own_logits(adapted):
    batch = fill(samples(4), [(0, 1), (2, 3)], 32)
    expected, _ = adapted(batch.tokens, batch.positions, None, attention_mask(batch.segment_ids))
    found = nnx.jit(lambda m, b: sft.losses.logits_of(sft.hidden_states(m, b), sft.losses.head(m)))(adapted, batch)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_update_does_not_depend_on_packing_or_accumulation(adapted):
    some = samples(8)
    packed = fill(some, [(0, 1), (2, 3), (4, 5), (6, 7)], 32)
    alone = fill(some, [(i,) for i in range(8)], 16)
    reference = None
    for batch, parts in ((packed, 1), (packed, 2), (packed, 4), (alone, 1), (alone, 8)):
        recipe = sft.Recipe(batch_size=8, accumulation=parts)
        total, grads = nnx.jit(lambda m, b, r=recipe: gradient(m, b, r, nnx.LoRAParam))(adapted, batch)
        assert int(total.tokens) == sum(int(s.loss_mask.sum()) for s in some)
        found = [np.asarray(total.loss / total.tokens), *map(np.asarray, jax.tree.leaves(grads))]
        reference = reference or found
        for a, b in zip(found, reference, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


SMALL = {"num_layers": 2, "embed_dim": 16, "hidden_dim": 24, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
KINDS = {"gemma3-270m": "local", "qwen3-0.6b": "global", "llama3.2-1b": "global"}


@pytest.mark.parametrize("name", ["tiny", *KINDS])
def test_remat_changes_neither_loss_nor_gradient(name, adapted):
    model = adapted
    if name in KINDS:
        shape = SMALL | {"vocab_size": 1024, "layer_types": (KINDS[name],) * 2}
        spec = dataclasses.replace(models.get(name), **shape)
        made = models.building.model_class(spec)(models.config(spec), rngs=nnx.Rngs(0))
        model, _ = lora.inject(made, 2, 4.0)
    batch = fill(samples(2), [(0,), (1,)], 16)
    found = []
    for remat in (None, "block", "decoder"):
        lora.set_remat(model, remat)
        step = nnx.jit(lambda m, b: gradient(m, b, sft.Recipe(), nnx.LoRAParam))  # traced anew for each setting
        found.append(jax.tree.leaves(step(model, batch)))
    lora.set_remat(model, None)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_equal_weights_for_parts_would_be_wrong(adapted):
    """The control: the mean of the parts' means, which optax.MultiSteps makes, is another number."""
    some = samples(8)
    parts = [fill(some, [(i,)], 16) for i in range(8)]
    scores = [sft.score(adapted, [part]) for part in parts]
    whole = sft.score(adapted, parts)
    assert whole.tokens == sum(s.tokens for s in scores)
    assert whole.loss == pytest.approx(sum(s.loss * s.tokens for s in scores) / whole.tokens, rel=1e-5)
    assert abs(np.mean([s.loss for s in scores]) - whole.loss) > 1e-4


RUN = """
import sys
from labkit import lora, models, sft
from tests.test_sft import Feed, RECIPE
model, _ = lora.inject(models.load(sys.argv[1]).model, 2, 4.0)
result = sft.train(model, Feed(), RECIPE, out=sys.argv[2])
import jax, numpy as np
np.savez(sys.argv[3], *jax.tree.leaves(lora.state(model)))
"""
RECIPE = sft.Recipe(steps=8, batch_size=2, seq_len=16, save_every=3, warmup=2, learning_rate=1e-2, packing="pad")


class Feed:
    """Batches drawn from a counter, with a state as the pipeline has."""

    fingerprint = "counter"

    def __iter__(self):
        return _Counter()


class _Counter:
    def __init__(self) -> None:
        self.place = 0

    def __next__(self) -> Batch:
        self.place += 1
        return fill(samples(2, seed=self.place), [(0,), (1,)], 16)

    def get_state(self) -> dict:
        return {"place": self.place}

    def set_state(self, state: dict) -> None:
        self.place = state["place"]


def run(directory: Path, out: Path, fault: str = "") -> int:
    root = Path(__file__).resolve().parents[1]
    env = os.environ | {"LABKIT_FAULT": fault, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", RUN, str(directory), str(out), str(out) + ".npz"]
    return subprocess.run(command, env=env, cwd=root, capture_output=True).returncode


FAULTS = ["saving:1", "metrics:2", "step:5"]
MORE_FAULTS = ["saving:2", "saving:3", "metrics:1", "metrics:3", "step:1", "step:3", "step:7", "saving:1,again"]


def killed_and_resumed_equals_unbroken(directory: Path, tmp_path: Path, fault: str) -> None:
    assert run(directory, tmp_path / "whole") == 0
    point, _, again = fault.partition(",")
    assert run(directory, tmp_path / "cut", point) == -signal.SIGKILL
    if again:
        assert run(directory, tmp_path / "cut", "step:2") == -signal.SIGKILL
    assert run(directory, tmp_path / "cut") == 0
    whole, cut = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "cut"))
    assert all(np.array_equal(whole[k], cut[k]) for k in whole.files)
    rows = [metrics.read(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut")]
    assert [(r.step, r.loss) for r in rows[0]] == [(r.step, r.loss) for r in rows[1]]
    assert [r.step for r in rows[1]] == list(range(1, RECIPE.steps + 1))


def test_a_killed_run_goes_on_bit_for_bit(directory, tmp_path):
    killed_and_resumed_equals_unbroken(directory, tmp_path, "metrics:2")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS + MORE_FAULTS)
def test_kill_matrix(directory, tmp_path, fault):
    killed_and_resumed_equals_unbroken(directory, tmp_path, fault)


def fresh(directory: Path) -> nnx.Module:
    return lora.inject(models.load(directory).model, 2, 4.0)[0]


def test_folders_of_others_are_refused(directory, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("mine")
    with pytest.raises(LabError, match="did not put there"):
        sft.train(fresh(directory), Feed(), RECIPE, out=tmp_path / "theirs")
    assert [p.name for p in (tmp_path / "theirs").iterdir()] == ["thesis.txt"]
    short = RECIPE.replace(steps=1)
    sft.train(fresh(directory), Feed(), short, out=tmp_path / "ours")
    with pytest.raises(LabError, match="differs in learning_rate"):
        sft.train(fresh(directory), Feed(), short.replace(learning_rate=0.5), out=tmp_path / "ours")


def test_a_loss_that_is_not_a_number_stops_with_advice(directory, tmp_path):
    wild = RECIPE.replace(learning_rate=1e30, clip=0.0, warmup=0)
    with pytest.raises(LabError, match="Step") as caught:
        sft.train(fresh(directory), Feed(), wild, out=tmp_path / "wild")
    assert "learning_rate" in caught.value.hint


def test_divergence_is_told_from_noise():
    def row(step, loss):
        return metrics.StepMetrics(step, loss, 0.0, 1, 1, 1, 1.0, 1e-3, 1.0)

    rng = np.random.default_rng(0)
    watch = metrics.Watch([row(i, 1.0 + rng.normal(0, 0.3)) for i in range(200)])
    with pytest.raises(LabError, match="diverges"):
        for i in range(200, 230):
            watch.see(row(i, 1.0 + 0.5 * (i - 200)))


def test_training_lowers_the_loss_and_full_tuning_is_the_same_call(directory, tmp_path):
    model = models.load(directory).model
    recipe = RECIPE.replace(tuning="full", steps=8, learning_rate=3e-3)
    before = sft.score(model, [next(iter(Feed()))])
    result = sft.train(model, Feed(), recipe, out=tmp_path / "full")
    assert sft.score(model, [next(iter(Feed()))]).loss < before.loss
    assert result.steps == 8 and len(result.curve()) == 8
    assert sft.TrainResult.from_json(result.to_json()) == result
    assert result.trained_parameters == sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_a_sweep_leaves_out_what_diverges_and_says_so(directory, tmp_path):
    short = RECIPE.replace(steps=2, clip=0.0, warmup=0)
    with pytest.warns(UserWarning, match=r"1e\+30 is left out. Step"):
        found = sft.sweep(lambda: fresh(directory), Feed(), short, [1e-3, 1e30], out=tmp_path)
    assert [result.recipe.learning_rate for result in found] == [1e-3]
    with pytest.raises(LabError, match="holds another run") as caught:  # no divergence: not left out
        sft.sweep(lambda: fresh(directory), Feed(), short.replace(rank=7), [1e-3], out=tmp_path)
    assert not isinstance(caught.value, sft.Diverged)


def test_data_that_end_early_are_an_error(directory, tmp_path):
    class Short(Feed):
        def __iter__(self):
            counter = _Counter()
            counter.__class__ = type("Two", (_Counter,), {"__next__": lambda s: self.next(s)})
            return counter

        def next(self, counter):
            if counter.place >= 2:
                raise StopIteration
            return _Counter.__next__(counter)

    with pytest.raises(LabError, match="ended after 2 of 8"):
        sft.train(fresh(directory), Short(), RECIPE, out=tmp_path / "short")


def test_the_schedule_warms_up_and_falls():
    rate = schedule(sft.Recipe(steps=100, warmup=10, learning_rate=1.0, end_rate=0.1))
    values = [float(rate(i)) for i in range(101)]
    assert values[0] == pytest.approx(0.1) and max(values) == pytest.approx(1.0) and values[100] == pytest.approx(0.1)
    assert np.argmax(values) == 10


def test_recipes_go_to_toml_and_back(tmp_path):
    recipe = sft.Recipe(rank=4, targets="q,kv", qlora="nf4", learning_rate=1e-4)
    recipe.save_toml(tmp_path / "r.toml")
    assert sft.Recipe.from_toml(tmp_path / "r.toml") == recipe
    assert sft.Recipe.from_toml(tmp_path / "r.toml", rank=8).rank == 8
    (tmp_path / "bad.toml").write_text("learnign_rate = 1.0\n")
    with pytest.raises(LabError, match="learnign_rate") as caught:
        sft.Recipe.from_toml(tmp_path / "bad.toml")
    assert "learning_rate" in caught.value.hint
    (tmp_path / "broken.toml").write_text("rank = \n")
    with pytest.raises(LabError, match="not a TOML file"):
        sft.Recipe.from_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("learning_rate", -1.0),
        ("schedule", "exp"),
        ("packing", "packed"),
        ("warmup", -1),
        ("accumulation", 3),
    ],
)
def test_impossible_recipes_are_refused(field, value):
    with pytest.raises(LabError, match=field if field != "accumulation" else "does not divide"):
        sft.Recipe(**{field: value})


def test_compare_lists_every_difference():
    a = sft.Recipe()
    found = sft.compare(a, a.replace(rank=4, packing="pad"))
    assert {d.field: (d.a, d.b) for d in found.differences} == {"rank": (16, 4), "packing": ("pack", "pad")}
    papers = sft.compare(sft.published("gemma4-31b-tpu"), sft.published("gemma4-31b-gpu"))
    assert {"steps", "loss", "clip", "evaluated_by"} <= {d.field for d in papers.differences}
    assert json.loads(papers.to_json())["differences"]
    with pytest.raises(LabError, match="no published recipe"):
        sft.published("gemma")
