"""Packing, masks and the pipeline: a packed sample is worth what it is worth alone, and no batch is lost or doubled."""

import itertools
import json
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import models
from labkit.data import masks, packing
from labkit.data.chat import Tokenized
from labkit.data.examples import Example
from labkit.data.pipeline import Pipeline, pipeline
from labkit.errors import LabError

SEQ_LEN, WINDOW = 48, 8


def make_samples(lengths, seed=0):
    """Samples of random tokens, about half of which count."""
    rng = np.random.default_rng(seed)
    return [
        Tokenized(str(i), rng.integers(6, 1024, n).astype(np.int32), np.r_[False, rng.random(n - 1) < 0.5])
        for i, n in enumerate(lengths)
    ]


def unpacked(batch):
    """The samples in a batch as (tokens, loss mask), cut out by segment."""
    rows = zip(batch.tokens, batch.loss_mask, batch.positions, batch.segment_ids, strict=True)
    for tokens, mask, positions, segments in rows:
        for segment in range(1, segments.max() + 1):
            (place,) = np.nonzero(segments == segment)
            assert np.all(np.diff(place) == 1), "a sample is in one piece"
            np.testing.assert_array_equal(positions[place], np.arange(len(place)))
            yield tuple(tokens[place].tolist()), tuple(mask[place].tolist())


def contents(samples):
    return Counter((tuple(s.tokens.tolist()), tuple(s.loss_mask.tolist())) for s in samples)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


lengths_lists = st.lists(st.integers(1, SEQ_LEN), min_size=1, max_size=15)
packings = st.sampled_from(["pack", "bucket", "pad"])
cases = settings(max_examples=15, deadline=None)


# Packing


@cases
@given(lengths_lists, packings, st.integers(1, 5), st.integers(0, 3), st.integers(1, 50))
def test_an_epoch_holds_every_token_exactly_once(lengths, kind, batch_size, seed, window):
    samples = make_samples(lengths)
    feed = Pipeline(
        samples,
        seq_len=SEQ_LEN,
        batch_size=batch_size,
        seed=seed,
        packing=kind,
        window=window,
        epochs=1,
        widths=(5, 20),
    )
    batches = list(feed)
    assert len(batches) == len(feed) == feed.batches_per_epoch
    assert sum((Counter(unpacked(b)) for b in batches), Counter()) == contents(samples)
    for b in batches:
        padding = b.segment_ids == 0
        assert not b.tokens[padding].any() and not b.loss_mask[padding].any() and not b.positions[padding].any()
        assert not b.loss_mask[b.positions == 0].any() and b.tokens.shape[0] == batch_size
        assert b.tokens.dtype == b.positions.dtype == b.segment_ids.dtype == np.int32
        assert b.tokens.shape[1] in ({5, 20, SEQ_LEN} if kind == "bucket" else {SEQ_LEN})
    assert feed.stats.useful_tokens == sum(lengths) == sum((b.segment_ids > 0).sum() for b in batches)
    assert feed.stats.loss_tokens == sum(b.loss_mask.sum() for b in batches)
    assert feed.stats.slots == sum(b.tokens.size for b in batches)


def test_rows_by_hand():
    """Two samples whose every token would count, then padding: the first token of each is no target."""
    samples = [Tokenized(str(n), np.arange(10, 10 + n, dtype=np.int32), np.ones(n, bool)) for n in (2, 3)]
    batch = packing.fill(samples, [[1, 0], []], 6)
    assert batch.tokens.tolist() == [[10, 11, 12, 10, 11, 0], [0] * 6]
    assert batch.loss_mask.astype(int).tolist() == [[0, 1, 1, 0, 1, 0], [0] * 6]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0] * 6]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 2, 2, 0], [0] * 6]


def slow_first_fit_decreasing(lengths, capacity):
    rows = []
    for length in sorted(lengths, reverse=True):
        for row in rows:
            if sum(row) + length <= capacity:
                row.append(length)
                break
        else:
            rows.append([length])
    return rows


@cases
@given(lengths_lists, st.integers(0, 5))
def test_packing_is_first_fit_decreasing(lengths, seed):
    plan = packing.plan(lengths, seq_len=SEQ_LEN, batch_size=1, seed=seed, window=len(lengths))
    assert [[lengths[i] for i in row] for row in plan.rows] == slow_first_fit_decreasing(lengths, SEQ_LEN)


