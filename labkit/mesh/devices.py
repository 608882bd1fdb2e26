"""A JAX mesh from a plan or from axes: on a real slice, on simulated devices, or on a slice to compile for."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh

from labkit import hardware
from labkit.errors import LabError
from labkit.mesh.axes import axis_sizes
from labkit.mesh.layout import across_slices
from labkit.runtime.hosted import importable


class HasAxes(Protocol):
    """What `make_mesh` needs of a plan: the size of each mesh axis, outermost first."""

    @property
    def axes(self) -> Mapping[str, int]: ...


Axes = HasAxes | Mapping[str, int] | Sequence[tuple[str, int]] | str

# libtpu looks for a TPU machine's metadata, and takes a lock that only a process with chips needs.
_COMPILE_ONLY = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def make_mesh(plan_or_axes: Axes, devices: Any = None, *, explicit: bool = False) -> Mesh:
    """A mesh of the plan's axes over all devices.

    On a TPU the axes are laid along the physical torus by JAX (`jax.make_mesh`); across several slices the first axis
    that they divide goes over the data centre network.

    Args:
        plan_or_axes: a `MeshPlan`, a mapping such as `{"fsdp": 4, "tp": 2}`, or a text such as "fsdp=4,tp=2".
        devices: a sequence of JAX devices; a slice, by name or record, to compile for without having it; or None for
            all devices of all processes.
        explicit: axes whose shardings are part of array types. Tunix's models need the other kind (auto), the default.

    Raises:
        LabError: an axis named twice or of no size, a product that is not the number of devices.
    """
    sizes = axis_sizes(plan_or_axes)
    found = _devices(devices)
    if math.prod(sizes.values()) != len(found):
        raise _mismatch(sizes, found, given=devices is not None)
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Mesh(_arrange(found, sizes), tuple(sizes), axis_types=(kind,) * len(sizes))


def topology_devices(slice_name: str | hardware.Slice) -> list[Any]:
    """The devices of a slice that is not there, for compiling only: libtpu describes it on any Linux CPU.

    v4 shows two devices a chip here, and one when it runs.
    """
    wanted = hardware.slice(slice_name) if isinstance(slice_name, str) else slice_name
    if not importable("libtpu"):
        raise LabError(
            f"{wanted.name} can be compiled for only with libtpu, which is not installed.",
            hint="On Linux x86-64: pip install 'tpu-labkit[tpu]'.",
        )
    if jax.config.jax_platforms == "cpu":  # this process will have no chips of its own
        for key, value in _COMPILE_ONLY.items():
            os.environ.setdefault(key, value)
    more = {"num_slices": wanted.slices} if wanted.slices > 1 else {}
    return list(topologies.get_topology_desc(topology_name=wanted.topology, platform="tpu", **more).devices)


def _devices(devices: Any) -> list[Any]:
    if devices is None:
        return jax.devices()
    if isinstance(devices, str | hardware.Slice):
        return topology_devices(devices)
    return list(np.asarray(devices, dtype=object).reshape(-1))


def _mismatch(sizes: Mapping[str, int], devices: Sequence[Any], given: bool) -> LabError:
    product = " x ".join(f"{name} {size}" for name, size in sizes.items())
    wanted = math.prod(sizes.values())
    many = f"{len(devices)} {devices[0].device_kind if devices else ''} device{'s' if len(devices) != 1 else ''}"
    if given:
        return LabError(f"A mesh of {product} has {wanted} places for {many}.", hint=f"Axes must make {len(devices)}.")
    hint = f"Choose axes whose product is {len(devices)}"
    if devices[0].platform == "cpu":
        hint += f", or restart the kernel and call labkit.start(devices={wanted}) before anything uses JAX"
    return LabError(f"A mesh of {product} needs {wanted} devices, but JAX has started with {many}.", hint=f"{hint}.")


def _arrange(devices: Sequence[Any], sizes: Mapping[str, int]) -> np.ndarray:
    shape = tuple(sizes.values())
    slices = len({getattr(d, "slice_index", None) or 0 for d in devices})
    if slices > 1:
        across = tuple(across_slices(sizes, slices).values())
        inner = tuple(size // count for size, count in zip(shape, across, strict=True))
        return mesh_utils.create_hybrid_device_mesh(inner, across, devices, allow_split_physical_axes=True)
    if len({getattr(d, "core_on_chip", 0) for d in devices}) > 1 and devices[0].device_kind == "TPU v4":
        # mesh_utils takes v4 only with one device a chip, which it has at run time but not in a topology.
        ordered = sorted(devices, key=lambda d: (*d.coords[::-1], d.core_on_chip))
        return np.asarray(ordered, dtype=object).reshape(shape)
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
