"""What this machine is, what it lacks for which lab, and the one command that mends it.

It starts nothing: JAX is not imported, so a TPU that another process holds is left alone.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import urllib.request
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import labkit
from labkit import resources, runtime
from labkit.errors import LabError
from labkit.records import Record

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_CORE = ("jax", "flax", "optax", "google-tunix", "qwix", "orbax-checkpoint", "grain", "transformers", "safetensors")
_SHOWN = ("plotly", "ipywidgets")


@dataclass(frozen=True)
class Lab:
    """What one lab or command needs: distributions, and programs of which any one of each group will do."""

    name: str
    packages: tuple[str, ...] = _CORE
    programs: tuple[tuple[str, ...], ...] = ()
    extra: str = ""


LABS = (
    Lab("labkit run", programs=(("iverilog",),)),
    Lab("00_start_here", _CORE + _SHOWN, (("iverilog",),)),
    Lab("03_lora_sft", _CORE + _SHOWN, (("iverilog",),)),
    Lab("make lab", ("jupyterlab", "ipykernel"), extra="dev"),
    Lab("make notebooks", ("nbclient", "jupytext", "kaleido"), (_CHROMIUM,), extra="dev"),
    Lab("parity tests", ("torch", "peft"), extra="parity"),
    Lab("TPU runtime and compiler", ("libtpu",), extra="tpu"),
)


@dataclass(frozen=True)
class Version(Record):
    """A distribution's installed version beside the one that is tested; "" where there is none."""

    name: str
    installed: str
    tested: str
    same: bool

    def __str__(self) -> str:
        return f"{self.name} {self.installed or 'missing'} (tested: {self.tested})"


@dataclass(frozen=True)
class Readiness(Record):
    """Whether a lab can run here; if not, what is missing and the command that mends it."""

    lab: str
    ready: bool
    missing: tuple[str, ...]
    mend: str

    def __str__(self) -> str:
        return f"{self.lab}: ready" if self.ready else f"{self.lab}: lacks {', '.join(self.missing)}. {self.mend}"


@dataclass(frozen=True)
class Report(Record):
    """What `examine` found. Sizes are bytes; `machine` is "cpu", "gpu", "colab-tpu" or "cloud-tpu".

    `protections` says what keeps code that a model wrote harmless here (see `labkit.evaluate`), or `{"missing": why}`.
    """

    machine: str
    accelerator: str
    colab: bool
    system: str
    python: str
    labkit: str
    cores: int
    memory: int = field(metadata={"unit": "B"})
    disk_free: int = field(metadata={"unit": "B"})
    tpu_holders: tuple[int, ...]
    versions: tuple[Version, ...]
    labs: tuple[Readiness, ...]
    protections: dict[str, Any]
    ready: bool

    def __str__(self) -> str:
        gaps = [lab.lab for lab in self.labs if not lab.ready]
        what = f"{_NAMES[self.machine]}{f' ({self.accelerator})' if self.accelerator else ''}"
        size = f"{self.cores} cores, {self.memory / 2**30:.0f} GiB of memory, Python {self.python}"
        return f"{what}, {size}: {'lacks something for ' + ', '.join(gaps) if gaps else 'ready for all labs'}"

    def __rich__(self) -> Any:
        """The report as the terminal shows it."""
        from rich.console import Group
        from rich.table import Table

        labs = Table("lab or command", "", "what is missing", "what mends it", box=None, pad_edge=False)
        for lab in self.labs:
            labs.add_row(lab.lab, "ready" if lab.ready else "lacks", ", ".join(lab.missing), lab.mend)
        others = [str(v) for v in self.versions if v.installed and not v.same]
        versions = f"Versions other than the tested ones: {', '.join(others) or 'none'}."
        guard = "; ".join(f"{k}: {_words(v)}" for k, v in self.protections.items() if v)
        held = [f"The TPU is held by another process ({_words(self.tpu_holders)})."] if self.tpu_holders else []
        disk = f"{self.system}, labkit {self.labkit}, {self.disk_free / 2**30:.0f} GiB of disk free."
        return Group(f"{self}.", disk, *held, "", labs, "", versions, f"Guard around a model's code: {guard}.")


