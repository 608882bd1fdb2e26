"""What a rehearsal promises: real compiles here, read rightly, kept and replayed, and mended where they do not fit."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import time

import pytest

from labkit import mesh, rehearse
from labkit.cli import main
from labkit.errors import LabError
from labkit.rehearse import cache, compiling, costs, hlo, liveness, reading

GIB = 2**30
M, K, N, CHIPS = 512, 1024, 2048, 4
JOB = {"slice": "v5e-4", "axes": {"tp": CHIPS}, "m": M, "k": K, "n": N, "layout": "row"}
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: Linux x86-64")

# A loop of three runs, a result in place of an operand, a copy to VMEM, and a tuple taken apart. Written for this test.
MODULE = """HloModule jit_step, is_scheduled=true

%body (t: (f32[1024,128])) -> (f32[1024,128]) {
  %t = (f32[1024,128]{1,0:T(8,128)}) parameter(0)
  %x = f32[1024,128]{1,0:T(8,128)} get-tuple-element(%t), index=0
  %inner = f32[2048,128]{1,0:T(8,128)} broadcast(%x), backend_config={"estimated_cycles":"10"}
  %y = f32[1024,128]{1,0:T(8,128)} dynamic-update-slice(%x, %inner), backend_config={"estimated_cycles":"5"}
  ROOT %out = (f32[1024,128]{1,0:T(8,128)}) tuple(%y)
}

%cond (t: (f32[1024,128])) -> pred[] {
  %t2 = (f32[1024,128]{1,0:T(8,128)}) parameter(0)
  ROOT %go = pred[]{:T(512)} constant(true)
}

ENTRY %main (w: f32[1024,128], v: f32[128,256]) -> f32[1024,256] {
  %w = f32[1024,128]{1,0:T(8,128)} parameter(0)
  %v = f32[128,256]{1,0:T(8,128)} parameter(1)
  %near = (f32[128,256]{1,0:T(8,128)S(1)}, f32[128,256]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%v)
  %made = f32[1024,128]{1,0:T(8,128)} copy(%w), backend_config={"estimated_cycles":"7"}
  %packed = (f32[1024,128]{1,0:T(8,128)}) tuple(%made)
  %ran = (f32[1024,128]{1,0:T(8,128)}) while(%packed), body=%body, condition=%cond, backend_config={"known_trip_count":{"n":"3"}}
  %got = f32[1024,128]{1,0:T(8,128)} get-tuple-element(%ran), index=0
  %close = f32[128,256]{1,0:T(8,128)S(1)} copy-done(%near)
  ROOT %dot = f32[1024,256]{1,0:T(8,128)} dot(%got, %close), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/layer_3/dot_general"}, backend_config={"estimated_cycles":"100"}
}
"""  # noqa: E501
BLOCK = 1024 * 128 * 4


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch, request):
    """Nothing of the user's cache is read or written."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A real compile of a product, its schedule, and the folder that keeps both."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu: Linux x86-64")
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(folder))
        report = rehearse.rehearse("matmul", **JOB)
        return report, rehearse.schedule(report), folder


@pytest.fixture
def kept(compiled, monkeypatch):
    """The report, where it is stored."""
    report, _, folder = compiled
    monkeypatch.setenv("LABKIT_CACHE", str(folder))
    return report


def test_loops_count_as_often_as_they_run():
    done = costs.ops(hlo.parse(MODULE))
    assert sum(op.cycles for op in done) == 7 + 3 * (10 + 5) + 100
    (dot,) = [op for op in done if op.kind == "convolution"]
    assert dot.flops == 2 * 1024 * 128 * 256 and dot.layer == 3
    assert costs.by_kind(done) == {"convolution": 100, "broadcast": 30, "dynamic-update-slice": 15, "copy": 7}
    assert costs.by_layer(done) == {-1: 52, 3: 100}


