"""What `labkit.hardware` promises: names, shapes and values with a source, and no import of JAX."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import hardware, resources
from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
TPUS = [chip for chip in hardware.chips() if chip.kind == "tpu"]
FACTS = [(chip, name) for chip in hardware.chips() for name in chip.facts]


# Golden values: the Cloud TPU pages v5e, v5p, v6e and tpu7x (docs.cloud.google.com/tpu/docs).
@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth", "links", "dims"),
    [
        ("v5e", 197e12, 819e9, 4, 2),
        ("v5p", 459e12, 2765e9, 6, 3),
        ("v6e", 918e12, 1638e9, 4, 2),
        ("tpu7x", 2307e12, 7380e9, 6, 3),
    ],
)
def test_values_of_the_cloud_pages(name, bf16, bandwidth, links, dims):
    chip = hardware.chip(name)
    assert chip.peak_flops["bf16"] == bf16
    assert chip.hbm_bandwidth == bandwidth
    assert (chip.ici_links, chip.torus_dims) == (links, dims)


@pytest.mark.parametrize(("name", "gib"), [("v5e", 15.75), ("v6e", 31.25), ("v5p", 95.74), ("tpu7x", 2 * 94.75)])
def test_usable_hbm_is_what_the_compiler_says(name, gib):
    """The compiler's message on a program that is too big: "exceeds available HBM (15.75G)"."""
    chip = hardware.chip(name)
    assert chip.usable_hbm_bytes == pytest.approx(gib * hardware.GIB, rel=1e-6)
    assert chip.usable_hbm_bytes_per_device * chip.compiler_devices == chip.usable_hbm_bytes
    assert "libtpu 0.0.42.1" in chip.source("usable_hbm_bytes")


@pytest.mark.parametrize("chip", [c for c in TPUS if c.name != "v2"], ids=lambda c: c.name)
def test_clock_times_matrix_units_is_the_peak(chip):
    """Peak = 2 * side**2 * MXUs * clock. v6e and tpu7x: the sources' MXU count does not fit, by a factor of two."""
    units = chip.mxus_per_core * chip.cores * (2 if chip.name in ("v6e", "tpu7x") else 1)
    assert 2 * chip.mxu_size**2 * units * chip.clock == pytest.approx(chip.peak_flops["bf16"], rel=0.01)


@pytest.mark.parametrize(("chip", "quantity"), FACTS, ids=lambda v: getattr(v, "name", v))
def test_every_value_has_a_unit_and_a_source(chip, quantity):
    fact = chip.sourced(quantity)
    known = hardware.sources()
    assert all(key in known for key in fact.sources)
    if fact.value is not None:
        assert fact.sources
        assert chip.source(quantity) != "no source"
    assert fact.unit or isinstance(fact.value, str)


def test_a_disagreement_is_kept():
    fact = hardware.chip("v5p").sourced("hbm_bandwidth")
    assert {d.source: d.value for d in fact.disagreements}["jax"] == 2460e9


@pytest.mark.parametrize(
    ("word", "name"),
    [("TPU v5 lite", "v5e"), ("v5litepod", "v5e"), ("TPU v5", "v5p"), ("Ironwood", "tpu7x"), ("H100", "h100")],
)
def test_aliases(word, name):
    assert hardware.chip(word).name == name


def test_an_unknown_chip_lists_the_nearest():
    with pytest.raises(LabError, match=r"v5z.*v5"):
        hardware.chip("v5z")
    with pytest.raises(LabError, match="hbm_bytes"):
        hardware.chip("v5e").source("hbm_byte")


# Names and shapes. Golden: MaxText's accelerator_to_spec_map.py and the Cloud pages (hardware.rules()).
@pytest.mark.parametrize(
    ("name", "canonical", "shape", "chips", "hosts", "devices"),
    [
        ("v5p-8", "v5p-8", (2, 2, 1), 4, 1, 4),
        ("v5p:2x2x1", "v5p-8", (2, 2, 1), 4, 1, 4),
        ("v5p-16", "v5p-16", (2, 2, 2), 8, 2, 8),
        ("v5p-128", "v5p-128", (4, 4, 4), 64, 16, 64),
        ("v5p-512", "v5p-512", (4, 8, 8), 256, 64, 256),
        ("v5p-1024", "v5p-1024", (8, 8, 8), 512, 128, 512),
        ("v5p-2048", "v5p-2048", (8, 8, 16), 1024, 256, 1024),
        ("v5p-4096", "v5p-4096", (8, 16, 16), 2048, 512, 2048),
        ("v5p-12288", "v5p-12288", (16, 16, 24), 6144, 1536, 6144),
        ("v5p:4x4x16", "v5p:4x4x16", (4, 4, 16), 256, 64, 256),
        ("v4-8", "v4-8", (2, 2, 1), 4, 1, 4),
        ("v3-8", "v3-8", (2, 2), 4, 1, 8),
        ("v6e-8", "v6e-8", (2, 4), 8, 1, 8),
        ("V6E-256", "v6e-256", (16, 16), 256, 64, 256),
        ("v5e-16", "v5e-16", (4, 4), 16, 4, 16),
        ("v5litepod-16", "v5e-16", (4, 4), 16, 4, 16),
        ("v5e:4x4", "v5e-16", (4, 4), 16, 4, 16),
        ("ct6e-standard-8t", "v6e-8", (2, 4), 8, 1, 8),
        ("ct5lp-hightpu-1t", "v5e-1", (1, 1), 1, 1, 1),
        ("ct5p-hightpu-4t", "v5p-8", (2, 2, 1), 4, 1, 4),
        ("tpu7x-standard-4t", "tpu7x-8", (2, 2, 1), 4, 1, 8),
        ("tpu7x-128", "tpu7x-128", (4, 4, 4), 64, 16, 128),
        ("2xv5e-16", "2xv5e-16", (4, 4), 32, 8, 32),
    ],
)
def test_slices_by_every_kind_of_name(name, canonical, shape, chips, hosts, devices):
    made = hardware.slice(name)
    assert (made.name, made.shape, made.chips, made.hosts, made.devices) == (canonical, shape, chips, hosts, devices)