_NAMES = {"cpu": "CPU", "gpu": "GPU", "colab-tpu": "Colab TPU", "cloud-tpu": "Cloud TPU slice"}


def examine() -> Report:
    """Look at this machine: hardware, versions, what each lab lacks, and the guard around a model's code."""
    chips = runtime.tpu()
    machine = _machine(chips.count)
    labs = tuple(_readiness(lab) for lab in LABS)
    return Report(
        machine=machine,
        accelerator=_accelerator(machine, chips),
        colab=runtime.on_colab(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        labkit=labkit.__version__,
        cores=_cores(),
        memory=_memory(),
        disk_free=shutil.disk_usage(Path.cwd()).free,
        tpu_holders=runtime.tpu_holders() if chips.count else (),
        versions=_versions(),
        labs=labs,
        protections=_protections(),
        ready=all(lab.ready for lab in labs),
    )


def _machine(chips: int) -> str:
    if chips:
        return "colab-tpu" if runtime.on_colab() else "cloud-tpu"
    return "gpu" if runtime.gpu() else "cpu"


def _accelerator(machine: str, chips: runtime.Chips) -> str:
    """The slice's name as the cloud gives it, else what this host sees of it."""
    if not chips.count:
        return ""
    seen = f"{chips.generation}, {chips.count} chips on this host"
    named = os.environ.get("TPU_ACCELERATOR_TYPE") or (_metadata("accelerator-type") if machine == "cloud-tpu" else "")
    return f"{named}: {seen}" if named else seen


def _metadata(attribute: str) -> str:
    """An attribute of this Google Cloud machine; "" anywhere else."""
    address = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}"
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    """The bytes of memory that this process may use: the machine's, or a container's limit if that is lower."""
    limits = [psutil.virtual_memory().total]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(file).read_text().strip() if Path(file).is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits)


def _versions() -> tuple[Version, ...]:
    """The distributions that a result depends on, beside the versions tested on this Python (else on the newest)."""
    by_python = resources.load_json("tested_versions.json")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    tested = by_python.get(here) or by_python[max(by_python, key=_minor)]
    names = [name for name in (*_CORE, "jaxlib", "libtpu", *_SHOWN, "torch", "peft") if name in tested]
    found = [(name, _installed(name), tested[name]) for name in names]
    # A local label such as torch's +cpu says how a version was built, not which one it is.
    return tuple(Version(n, have, want, have.partition("+")[0] == want) for n, have, want in found)


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _readiness(lab: Lab) -> Readiness:
    packages = tuple(name for name in lab.packages if not _installed(name))
    programs = tuple(group[0] for group in lab.programs if not any(map(shutil.which, group)))
    commands = [_install_packages(lab.extra)] if packages else []
    commands += [_install_programs(programs)] if programs else []
    return Readiness(lab.name, not (packages or programs), packages + programs, " && ".join(commands))


def _install_packages(extra: str) -> str:
    checkout = Path(labkit.__file__).parent.parent
    if (checkout / "Makefile").is_file():
        return f"make -C {checkout} torch" if extra == "parity" else f"make -C {checkout} env"
    return f"pip install '{runtime.DISTRIBUTION}{f'[{extra}]' if extra else ''}'"


def _install_programs(programs: tuple[str, ...]) -> str:
    """The command of this system's package manager."""
    if os.environ.get("CONDA_PREFIX"):
        return " && ".join(_CONDA[p] for p in programs)
    if sys.platform == "darwin":
        return " && ".join(_BREW[p] for p in programs)
    sudo = "" if getattr(os, "geteuid", lambda: 1)() == 0 else "sudo "
    return f"{sudo}apt-get install -y {' '.join(programs)}"


_BREW = {"iverilog": "brew install icarus-verilog", "chromium": "brew install --cask chromium"}
_CONDA = {  # conda-forge has no Chromium; kaleido brings a command that fetches one
    "iverilog": "conda install -y -c conda-forge iverilog",
    "chromium": "choreo_get_chrome",
}


def _protections() -> dict[str, Any]:
    from labkit.evaluate import sandbox

    try:
        return sandbox.protections().to_dict()
    except LabError as error:
        return {"missing": str(error)}


def _minor(python: str) -> int:
    return int(python.split(".")[1])


def _words(value: Any) -> str:
    if value is True:
        return "yes"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
