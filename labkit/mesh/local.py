"""Several processes on this machine as one JAX: to see what a slice of several hosts does, without having one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass

from labkit.records import Record


@dataclass(frozen=True)
class Spoken(Record):
    """What one process said in the end; `joined` is whether it found all the others."""

    process: int
    joined: bool
    text: str

    def __str__(self) -> str:
        return self.text if self.joined else f"Process {self.process} gave up: {self.text}"


def run_processes(
    count: int = 2, *, devices: int = 4, axes: str = "fsdp=4,tp=2", absent: Collection[int] = (), timeout: float = 60
) -> tuple[Spoken, ...]:
    """Start processes with simulated devices that join over the loopback, and return what each of them says.

    Args:
        count: how many they are.
        devices: simulated CPU devices of each.
        axes: the mesh over all of them.
        absent: processes that are not started, to see what the others do.
        timeout: seconds that they wait for each other.
    """
    coordinator = f"127.0.0.1:{_free_port()}"
    started = {i: _start(i, count, devices, axes, coordinator, timeout) for i in range(count) if i not in absent}
    said = []
    for i, process in started.items():
        out, err = process.communicate()
        joined = process.returncode == 0
        lines = (out if joined else err).strip().splitlines() or ["nothing"]
        said.append(Spoken(i, joined, lines[-1].removeprefix("error: ")))
    return tuple(said)


def _start(
    process: int, count: int, devices: int, axes: str, coordinator: str, timeout: float
) -> subprocess.Popen[str]:
    options = {"axes": axes, "devices": devices, "coordinator": coordinator, "processes": count, "process": process}
    words = [word for name, value in (options | {"timeout": timeout}).items() for word in (f"--{name}", str(value))]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-m", "labkit.mesh", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
