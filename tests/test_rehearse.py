"""What the rehearsal promises: the compiler's messages and modules are read rightly, and its verdicts are kept."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.rehearse import failures, hlo, traffic

GIB = 2**30
# Messages of libtpu 0.0.42.1 (compiled here), and of older compilers and of the runtime (public issue threads:
# flowpm #27, transformers #22328, tpu-recipes #151).
HBM = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (36.52G) exceeds "
    "available HBM (15.75G)."
)
HBM_CODE = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (19.22G) exceeds available HBM (15.75G)."
)
VMEM = (
    "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) :: #allocation2 [shape = "
    "'u8[268435456]{0}', space=vmem, size = 0x10000000, scoped, tag = 'input window allocation for operator input 0.']"
)
SMEM = VMEM.replace("268435456", "16777216").replace("134217728", "1048576").replace("vmem", "smem")
TABLE = """Compilation failure: Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm. Exceeded hbm capacity.

  Largest program allocations in hbm:

  1. Size: 32.00G
     Operator: op_type="FloorMod" op_name="slicewise_79/cic_update/FloorMod" source_file="/a/mapping.py" source_line=177
     Shape: s32[8388608,8,4]{2,1,0:T(8,128)}
     Unpadded size: 1.00G
     Allocation type: HLO temp
     ==========================

  2. Size: 64.00M
     Shape: f32[1024,245,64]{1,2,0:T(8,128)}
     ==========================
"""
LOAD = (
    "RESOURCE_EXHAUSTED: Attempting to reserve 10.51G at the bottom of memory. That was not possible. There are 8.97G "
    "free, 0B reserved, and 8.97G reservable."
)


@pytest.mark.parametrize(
    ("message", "memory", "when", "needed", "limit", "code"),
    [
        (HBM, "hbm", "compile", 36.52 * GIB, 15.75 * GIB, ""),
        (HBM_CODE, "hbm", "compile", 19.22 * GIB, 15.75 * GIB, "E1000"),
        (VMEM, "vmem", "compile", 2**28, 2**27, ""),
        (SMEM, "smem", "compile", 2**24, 2**20, ""),
        (TABLE, "hbm", "compile", 41.74 * GIB, 16 * GIB, ""),
        (LOAD, "hbm", "load", 10.51 * GIB, 8.97 * GIB, ""),
    ],
)
def test_every_form_of_running_out_is_read(message, memory, when, needed, limit, code):
    found = failures.diagnose(message)
    assert (found.memory, found.when, found.code) == (memory, when, code)
    assert found.needed == pytest.approx(needed, abs=1) and found.limit == pytest.approx(limit, abs=1)
    assert failures.OutOfMemory.from_json(found.to_json()) == found


def test_the_largest_buffers_are_named():
    first, second = failures.diagnose(TABLE).buffers
    assert first.bytes == 32 * GIB and first.source == "/a/mapping.py:177" and first.op_name.endswith("FloorMod")
    assert second.bytes == 64 * 2**20 and second.shape.startswith("f32[1024,245,64]")


def test_other_failures_are_not_taken_for_memory():
    assert failures.diagnose("INVALID_ARGUMENT: Mosaic failed to compile TPU kernel") is None


@pytest.mark.parametrize(
    ("text", "size", "padded", "space"),
    [
        ("bf16[262144,160]{0,1:T(8,128)(2,1)S(1)}", 83886080, 83886080, hlo.VMEM),
        ("f32[3,100]{1,0:T(8,128)}", 1200, 4096, hlo.HBM),
        ("bf16[2,100,3]{2,1,0:T(8,128)(2,1)}", 1200, 2 * 104 * 128 * 2, hlo.HBM),
        ("pred[5]{0:T(512)}", 5, 512, hlo.HBM),
        ("f32[]{:T(128)}", 4, 512, hlo.HBM),
        ("s4[16,3]{1,0}", 24, 24, hlo.HBM),
    ],
)
def test_sizes_of_shapes(text, size, padded, space):
    (shape,) = hlo.shapes(text)
    assert (shape.bytes, shape.padded_bytes, shape.space) == (size, padded, space)


MODULE = """HloModule jit_step, is_scheduled=true

