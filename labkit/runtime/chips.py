"""Which accelerators this machine has, and who holds them: answered from files, so that nothing is taken by asking.

Standard library only. A TPU belongs to one process at a time; starting JAX to find out whether it is free would take
it, or fail after a long wait.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# Vendor and device ids on the PCI bus, as JAX has them (jax/_src/hardware_utils.py). v2 and v3 share one.
_GOOGLE = "0x1ae0"
_GENERATIONS = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}
_TPU_FILES = re.compile(r"/dev/(accel\d+|vfio/\d+)")
_LOCKFILE = "tmp/libtpu_lockfile"  # libtpu holds a lock on it for as long as it holds the chips
_GPU_FILES = ("dev/nvidiactl", "dev/nvidia0", "dev/dxg", "dev/kfd")


@dataclass(frozen=True)
class Chips:
    """The TPU chips on this machine's PCI bus: how many, and their generation ("v5e")."""

    count: int
    generation: str = ""


def tpu(root: Path = Path("/")) -> Chips:
    """The TPU chips of this machine. `root` is where /sys is; tests give another."""
    found = [g for g in map(_generation, sorted(root.glob("sys/bus/pci/devices/*"))) if g]
    return Chips(len(found), found[0] if found else "")


def gpu(root: Path = Path("/")) -> bool:
    """Whether a GPU driver shows a device."""
    return any((root / file).exists() for file in _GPU_FILES)


def tpu_holders(root: Path = Path("/")) -> tuple[int, ...]:
    """The processes other than this one that hold the TPU, by id; 0 is one that this process may not see.

    Two signs, both read and neither taken: a lock on libtpu's lock file in /proc/locks, and an open device file.
    """
    holders = set(_lock_holders(root)) | set(_file_holders(root))
    return tuple(sorted(holders - {os.getpid()}))


def _generation(device: Path) -> str | None:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "device"))
    except OSError:
        return None
    return _GENERATIONS.get(kind) if vendor == _GOOGLE else None


def _lock_holders(root: Path) -> list[int]:
    try:
        inode = (root / _LOCKFILE).stat().st_ino
        locks = (root / "proc/locks").read_text()
    except OSError:
        return []
    # A line is `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF`: the process, then device and inode.
    # A process of another container has the id -1 or 0.
    found = re.findall(r"^\d+: (?:FLOCK|POSIX|OFDLCK) +\S+ +\S+ +(-?\d+) +\S+:(\d+) ", locks, re.MULTILINE)
    return [max(0, int(process)) for process, file in found if int(file) == inode]


def _file_holders(root: Path) -> list[int]:
    return [int(fd.parts[-3]) for fd in root.glob("proc/[0-9]*/fd/*") if _TPU_FILES.fullmatch(_target(fd))]


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # the process has ended, or belongs to somebody else
        return ""