def test_a_loop_that_names_no_count_runs_to_its_limit():
    text = MODULE.replace(', backend_config={"known_trip_count":{"n":"3"}}', "").replace(
        "ROOT %go = pred[]{:T(512)} constant(true)",
        "%n = s32[]{:T(128)} constant(4)\n  %i = s32[]{:T(128)} get-tuple-element(%t2), index=0\n"
        "  ROOT %go = pred[]{:T(512)} compare(%i, %n), direction=LT",
    )
    assert sum(op.cycles for op in costs.ops(hlo.parse(text))) == 7 + 4 * (10 + 5) + 100


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # x[2048, 5376] by 8 heads of 256, as the compiler writes it: all but one of 8 kernel positions meet padding.
        ("bf16[2048,8,256] convolution(%a, %b), window={size=8 pad=7_7 rhs_reversal=1}, dim_labels=b0f_0io->b0f",
         {"a": "bf16[2048,1,5376]", "b": "bf16[8,5376,256]", "flops": 2 * 2048 * 5376 * 8 * 256}),
        ("bf16[2048,256] convolution(%a, %b), dim_labels=bf_io->bf",
         {"a": "bf16[2048,5376]", "b": "bf16[5376,256]", "flops": 2 * 2048 * 5376 * 256}),
        # A stride that leaves out every second position of a one-dimensional convolution.
        ("f32[1,4,3] convolution(%a, %b), window={size=2 stride=2}, dim_labels=b0f_0io->b0f",
         {"a": "f32[1,8,5]", "b": "f32[2,5,3]", "flops": 2 * 4 * 2 * 5 * 3}),
    ],
)  # fmt: skip
def test_flops_of_a_convolution_leave_out_padding(line, flops):
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (a: f32[]) -> f32[] {{
  %a = {flops["a"]} parameter(0)
  %b = {flops["b"]} parameter(1)
  ROOT %c = {line}
}}
"""
    (op,) = costs.ops(hlo.parse(text))
    assert op.flops == flops["flops"]


def test_buffers_live_from_their_maker_to_their_last_use():
    module = hlo.parse(MODULE)
    moments = {m.instruction: m.bytes for m in liveness.timeline(module, 1000)}
    arguments, near = 1000, 128 * 256 * 4
    held = dict.fromkeys(liveness.KINDS, 0) | {"arguments": arguments, liveness.ON_CHIP: near, "kept long": BLOCK}
    assert moments["made"] == held
    assert moments["ran"] == held | {"working": 2 * BLOCK}  # what the body makes
    assert moments["dot"] == held | {"working": 2 * BLOCK}  # its result is twice a block
    assert {b.shape: b.bytes for b in liveness.largest(module)} == {"f32[1024,128]": BLOCK}


def test_a_product_costs_what_arithmetic_says(compiled):
    report, schedule, _ = compiled
    assert report.compiles and report.fits and not report.replayed
    assert report.flops == 2 * M * K * N / CHIPS and report.model_flops == 2 * M * K * N
    held = report.bytes_per_chip
    assert held["arguments"] == 2 * (M * K + K * N) / CHIPS and held["outputs"] == 2 * M * N
    (moved,) = report.collectives
    assert (moved.kind, moved.axes, moved.count, moved.bytes) == ("all-reduce", ("tp",), 1, 2 * M * N)
    assert report.step_seconds == pytest.approx(report.compute_seconds + report.exposed_seconds)
    assert sum(op.cycles for op in schedule.ops) == report.cycles > 0
    assert 0 < report.mfu < report.hfu * 1.0001 < 1


def test_the_peak_is_the_compilers_own(compiled):
    report, schedule, _ = compiled
    assert report.scheduled_peak == pytest.approx(report.bytes_per_chip["peak"], rel=0.05)
    assert max(m.everywhere for m in schedule.moments) == report.scheduled_peak
    assert max(m.total for m in schedule.moments) == report.hbm_peak


def test_a_stored_rehearsal_is_replayed_quickly_and_without_the_compiler(kept, monkeypatch):
    monkeypatch.setattr(compiling, "importable", lambda name: False)
    rehearse.rehearse("matmul", **JOB)
    begun = time.perf_counter()
    again = rehearse.rehearse("matmul", **JOB)
    assert time.perf_counter() - begun < 0.25  # 50 ms on an idle core
    assert again == dataclasses.replace(kept, replayed=True)
    with pytest.raises(LabError, match="needs libtpu"):
        rehearse.rehearse("matmul", **JOB | {"m": 2 * M})
    with pytest.raises(LabError, match="needs libtpu"):
        rehearse.rehearse("matmul", use_cache=False, **JOB)


def test_other_versions_are_replayed_with_a_note(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    old = dataclasses.replace(kept, versions=kept.versions | {"libtpu": "0.0.1"})
    cache.keep(cache.key(kept.job), old, None)
    again = rehearse.rehearse("matmul", **JOB)
    assert again.replayed and "libtpu 0.0.1" in again.note
    cache.keep(cache.key(kept.job), kept, None)
    assert rehearse.rehearse("matmul", **JOB).note == ""
    with pytest.raises(LabError, match="not stored"):
        rehearse.schedule(again)


@pytest.mark.parametrize("text", ["", "{", '{"job": 1}', "[]"])
def test_a_damaged_file_is_named(kept, tmp_path, monkeypatch, text):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    path = cache.keep(cache.key(kept.job), kept, None)
    path.write_text(text)
    with pytest.raises(LabError, match=path.name):
        rehearse.rehearse("matmul", **JOB)


def test_a_damaged_schedule_is_named(compiled, tmp_path, monkeypatch):
    report, schedule, _ = compiled
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    side = cache.keep(cache.key(report.job), report, schedule).with_suffix(".schedule.gz")
    assert rehearse.schedule(report) == schedule
    side.write_bytes(side.read_bytes()[:-20])
    with pytest.raises(LabError, match=side.name):
        rehearse.schedule(report)


def test_the_trace_has_every_second_of_the_step(kept, tmp_path):
    events = json.loads(rehearse.write_trace(kept, tmp_path / "trace.json").read_text())["traceEvents"]
    spans = sorted((e for e in events if e["ph"] == "X" and e["tid"] != 1), key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in itertools.pairwise(spans))
    assert sum(e["dur"] for e in spans) / 1e6 == pytest.approx(kept.step_seconds, rel=1e-3)
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"layers", "compute", "collectives"}


def test_a_difference_names_what_changed(kept):
    other = dataclasses.replace(kept, cycles=2 * kept.cycles)
    assert rehearse.diff(kept, other).changed == {"cycles": (kept.cycles, 2 * kept.cycles)}
    assert "nothing changed" in str(rehearse.diff(kept, kept))


@needs_libtpu
def test_a_function_of_the_users_own_is_compiled():
    wide = 256

    def step(mesh, *, rows):
        import jax
        from jax.sharding import NamedSharding
        from jax.sharding import PartitionSpec as P

        x = jax.ShapeDtypeStruct((rows, wide), "bfloat16", sharding=NamedSharding(mesh, P("dp")))
        return rehearse.Program(lambda x: x * 2, (x,))

    report = rehearse.rehearse(step, slice="v5e-4", axes="dp=4", rows=64)
    assert report.bytes_per_chip["arguments"] == 64 * wide * 2 / 4 and report.collectives == ()
    assert rehearse.rehearse(step, slice="v5e-4", axes="dp=4", rows=64).replayed


@needs_libtpu
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"timeout": 0.1}, "longer than the time limit"),
        ({"memory": 2**20}, "more than 0.0 GiB"),
        ({"k": 1023}, "divi"),
        ({"layout": "diagonal"}, "Unknown layout"),
        ({"axes": "tp=8"}, "tp=8|8 devices|4"),
        ({"slice": "v5e-5"}, "v5e"),
        ({"axes": None}, "needs mesh axes"),
        ({"m": object()}, "no plain value"),
    ],
)
def test_what_cannot_be_rehearsed_says_why(changes, match):
    with pytest.raises(LabError, match=match):
        rehearse.rehearse("matmul", use_cache=False, **JOB | changes)


def test_an_unknown_step_names_the_nearest():
    with pytest.raises(LabError, match="Nearest: lora_sft"):
        rehearse.rehearse("lora_stf", "gemma3-1b", "v5e-4", seq=128, batch=1)


def _refused(needed: float) -> rehearse.Report:
    """A 31B LoRA step that the compiler refused."""
    arguments = {"model": "gemma4-31b", "seq": 2048, "batch": 8, "rank": 16, "remat": "none"}
    job = rehearse.Job(rehearse.STEPS["lora_sft"][0], arguments, "v5p-8", {"fsdp": 1, "tp": 4})
    message = (
        f"RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        f"temporaries ({needed:.2f}G) exceeds available HBM (95.74G)."
    )
    outcome = {"error": "JaxRuntimeError", "message": message, "seconds": 1.0, "peak_rss_bytes": 1, "versions": {}}
    return reading.read(job, outcome, None)


def test_a_refusal_is_a_report_with_its_diagnosis():
    report = _refused(120)
    assert not report.compiles and not report.fits and report.failure.needed == 120 * GIB
    assert "Out of HBM" in str(report) and rehearse.Report.from_json(report.to_json()) == report
    with pytest.raises(LabError, match="does not run"):
        rehearse.write_trace(report, None)


def test_remedies_are_tried_the_cheapest_first_until_one_compiles(monkeypatch):
    from labkit.rehearse import remedies

    asked = []

    def compile_again(step, **job):
        asked.append(job)
        return dataclasses.replace(_refused(100), compiles=len(asked) == 2)

    monkeypatch.setattr(remedies, "rehearse", compile_again)
    found = rehearse.fix(_refused(120))
    assert found.found.report.compiles and len(found.tried) == 2 < found.considered
    assert found.tried[0].cost <= found.tried[1].cost
    assert all(job["model"] == "gemma4-31b" and job["batch"] == 8 for job in asked)  # never another task


def test_where_nothing_fits_that_is_the_answer():
    found = rehearse.fix(_refused(5000))
    assert found.found is None and found.tried == () and found.considered > 10
    assert "the smallest needs" in found.reasons[0]
    with pytest.raises(LabError, match="nothing to mend"):
        rehearse.fix(dataclasses.replace(_refused(1), compiles=True))


def test_the_command_prints_a_stored_rehearsal(capsys, tmp_path, monkeypatch, compiled):
    arguments = {"seq": 64, "batch": 4, "remat": "decoder", "accumulation": 1, "loss_chunk": 512, "rank": 16,
                 "targets": "all", "qlora": None}  # fmt: skip
    axes = dict(mesh.plan("tiny-gemma4", "v5e-4", seq=64, batch=4, axes={"fsdp": 4}).axes)
    job = rehearse.Job("labkit.sft.steps:lora_sft", {"model": "tiny-gemma4", **arguments}, "v5e-4", axes)
    cache.keep(cache.key(job), dataclasses.replace(compiled[0], job=job), None)
    call = "rehearse --model tiny-gemma4 --slice v5e-4 --seq 64 --batch 4 --axes fsdp=4 --json".split()
    with pytest.raises(SystemExit) as done:
        main(call)
    printed = json.loads(capsys.readouterr().out)
    assert done.value.code == 0 and printed["replayed"] is True
    assert {"compiles", "fits", "step_seconds", "mfu", "collectives", "compile_seconds",
            "worker_peak_rss_bytes"} <= set(printed)  # fmt: skip
    assert {"arguments", "temporaries", "peak"} <= set(printed["bytes_per_chip"])


def test_the_command_fails_in_a_line_where_the_step_does_not_fit(capsys):
    refused = _refused(120)
    arguments = {"seq": 2048, "batch": 8, "remat": "none", "accumulation": 1, "loss_chunk": 512, "rank": 16,
                 "targets": "all", "qlora": None}  # fmt: skip
    axes = dict(mesh.plan("gemma4-31b", "v5p-8", seq=2048, batch=8, axes={"fsdp": 1, "tp": 4}).axes)
    job = dataclasses.replace(refused.job, arguments={"model": "gemma4-31b", **arguments}, axes=axes)
    cache.keep(cache.key(job), dataclasses.replace(refused, job=job), None)
    call = "rehearse --model gemma4-31b --slice v5p-8 --batch 8 --remat none --axes fsdp=1,tp=4 --json".split()
    with pytest.raises(SystemExit) as done:
        main(call)
    out, err = capsys.readouterr()
    assert done.value.code == 1 and json.loads(out)["failure"]["code"] == "E1000" and "Out of HBM" in err


@needs_libtpu
@pytest.mark.slow
def test_a_scanned_and_an_unrolled_model_cost_the_same():
    def layers(mesh, *, scan):
        import jax
        from jax.sharding import NamedSharding
        from jax.sharding import PartitionSpec as P

        def array(*shape):
            return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, P()))

        def step(x, w):
            if scan:
                return jax.lax.scan(lambda x, w: (jax.nn.gelu(x @ w), None), x, w)[0]
            for i in range(w.shape[0]):
                x = jax.nn.gelu(x @ w[i])
            return x

        return rehearse.Program(step, (array(8192, 4096), array(8, 4096, 4096)))

    scanned, unrolled = (rehearse.rehearse(layers, slice="v5e-1", axes="dp=1", scan=s) for s in (True, False))
    assert scanned.flops == unrolled.flops == 8 * 2 * 8192 * 4096 * 4096
    assert scanned.cycles == pytest.approx(unrolled.cycles, rel=0.05)


def test_a_whole_model_follows_from_shallow_ones():
    from labkit.rehearse import extrapolation

    for shallow, whole in (([(1, 1), (2, 1), (1, 2)], (50, 10)), ([(4, 0), (5, 0), (5, 1)], (22, 4)),
                           ([(0, 2), (0, 3)], (0, 28))):  # fmt: skip
        share = extrapolation.weights(shallow, whole)
        cost = [7 + 3 * a + 11 * b for a, b in shallow]
        assert sum(s * c for s, c in zip(share, cost, strict=True)) == pytest.approx(7 + 3 * whole[0] + 11 * whole[1])
    with pytest.raises(LabError, match="do not follow"):
        extrapolation.weights([(1, 0), (2, 0)], (5, 1))


def test_the_report_opens_its_schedule(kept, tmp_path):
    assert max(moment.total for moment in kept.memory_timeline()) == kept.hbm_peak
    assert kept.trace(tmp_path / "step.json").stat().st_size > 0
    listing = kept.hlo
    assert [op.cycles for op in listing.ops] == sorted((op.cycles for op in listing.ops), reverse=True)
    assert "dot_general" in listing._repr_html_() and listing.search("no such thing").ops == ()
    assert all(op.kind == "convolution" for op in listing.search("convolution").ops)


@needs_libtpu
@pytest.mark.slow
def test_extrapolation_agrees_with_the_whole_model():
    job = {"seq": 512, "batch": 4, "rank": 8, "axes": "fsdp=4"}
    whole, parts = (
        made("lora_sft", "gemma3-270m", "v5e-4", **job) for made in (rehearse.rehearse, rehearse.extrapolate)
    )
    assert parts.bytes_per_chip["total"] == pytest.approx(whole.bytes_per_chip["total"], rel=0.05)
    assert parts.step_seconds == pytest.approx(whole.step_seconds, rel=0.05)
