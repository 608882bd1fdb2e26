"""`start`: one call that sets this process up for a lab, before JAX takes anything."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import labkit
from labkit.errors import LabError, nearest
from labkit.records import Record
from labkit.runtime import chips, hosted

_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_NOISY = ("absl", "jax", "orbax", "transformers", "tensorflow", "grain", "qwix", "tunix")
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin")
# What JAX calls a chip (`device.device_kind`): generation, and what a device adds to the number in a slice's name.
_KINDS = {
    "TPU v2": ("v2", 1),
    "TPU v3": ("v3", 1),
    "TPU v4": ("v4", 2),
    "TPU v5 lite": ("v5e", 1),
    "TPU v5e": ("v5e", 1),
    "TPU v5": ("v5p", 2),
    "TPU v5p": ("v5p", 2),
    "TPU v6 lite": ("v6e", 1),
    "TPU v6e": ("v6e", 1),
    "TPU7x": ("tpu7x", 1),
}


@dataclass(frozen=True)
class Scale(Record):
    """A size at which the labs run: the model, and the slice that plans and rehearsals are made for."""

    name: str
    model: str
    slice: str

    def __str__(self) -> str:
        return f"scale {self.name}: {self.model}, {self.slice}"


SCALES = {
    "laptop": Scale("laptop", "tiny-gemma4", "v5e-1"),
    "colab": Scale("colab", "qwen3-0.6b", "v5e-1"),
    "slice": Scale("slice", "gemma4-31b", "v5p-8"),
}


@dataclass(frozen=True)
class Runtime(Record):
    """Where this process runs, and at which scale.

    `platform` is "cpu", "tpu" or "gpu"; `devices` counts all devices of all processes; `slice` is the TPU that is
    there, else the one of the scale; `notes` are things that the reader has to know, such as why the TPU is not used.
    """

    platform: str
    device_kind: str
    devices: int
    simulated: bool
    scale: str
    model: str
    slice: str
    process_index: int
    process_count: int
    colab: bool
    jax: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        kind = "simulated CPU" if self.simulated else self.device_kind
        count = f"{self.devices} {kind} device" + ("s" if self.devices != 1 else "")
        process = f", process {self.process_index + 1} of {self.process_count}" if self.process_count > 1 else ""
        where = f"labkit {labkit.__version__}, JAX {self.jax} on {count}{process}"
        return ". ".join([f"{where}; scale {self.scale}: {self.model}, slice {self.slice}", *self.notes])


def start(scale: str | None = None, *, devices: int | None = None, model: str | None = None) -> Runtime:
    """Set this process up for a lab, and print one line that says where it runs.

    Call it before anything else uses JAX. On Colab it installs what is missing and leaves the runtime's JAX alone. It
    takes the TPU only if no other process holds it. Calling it again with the same wishes changes nothing.

    Args:
        scale: "laptop", "colab" or "slice"; default: the environment variable LABKIT_SCALE, else what this machine can.
        devices: that many simulated CPU devices, instead of what is there.
        model: a registry model in place of the scale's, such as "gemma3-270m"; default: LABKIT_MODEL, else the scale's.

    Raises `LabError` for an unknown scale, a wish that comes after JAX has started, and a TPU that was asked for by
    JAX_PLATFORMS but is held by another process.
    """
    scale = scale or os.environ.get("LABKIT_SCALE") or None
    if scale is not None and scale not in SCALES:
        raise LabError(f"There is no scale {scale!r}.", hint=f"Nearest: {nearest(scale, list(SCALES))}.")
    if devices is not None and devices < 1:
        raise LabError(f"devices={devices} is not a number of devices.", hint="Give 1 or more.")
    quiet_logs()
    installed = hosted.prepare_colab() if hosted.on_colab() else ()
    notes = [f"Installed: {', '.join(installed)}"] if installed else []
    if jax_started():
        _check_started(devices)
    else:
        notes += _choose(devices)
    runtime = _describe(scale, model or os.environ.get("LABKIT_MODEL") or None, devices, tuple(notes))
    print(runtime)
    return runtime


def jax_started() -> bool:
    """Whether JAX has taken its devices, after which their number and kind are fixed for this process."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX has no public question for this
    return bridge is not None and bridge.backends_are_initialized()


