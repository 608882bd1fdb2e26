"""LoRA that cannot fail silently: what is adapted, that nothing changes at first, merging, and analytic sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from labkit import lora, models
from labkit.errors import LabError
from tests.tiny import make_tiny_gemma4

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
PUBLISHED = ".*q_einsum|.*kv_einsum|.*attn_vec_einsum|.*gate_proj|.*down_proj|.*up_proj"  # arXiv:2605.25645


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return models.load(make_tiny_gemma4(tmp_path_factory.mktemp("tiny"), std=0.2, **SHAPE)).model


def logits(model):
    tokens = np.arange(2 * 12).reshape(2, 12) % 1000
    mask = np.tile(np.tril(np.ones((12, 12), bool)), (2, 1, 1))
    return np.asarray(nnx.jit(lambda m: m(tokens, np.tile(np.arange(12), (2, 1)), None, mask)[0])(model))


def disturb(model, scale=0.1):
    rng = np.random.default_rng(0)
    nnx.update(model, jax.tree.map(lambda x: jnp.asarray(rng.normal(0, scale, x.shape), x.dtype), lora.state(model)))


def test_nothing_changes_at_first_and_the_base_stays(base):
    before = logits(base)
    adapted, coverage = lora.inject(base, 4, 8.0)
    assert np.array_equal(logits(adapted), before) and np.array_equal(logits(base), before)
    assert not lora.is_injected(base) and lora.is_injected(adapted)
    assert all(row.adapted for row in coverage.rows) and not coverage.missed
    kinds = {row.path.split("/")[-1] for row in coverage.rows}
    assert {"kv_einsum", "k_einsum"} <= kinds


def test_coverage_counts_what_is_there(base):
    adapted, coverage = lora.inject(base, 4, 8.0)
    assert coverage.parameters == sum(x.size for x in jax.tree.leaves(lora.state(adapted)))
    assert lora.Coverage.from_json(coverage.to_json()) == coverage


@pytest.mark.parametrize(
    ("targets", "kinds"),
    [
        ("attention", {"q_einsum", "kv_einsum", "k_einsum", "attn_vec_einsum"}),
        ("kv", {"kv_einsum", "k_einsum"}),
        ("q, o", {"q_einsum", "attn_vec_einsum"}),
        ("mlp", {"gate_proj", "up_proj", "down_proj"}),
        (".*down_proj", {"down_proj"}),
    ],
)
def test_roles_mean_every_layer(base, targets, kinds):
    chosen = lora.select(lora.linears(base), targets)
    assert {linear.path.split("/")[-1] for linear in chosen} == kinds
    assert {linear.layer for linear in chosen} == {0, 1, 2}


def test_the_published_pattern_misses_the_global_layers(base):
    with pytest.warns(UserWarning, match="k_einsum"):
        _, coverage = lora.inject(base, 4, 8.0, PUBLISHED)
    assert coverage.missed == ("layers/2/attn/k_einsum",)
    with pytest.raises(LabError, match="k_einsum"):
        lora.inject(base, 4, 8.0, PUBLISHED, strict=True)


@pytest.mark.parametrize(
    ("targets", "message"), [("attn", "attn"), (".*nothing", "nothing"), ("", "target"), ("(", r"\(")]
)
def test_targets_that_match_nothing_are_errors(base, targets, message):
    with pytest.raises(LabError, match=message):
        lora.inject(base, 4, 8.0, targets)


def test_remat_does_not_swallow_the_injection(base):
    lora.set_remat(base, "decoder")
    try:
        adapted, coverage = lora.inject(base, 4, 8.0)
    finally:
        lora.set_remat(base, None)
    assert len(jax.tree.leaves(lora.state(adapted))) == 2 * len(coverage.rows)


def test_merge_adds_the_product_and_split_takes_it_off(base):
    adapted, _ = lora.inject(base, 4, 8.0)
    disturb(adapted)
    changed, plain = logits(adapted), logits(base)
    assert np.abs(changed - plain).max() > 0.1
    np.testing.assert_allclose(logits(lora.merge(adapted)), changed, atol=2e-4)
    rest, adapters = lora.split(adapted)
    assert np.array_equal(logits(rest), plain) and len(jax.tree.leaves(adapters)) > 10
    assert not lora.is_injected(lora.merge(adapted))


def test_a_wrong_scale_would_be_seen(base):
    """The control of the merge test: alpha / rank forgotten gives other logits."""
    adapted, _ = lora.inject(base, 4, 8.0)
    disturb(adapted)
    unscaled, _ = lora.inject(base, 4, 4.0)
    nnx.update(unscaled, lora.state(adapted))
    assert np.abs(logits(lora.merge(unscaled)) - logits(adapted)).max() > 0.05


def test_qlora_stores_four_bits_and_stays_near(base):
    adapted, _ = lora.inject(base, 4, 8.0, qlora="nf4")
    gap = np.abs(logits(adapted) - logits(base)).mean()
    assert 0 < gap < np.abs(logits(base)).mean()


@pytest.mark.parametrize("targets", ["all", "attention", "kv"])
def test_sizes_without_a_model_equal_the_injected_ones(targets):
    spec = models.get("tiny-gemma4")
    abstract = models.abstract(spec)
    chosen = lora.select(lora.linears(abstract), targets)
    assert lora.size(spec, 8, targets).parameters == sum(x.adapter_parameters(8) for x in chosen)


def test_the_31b_has_adapters_on_all_sixty_layers():
    linears = lora.linears_of("gemma4-31b")
    for role in ("q", "kv", "o", "gate", "up", "down"):
        assert {x.layer for x in lora.select(linears, role)} == set(range(60)), role
    assert len(lora.missed(linears, lora.select(linears, PUBLISHED))) == 10


def test_bad_ranks_and_twice_injected_models_are_refused(base):
    with pytest.raises(LabError, match="rank"):
        lora.inject(base, 0, 8.0)
    adapted, _ = lora.inject(base, 4, 8.0)
    with pytest.raises(LabError, match="adapters"):
        lora.inject(adapted, 4, 8.0)
    with pytest.raises(LabError, match="no LoRA adapters"):
        lora.settings(base)
