"""Several processes as one JAX: `jax.distributed`, with a roll call before it that can say who is missing.

JAX itself ends the whole process (SIGABRT) when a peer does not come, and does not say which. So the processes first
meet over a plain socket on the coordinator's port: process 0 listens, the others report, and each learns who is there.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

import jax

from labkit import runtime
from labkit.errors import LabError
from labkit.records import Record

_RETRY_S = 0.2


@dataclass(frozen=True)
class Processes(Record):
    """This process among all. `cluster` is what JAX recognised ("Cloud TPU", "GKE", "Slurm"), "given" or "none"."""

    index: int
    count: int
    coordinator: str
    cluster: str

    def __str__(self) -> str:
        where = f"coordinator {self.coordinator}" if self.coordinator else "no coordinator"
        return f"Process {self.index} of {self.count} (cluster: {self.cluster}, {where})"


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: float = 300,
    **options: Any,
) -> Processes:
    """Join this process to the others, before `labkit.start()` and anything else that uses JAX. Call it in each.

    Without arguments JAX finds out by itself on Cloud TPU, GKE, Slurm and Open MPI; where it finds no cluster, this
    stays a single process, and the record says so.

    Args:
        coordinator: host and port of process 0, such as "10.0.0.2:8476".
        processes: how many there are.
        process: which one this is, from 0.
        timeout: seconds to wait for all of them.
        options: other arguments of `jax.distributed.initialize`.

    Raises:
        LabError: a process that does not come in time (which), that calls itself as another does, or expects another
            number; JAX has started already; arguments that are not complete.
    """
    if runtime.jax_started():
        raise LabError(
            "labkit.mesh.initialize was called after JAX had started.",
            hint="Restart, and call it before anything uses JAX (also before labkit.start).",
        )
    coordinator, processes, process, cluster = _detect(coordinator, processes, process, timeout)
    if cluster == "none":
        return Processes(0, 1, "", cluster)
    assert coordinator is not None and processes is not None and process is not None
    deadline = time.monotonic() + timeout
    if processes > 1:
        roll_call(coordinator, processes, process, timeout)
    remaining = max(10, int(deadline - time.monotonic()))
    jax.distributed.initialize(coordinator, processes, process, initialization_timeout=remaining, **options)
    return Processes(process, processes, coordinator, cluster)


def roll_call(coordinator: str, processes: int, process: int, timeout: float) -> None:
    """Wait until all processes have reported to process 0; a `LabError` names those that did not come in time."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise LabError(f"The coordinator {coordinator!r} is no host and port.", hint="Write it as 10.0.0.2:8476.")
    if process == 0:
        verdict = _take_roll(int(port), processes, timeout)
    else:
        verdict = _report(host.strip("[]"), int(port), processes, process, timeout)
    if verdict:
        raise LabError(
            verdict, hint="Look at its log: it may have ended, hang, not reach process 0, or have a wrong number."
        )


def _detect(
    coordinator: str | None, processes: int | None, process: int | None, timeout: float
) -> tuple[str | None, int | None, int | None, str]:
    given = (coordinator, processes, process)
    if None not in given:
        _check(processes, process)
        return coordinator, processes, process, "given"
    # JAX has no public way to ask its cluster detection without starting.
    from jax._src.clusters import ClusterEnv

    names = {"GceTpuCluster": "Cloud TPU", "GkeTpuCluster": "GKE", "SlurmCluster": "Slurm", "OmpiCluster": "Open MPI"}
    present = [c for c in ClusterEnv._cluster_types if not c.opt_in_only_method and c.is_env_present()]
    if not present:
        if given == (None, None, None):
            return None, None, None, "none"
        raise LabError(
            "This is no cluster that JAX knows, so coordinator, processes and process must all be given.",
            hint='For example initialize("10.0.0.2:8476", 2, 0) in the first of two.',
        )
    found = ClusterEnv.auto_detect_unset_distributed_params(*given, None, None, int(timeout))
    _check(found[1], found[2])
    kind = present[0].__name__
    return found[0], found[1], found[2], names.get(kind, kind)


def _check(processes: Any, process: Any) -> None:
    if not (isinstance(processes, int) and isinstance(process, int) and 0 <= process < processes):
        raise LabError(f"Process {process} of {processes} does not exist.", hint="Processes count from 0.")


def _take_roll(port: int, processes: int, timeout: float) -> str:
    """Process 0's side. Returns what is wrong, or nothing; the same is sent to all that have come."""
    deadline = time.monotonic() + timeout
    present: set[int] = set()
    peers: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen(port))
        verdict = ""
        while len(present) < processes - 1 and not verdict:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                peers.append(stack.enter_context(server.accept()[0]))
            except TimeoutError:
                verdict = _missing(present, processes, timeout)
                break
            verdict = _admit(peers[-1], present, processes)
        for peer in peers:
            with contextlib.suppress(OSError):  # a peer that has gone meanwhile is JAX's to notice
                peer.sendall(json.dumps({"verdict": verdict}).encode() + b"\n")
        return verdict


def _admit(peer: socket.socket, present: set[int], processes: int) -> str:
    peer.settimeout(10)
    said = _receive(peer)
    if said is None:  # not one of ours: a port scanner, a health check
        return ""
    index, count = int(said.get("process", -1)), int(said.get("processes", -1))
    if count != processes:
        return f"Process {index} expects {count} processes, process 0 expects {processes}."
    if index in present or index == 0:
        return f"Two processes call themselves process {index}."
    present.add(index)
    return ""


def _missing(present: set[int], processes: int, timeout: float) -> str:
    gone = [i for i in range(1, processes) if i not in present]
    many = f"Processes {', '.join(map(str, gone))}" if len(gone) > 1 else f"Process {gone[0]}"
    did = f"did not come within {timeout:g} s"
    return f"{many} of {processes} {did} ({len(present) + 1} of {processes} are here)."


def _report(host: str, port: int, processes: int, process: int, timeout: float) -> str:
    """The side of all others."""
    deadline = time.monotonic() + timeout
    message = json.dumps({"process": process, "processes": processes}).encode() + b"\n"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), 0.1)) as connection:
                connection.sendall(message)
                # Process 0 waits as long as we do, and may have begun later.
                connection.settimeout(timeout + 10)
                answer = _receive(connection)
        except OSError:
            answer = None
        if answer is not None:
            return str(answer.get("verdict", ""))
        time.sleep(_RETRY_S)
    return f"Process 0 of {processes} (the coordinator, {host}:{port}) did not answer within {timeout:g} s."


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """One JSON line, or None."""
    try:
        with connection.makefile("rb") as stream:
            value = json.loads(stream.readline(4096) or b"null")
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _listen(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    try:
        if both:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise LabError(
            f"Process 0 cannot listen on port {port}: {error.strerror}.",
            hint="Another program, or an earlier run, holds it: end that, or choose another port.",
        ) from error