def quiet_logs() -> None:
    """Keep the libraries' chatter out of a notebook; warnings of the reader's own code still show."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "2")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads make a later fork warn
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


def _check_started(devices: int | None) -> None:
    import jax

    there = jax.devices()
    if devices is not None and (there[0].platform != "cpu" or len(there) != devices):
        raise LabError(
            f"{devices} simulated devices were asked for after JAX had started with {len(there)} {there[0].platform}.",
            hint="Restart the kernel and call labkit.start(devices=...) first, before anything uses JAX.",
        )


def _choose(devices: int | None) -> list[str]:
    """Fix the platform, before JAX starts. Returns notes for the reader."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    if devices is not None:
        return _simulate(devices, asked)
    if asked and "tpu" not in asked.split(","):
        return []
    found = chips.tpu()
    holders = chips.tpu_holders() if found.count else ()
    if holders and asked:
        raise LabError(
            f"JAX_PLATFORMS={asked} asks for the TPU, but {_who(holders)} holds it.",
            hint="End that process, or unset JAX_PLATFORMS to run on CPU.",
        )
    if not asked:
        _set_platform(_platform(found.count > 0 and not holders))
    return [f"The TPU is held by {_who(holders)}, so this runs on CPU"] if holders else []


def _simulate(devices: int, asked: str) -> list[str]:
    import jax

    if asked and asked.split(",")[0] != "cpu":
        raise LabError(
            f"devices={devices} asks for simulated CPU devices, but JAX_PLATFORMS is {asked}.",
            hint="Unset JAX_PLATFORMS, or leave devices out.",
        )
    _set_platform("cpu")
    forced = _FORCED.search(os.environ.get("XLA_FLAGS", ""))
    if forced is None:
        jax.config.update("jax_num_cpu_devices", devices)
    elif int(forced[1]) != devices:
        raise LabError(
            f"devices={devices} was asked for, but XLA_FLAGS already forces {forced[1]} devices.",
            hint="Take --xla_force_host_platform_device_count out of XLA_FLAGS.",
        )
    return []


def _platform(free_tpu: bool) -> str:
    """The platforms that JAX may look for, in JAX's own form; "" leaves the choice to JAX."""
    if free_tpu and hosted.importable("libtpu"):
        return "tpu,cpu"
    if chips.gpu() and any(hosted.importable(plugin) for plugin in _GPU_PLUGINS):
        return ""
    return "cpu"


def _set_platform(platform: str) -> None:
    import jax

    jax.config.update("jax_platforms", platform or None)
    if platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"  # child processes keep off the TPU too


def _describe(scale: str | None, model: str | None, devices: int | None, notes: tuple[str, ...]) -> Runtime:
    import jax

    try:
        there = jax.devices()
    except RuntimeError as error:
        raise LabError(
            f"JAX found no device it can use: {str(error).splitlines()[0]}",
            hint="`labkit doctor` says what this machine has; JAX_PLATFORMS=cpu runs on CPU.",
        ) from error
    platform, kind = there[0].platform, there[0].device_kind
    real = slice_name(kind, len(there))
    chosen = SCALES[scale or _default_scale(platform, there)]
    return Runtime(
        platform=platform,
        device_kind="CPU" if platform == "cpu" else kind,
        devices=len(there),
        simulated=platform == "cpu" and len(there) > 1,
        scale=chosen.name,
        model=model or chosen.model,
        slice=real or chosen.slice,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        colab=hosted.on_colab(),
        jax=jax.__version__,
        notes=notes,
    )


def slice_name(device_kind: str, devices: int) -> str:
    """The name of the slice that these devices are ("v5p-8" for four of JAX's "TPU v5"); "" if they are no TPU.

    v2 to v4, v5p and 7x count TensorCores, v5e and v6e chips; on v4 and v5p a device is a chip with two TensorCores.
    """
    generation, each = _KINDS.get(device_kind, ("", 0))
    return f"{generation}-{devices * each}" if generation else ""


def _default_scale(platform: str, devices: list[Any]) -> str:
    """The largest scale that fits: the 31B's bfloat16 weights need 58 GiB, and about as much again to train."""
    if platform == "cpu":
        return "laptop"
    stats = devices[0].memory_stats() or {}
    return "slice" if stats.get("bytes_limit", 0) * len(devices) >= 120 * 2**30 else "colab"


def _who(holders: tuple[int, ...]) -> str:
    known = ", ".join(str(h) for h in holders if h)
    return f"process {known}" if known else "another process"