def test_windows_keep_rows_to_their_part_of_the_order():
    plan = packing.plan([10] * 100, seq_len=100, batch_size=1, seed=1, window=10)
    order = np.random.default_rng(1).permutation(100)
    assert [set(row) for row in plan.rows] == [set(part) for part in order.reshape(10, 10).tolist()]


def test_shares_on_lengths_like_codev():
    """Golden: padding to the maximum wastes two thirds, packing a few per cent (mean 154, p99 426, cut at 512)."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(136.4), 0.489, 4000), 8, 512).astype(int)
    samples = make_samples(lengths)
    shares = {}
    for kind in ("pad", "bucket", "pack"):
        plan = packing.plan(lengths, seq_len=512, batch_size=8, packing=kind)
        shares[kind] = packing.stats(samples, plan, kind).padding_share
    assert 0.65 < shares["pad"] < 0.75 and 0.2 < shares["bucket"] < 0.35 and shares["pack"] < 0.02


# Order, epochs, shards, resume


@cases
@given(lengths_lists, packings, st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_same_seed_same_batches_whether_prefetched_or_not(lengths, kind, batch_size, seed, prefetch):
    options = {"seq_len": SEQ_LEN, "batch_size": batch_size, "seed": seed, "packing": kind, "epochs": 2}
    one, two = (Pipeline(make_samples(lengths), **options, prefetch=p) for p in (0, prefetch))
    assert one.fingerprint == two.fingerprint
    assert all(same(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("kind", ["pack", "bucket", "pad"])
def test_each_epoch_has_its_own_order_and_other_seeds_too(kind):
    samples = make_samples([5 + i % 40 for i in range(120)])
    options = {"seq_len": SEQ_LEN, "batch_size": 4, "packing": kind}
    feed = Pipeline(samples, **options)
    n = feed.batches_per_epoch
    batches = list(itertools.islice(feed, 3 * n))
    epochs = [batches[i * n : (i + 1) * n] for i in range(3)]
    assert all(sum((Counter(unpacked(b)) for b in e), Counter()) == contents(samples) for e in epochs)
    for a, b in itertools.combinations([*epochs, list(itertools.islice(Pipeline(samples, **options, seed=1), n))], 2):
        assert sum(same(x, y) for x, y in zip(a, b, strict=True)) < n / 2
    with pytest.raises(LabError, match="never ends"):
        len(feed)


@cases
@given(lengths_lists, packings, st.sampled_from([1, 2, 3]), st.integers(1, 2), st.integers(0, 3))
def test_union_of_shards_is_the_whole_batch(lengths, kind, count, per_shard, seed):
    samples = make_samples(lengths)
    options = {"seq_len": SEQ_LEN, "batch_size": count * per_shard, "seed": seed, "packing": kind, "epochs": 2}
    whole = Pipeline(samples, **options)
    shards = [Pipeline(samples, **options, shard=(i, count)) for i in range(count)]
    for batch, *parts in zip(whole, *shards, strict=True):
        assert all(p.tokens.shape == (per_shard, batch.tokens.shape[1]) for p in parts)
        rows = jax.tree.map(lambda *xs: np.stack(xs, axis=1).reshape(-1, xs[0].shape[1]), *parts)
        assert same(rows, batch)


@cases
@given(lengths_lists, packings, st.data(), st.sampled_from([0, 2]))
def test_resuming_anywhere_equals_going_on(lengths, kind, data, prefetch):
    feed = Pipeline(
        make_samples(lengths), seq_len=SEQ_LEN, batch_size=2, packing=kind, window=7, epochs=3, prefetch=prefetch
    )
    unbroken = list(feed)
    cut = data.draw(st.integers(0, len(unbroken)))
    first = iter(feed)
    for _ in range(cut):
        next(first)
    state = json.loads(json.dumps(first.get_state()))
    again = iter(Pipeline(make_samples(lengths), seq_len=SEQ_LEN, batch_size=2, packing=kind, window=7, epochs=3))
    again.set_state(state)
    rest = list(again)
    assert len(rest) == len(unbroken) - cut
    assert all(same(a, b) for a, b in zip(rest, unbroken[cut:], strict=True))


def test_resuming_through_grains_own_checkpoint_handler(tmp_path):
    import grain.checkpoint
    import orbax.checkpoint as ocp

    feed = Pipeline(make_samples([9] * 30), seq_len=SEQ_LEN, batch_size=1)
    first, second = iter(feed), iter(feed)
    for _ in range(7):
        next(first)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(first)))
        manager.wait_until_finished()
        manager.restore(0, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(second)))
    assert same(next(first), next(second))


def test_another_number_of_processes_goes_on_where_the_first_stopped():
    samples = make_samples([9] * 50)
    options = {"seq_len": SEQ_LEN, "batch_size": 4}
    alone, half = iter(Pipeline(samples, **options)), iter(Pipeline(samples, **options, shard=(1, 2)))
    for _ in range(2):
        next(alone)
    half.set_state(alone.get_state())
    np.testing.assert_array_equal(next(half).tokens, next(alone).tokens[1::2])


def test_state_of_other_data_is_refused():
    samples = make_samples([9] * 50)
    options = {"seq_len": SEQ_LEN, "batch_size": 4, "seed": 0, "packing": "pack"}
    state = iter(Pipeline(samples, **options)).get_state()
    others = [{"seed": 1}, {"batch_size": 2}, {"packing": "pad"}, {"seq_len": 20}]
    feeds = [Pipeline(samples, **(options | o)) for o in others] + [Pipeline(make_samples([9] * 50, seed=1), **options)]
    for feed in feeds:
        with pytest.raises(LabError, match="other data"):
            iter(feed).set_state(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 3, "shard": (0, 2)}, "multiple of 2"),
        ({"batch_size": 0}, "cannot be shared"),
        ({"shard": (2, 2)}, "index below count"),
        ({"seed": -1}, "32-bit"),
        ({"epochs": 0}, "less than one"),
        ({"packing": "packed"}, "pack"),
        ({"seq_len": 8}, "1 to 8 tokens"),
        ({"window": 0}, "window"),
    ],
)
def test_settings_that_are_not_possible(options, message):
    with pytest.raises(LabError, match=message):
        Pipeline(make_samples([9]), **{"seq_len": SEQ_LEN, "batch_size": 2, **options})


def test_from_conversations_to_batches(tmp_path):
    tokenizer = tokenizer_in(tmp_path)
    examples = [Example.of("q" * i, "<think>x</think>\na", id=str(i)) for i in range(1, 60)]
    feed = pipeline(examples, tokenizer, seq_len=40, batch_size=2, epochs=1, reasoning="strip")
    assert feed.report.kept + len(feed.report.too_long) == 59 and feed.report.too_long
    samples = [s for b in feed for s in unpacked(b)]
    assert len(samples) == feed.report.kept
    for tokens, mask in samples:
        assert tokenizer.decode([t for t, counts in zip(tokens, mask, strict=True) if counts]) == "a<turn|>"
    assert "padding" in str(feed.stats) and repr(feed).startswith("Pipeline(pack: ")


# Masks


def test_attention_mask_by_hand():
    mask = masks.attention_mask(jnp.array([[1, 1, 2, 2, 2, 0]]))
    rows = ["x.....", "xx....", "..x...", "..xx..", "..xxx.", "......"]
    assert mask.dtype == bool and mask.tolist() == [[[c == "x" for c in row] for row in rows]]


@cases
@given(lengths_lists, st.integers(1, 60))
def test_masks_by_definition(lengths, window):
    """Same sample and not later; in a local layer also less than `window` positions back."""
    samples = make_samples(lengths)
    plan = packing.plan(lengths, seq_len=SEQ_LEN, batch_size=1)
    batch = packing.fill(samples, plan.rows[:2], SEQ_LEN)
    whole = np.asarray(masks.attention_mask(jnp.asarray(batch.segment_ids)))
    local = np.asarray(masks.local_mask(jnp.asarray(whole), window))
    back = batch.positions[:, :, None] - batch.positions[:, None, :]
    together = (batch.segment_ids[:, :, None] == batch.segment_ids[:, None, :]) & (batch.segment_ids[:, :, None] > 0)
    np.testing.assert_array_equal(whole, together & (back >= 0))
    np.testing.assert_array_equal(local, together & (back >= 0) & (back < window))


# Through a real model with local and global layers


def tokenizer_in(folder):
    from transformers import AutoTokenizer

    tiny.write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def load(folder, **overrides):
    shape = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": WINDOW,
    }
    return models.load(tiny.make_tiny_gemma4(folder, std=0.3, **(shape | overrides))).model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(tmp_path_factory.mktemp("model"))


@nnx.jit
def nats(model, batch, mask):
    """The loss of every token, [B, T]; 0 where a sample starts."""
    logits, _ = model(batch.tokens, batch.positions, None, mask)
    log_p = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    loss = -jnp.take_along_axis(log_p, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.where(batch.positions > 0, jnp.pad(loss, ((0, 0), (1, 0))), 0.0)


def packed_and_alone(model, lengths, mask_of):
    """Per-token losses of the same samples packed in rows, and each in a row of its own."""
    samples = make_samples(lengths)
    plan = packing.plan(lengths, seq_len=SEQ_LEN, batch_size=4)
    packed = packing.fill(samples, plan.rows[:4], SEQ_LEN)
    members = [i for row in plan.rows[:4] for i in row]
    alone = packing.fill(samples, [*([i] for i in members), *[[]] * (16 - len(members))], SEQ_LEN)
    together = nats(model, packed, mask_of(jnp.asarray(packed.segment_ids)))
    apart = nats(model, alone, masks.attention_mask(jnp.asarray(alone.segment_ids)))
    return np.asarray(together)[packed.segment_ids > 0], np.asarray(apart)[alone.segment_ids > 0]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(2, SEQ_LEN), min_size=1, max_size=16))
def test_packed_sample_has_the_loss_it_has_alone(model, lengths):
    together, apart = packed_and_alone(model, lengths, masks.attention_mask)
    np.testing.assert_allclose(together, apart, atol=1e-4, rtol=1e-5)
    assert apart.max() > 3, "the model's losses are not trivial"


def test_without_the_block_diagonal_mask_packing_changes_the_loss(model):
    def causal_only(segments):
        return masks.attention_mask(jnp.ones_like(segments))

    together, apart = packed_and_alone(model, [12] * 16, causal_only)
    assert np.abs(together - apart).max() > 0.1


def test_local_layers_of_the_model_use_the_local_mask(model, tmp_path):
    """A layer with a window is the same layer without one under `local_mask`, and its window matters."""
    wide = load(tmp_path, sliding_window=1000)
    batch = packing.fill(make_samples([30, 15, 40]), [[0, 1], [2]], SEQ_LEN)
    mask = masks.attention_mask(jnp.asarray(batch.segment_ids))
    x = jax.random.normal(jax.random.key(0), (2, SEQ_LEN, 48))

    @nnx.jit
    def first_layer(of, mask):
        return of.layers[0](x, batch.positions, None, mask)[1]

    def layer(of, mask):
        return np.asarray(first_layer(of, mask))[batch.segment_ids > 0]

    windowed = layer(model, mask)
    np.testing.assert_allclose(windowed, layer(wide, masks.local_mask(mask, WINDOW)), atol=1e-5)
    for other in (WINDOW - 1, WINDOW + 1):
        assert np.abs(windowed - layer(wide, masks.local_mask(mask, other))).max() > 1e-3


def test_gradient_of_packed_samples_is_the_one_apart(model):
    """And rows without a sample, which attend to nothing, leave it finite."""
    samples = make_samples([20, 25])
    graph, weights = nnx.split(model)

    @jax.jit
    @jax.value_and_grad
    def mean_loss(weights, batch):
        loss = nats(nnx.merge(graph, weights), batch, masks.attention_mask(batch.segment_ids))
        return jnp.sum(loss * batch.loss_mask) / jnp.sum(batch.loss_mask)

    together, apart = (mean_loss(weights, packing.fill(samples, rows, SEQ_LEN)) for rows in ([[0, 1], []], [[0], [1]]))
    np.testing.assert_allclose(together[0], apart[0], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(together[1]), jax.tree.leaves(apart[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-3)


def test_flash_attention_of_gemma_4_is_refused(model):
    masks.require_mask(model.config)
    assert model.config.use_flash_attention is False
    with pytest.raises(LabError, match="ignores the attention mask"):
        masks.require_mask(SimpleNamespace(use_flash_attention=True))