@pytest.mark.parametrize(
    ("name", "wraparound"),
    [
        ("v5e-64", (False, False)),
        ("v5e-128", (False, True)),
        ("v6e-256", (True, True)),
        ("v5p-64", (False, False, False)),
        ("v5p-128", (True, True, True)),
        ("tpu7x-8", (False, False, False)),
    ],
)
def test_wraparound(name, wraparound):
    """v5e and v6e only on an axis of 16; 3D tori from one 4x4x4 cube up."""
    assert hardware.slice(name).wraparound == wraparound


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("v5p-4", "TensorCores, two a chip.*v5p-8"),
        ("v6e-7", "v6e-8"),
        ("v5e:3x3", "v5e-8"),
        ("v5x-8", "v5p"),
        ("ct6e-standard-3t", "ct6e-standard-4t"),
        ("h100-8", "not a TPU"),
        ("a pod", "v5p-8"),
        ("", "v5e-8"),
        ("0xv5e-16", "2xv5e-16"),
        ("v5e-99999999999999999999", "v5e-256"),
    ],
)
def test_a_wrong_name_says_what_is_near(name, nearest):
    with pytest.raises(LabError, match=nearest):
        hardware.slice(name)


@given(st.sampled_from(hardware.slices()), st.integers(1, 4))
def test_every_legal_slice_is_itself(name, count):
    made = hardware.slice(name if count == 1 else f"{count}x{name}")
    assert made.name == (name if count == 1 else f"{count}x{name}")
    assert made.chips == count * math.prod(made.shape)
    assert made.hosts * math.prod(made.host_shape) == made.chips
    assert hardware.slice(made.topology).shape == made.shape
    assert made.usable_hbm_bytes == made.chips * made.chip.usable_hbm_bytes
    assert hardware.Slice.from_json(made.to_json()) == made


@given(st.text(alphabet="v0123456789pex-:tu", max_size=12))
def test_any_text_is_a_slice_or_a_lab_error(text):
    try:
        assert hardware.slice(text).chips > 0
    except LabError as error:
        assert error.hint


@pytest.mark.parametrize("chip", TPUS, ids=lambda c: c.name)
def test_legal_shapes_are_distinct_and_fit_a_pod(chip):
    shapes = hardware.legal_shapes(chip.name)
    assert len(set(shapes)) == len(shapes)
    assert {len(shape) for shape in shapes} == {chip.torus_dims}
    assert all(math.prod(shape) <= (chip.pod_chips or 256) for shape in shapes)
    assert all(a <= b for a, b in itertools.pairwise(map(math.prod, shapes)))


# Prices


def test_prices_of_the_published_run():
    """arXiv 2605.25645: v5p-8 at 16.80 USD and v6e-8 at 21.52 USD an hour."""
    assert hardware.price(hardware.slice("v5p-8")).usd_per_hour == pytest.approx(16.80)
    assert hardware.price(hardware.slice("v6e-8")).usd_per_hour == pytest.approx(21.52)


def test_a_price_has_region_kind_date_and_source():
    for row in hardware.prices():
        assert row.region
        assert row.kind in ("on_demand", "spot")
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", row.date)
        assert row.source
        assert row.usd_per_chip_hour > 0


def test_price_of_a_kind_and_region():
    price = hardware.price(hardware.slice("v5e-16"), kind="spot", region="us-central1")
    assert (price.usd_per_hour, price.kind, price.region) == (16 * 0.63, "spot", "us-central1")
    assert "16 chips" in str(price)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tpu7x-8", {}, "prices.json"),
        ("v4-8", {"kind": "spot"}, "on_demand"),
        ("v5e-8", {"kind": "free"}, "spot"),
        ("v5e-8", {"region": "us-centrall"}, "us-central1"),
    ],
)
def test_a_missing_price_says_what_there_is(name, options, message):
    with pytest.raises(LabError, match=message):
        hardware.price(hardware.slice(name), **options)


# The files


def test_no_import_of_jax():
    code = (
        "import sys; from labkit import hardware as h; h.price(h.slice('v5p-8')); h.slices();"
        "heavy = {'jax', 'numpy', 'flax'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", ["hardware", "prices", "measured_runs", "claims", "models", "abstract_states"])
def test_data_files_hold_no_machine_path_or_registry(name):
    text = resources.path(f"{name}.json").read_text(encoding="utf-8")
    assert json.loads(text)
    assert not re.search(r'"(/home|/root|/tmp|/work|/Users)/|pypi\.org|files\.pythonhosted|registry\.npmjs', text)


def test_measured_runs_name_chips_that_exist():
    runs = resources.load_json("measured_runs.json")
    assert {"title", "training", "serving", "microbenchmarks"} <= set(runs)
    assert len(runs["training"]) == 112


def test_claims_have_a_verdict_and_a_check():
    verdicts = {"true", "false", "misleading", "unverifiable", "inconsistent"}
    for claim in resources.load_json("claims.json"):
        assert claim["claim"]
        assert claim["why"]
        assert claim["check"]
        assert claim["verdict"] in verdicts, claim["id"]


def test_rules_are_sourced():
    rules = hardware.rules()
    assert any("v5p-8" in rule.rule for rule in rules)
    assert all(set(rule.sources) <= set(hardware.sources()) for rule in rules)