%body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %y = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"100"}
  ROOT %t = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%i, %y)
}

ENTRY %main (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="weights['a']"}
  %c = s32[]{:T(128)} constant(0)
  %in = (s32[]{:T(128)}, /*index=1*/f32[8,128]{1,0:T(8,128)}) tuple(%c, %a)
  %w = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%in), body=%body, TRIPS
  %u = f32[8,128]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%inner, UNKNOWN
  ROOT %r = f32[8,128]{1,0:T(8,128)} get-tuple-element(%w), index=1
}
"""
MODULE = MODULE.replace("TRIPS", 'backend_config={"known_trip_count":{"n":"7"}}')
MODULE = MODULE.replace("UNKNOWN", 'backend_config={"estimated_cycles":"9223372036854775807"}')


def test_loop_bodies_count_as_often_as_they_run():
    module = hlo.parse(MODULE)
    assert sum((x.cycles or 0) * times for x, times in module.walk()) == 700
    assert module.instructions["u"].cycles is None
    assert module.instructions["w"].operands == ("in",) and module.instructions["a"].op_name == "weights['a']"
    assert module.instructions["in"].bytes == 4 + 4096


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no HLO module"),
        ("HloModule x\n\n%f (a: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n}\n", "no ENTRY"),
        (MODULE.replace("s32[]", "q7[]"), "data type 'q7'"),
        (MODULE.replace("parameter(0), metadata", "parameter(0"), "could not be read"),
    ],
)
def test_a_module_that_cannot_be_read_says_why(text, message):
    with pytest.raises(LabError, match=message):
        hlo.parse(text)


AXES = {"fsdp": 2, "tp": 4}


@pytest.mark.parametrize(
    ("attributes", "axes"),
    [
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={1}", ("tp",)),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}, to_apply=%r", ("fsdp", "tp")),
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", ("tp",)),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", ("fsdp",)),
        ("replica_groups=[2,4]<=[8]", ("tp",)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ("fsdp",)),
        ("source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", ("tp",)),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ()),
        ("replica_groups={}", ("fsdp", "tp")),
    ],
)
def test_groups_of_devices_are_mesh_axes(attributes, axes):
    assert traffic.axes_of(traffic.group_of(attributes, 8), AXES) == axes


COLLECTIVES = """HloModule jit_step, is_scheduled=true

%start (p: f32[4,8]) -> f32[16,8] {
  %p = f32[4,8]{1,0:T(8,128)} parameter(0)
  ROOT %g = f32[16,8]{1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0:T(8,128)} parameter(0)
  %s = f32[16,8]{1,0:T(8,128)} fusion(%a), kind=kCustom, calls=%start
  %d = f32[16,8]{1,0:T(8,128)} fusion(%s), kind=kCustom, calls=%start
  %r = f32[4,8]{1,0:T(8,128)} reduce-scatter(%d), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %u = f32[4,8]{1,0:T(8,128)} all-reduce(%r), channel_id=3, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
}
"""


def test_collectives_are_counted_once_and_by_axis():
    found = {c.kind: c for c in traffic.collectives(hlo.parse(COLLECTIVES), AXES)}
    gathered, scattered, reduced = (found[k] for k in ("all-gather", "reduce-scatter", "all-reduce"))
    assert (gathered.count, gathered.axes, gathered.bytes, gathered.overlapped) == (1, ("tp",), 512, 1)
    assert (scattered.count, scattered.bytes, scattered.overlapped) == (1, 512, 0)
    assert (reduced.axes, reduced.devices, reduced.bytes) == (("fsdp",), 2, 128)
