"""Run programs on text that nobody has read: limits, namespaces where the system has them, nothing left behind."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from labkit.errors import LabError
from labkit.records import Record

_LAUNCHER = Path(__file__).with_name("launcher.py")
_SAFE_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"


Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """What one job may use: seconds, bytes, and a number of processes.

    `cpu_seconds` holds for each command, `wall_seconds` for the whole job. `disk_bytes` bounds all files together
    where there is a mount namespace, `file_bytes` each file everywhere.
    """

    cpu_seconds: int = 3
    wall_seconds: float = 30.0
    memory_bytes: int = 512 * 2**20
    file_bytes: int = 16 * 2**20
    disk_bytes: int = 64 * 2**20
    output_bytes: int = 2**20
    processes: int = 32


@dataclass(frozen=True)
class Finished:
    """How a job ended.

    `done` commands succeeded; `status` is the last one's exit status, negative for a signal. `stopped` is "" or why
    the job was ended: "cpu", "wall" or "output". `stdout` and `stderr` hold at most `Limits.output_bytes` each.
    """

    done: int
    status: int
    stopped: str
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Protections(Record):
    """The protections in force on this machine for code that a model wrote.

    `limits` and `namespace` name what is limited and what is isolated; `user` is who the job runs as: "own" or
    "nobody". The static check is in force everywhere; where `namespace` is empty it is all that keeps a candidate
    from files, and `note` says so.
    """

    limits: tuple[str, ...]
    namespace: tuple[str, ...]
    static_check: bool
    user: str
    note: str

    def __str__(self) -> str:
        kinds = [name for name in ("limits", "namespace", "static_check") if getattr(self, name)]
        return f"protections in force: {', '.join(kinds)}{'; ' + self.note if self.note else ''}"


@dataclass(frozen=True)
class _Mode:
    """One way to run jobs; `_mode` finds the strongest that works here."""

    drop_user: bool
    namespace: bool
    limit_processes: bool
    limit_memory: bool = True


class Sandbox:
    """One job at a time, in the strongest isolation that this machine allows; a context manager, one for each thread.

    A job gets an empty directory of its own that is gone afterwards, no input, no environment variables, no network
    and no files of the host but its programs (where namespaces work), and the given limits. Its whole process group is
    killed at the end, at its time limit, and when this process ends in any way.
    """

    def __init__(self, mode: _Mode | None = None, programs: Sequence[str] = ("iverilog", "vvp")) -> None:
        """Args: `programs`: beside those of the system, what jobs may run, with all that is installed with them."""
        self._mode = mode or _mode()
        tools = sorted({_prefix(program(name)) for name in programs})
        isolation = {"drop_user": self._mode.drop_user, "namespace": self._mode.namespace, "tools": tools}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(isolation)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches labkit, which closes the sandbox in order
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox; a job that is running is killed."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def run(
        self, commands: Sequence[Sequence[str]], files: Mapping[str, str], limits: Limits | None = None
    ) -> Finished:
        """Run the commands in turn, until one fails, in a fresh directory that holds `files`.

        Args:
            commands: each a program and its arguments; a program without a slash is looked up on PATH.
            files: plain file name to text.
            limits: what the job may use.

        Raises:
            LabError: a program is not installed, a file name is not plain, or the sandbox cannot start jobs.
        """
        found = [[program(c[0]), *c[1:]] for c in commands]
        for name in files:
            if not name or set(name) - set(_SAFE_NAME) or name.startswith("."):
                raise LabError(f"The sandbox cannot hold a file called {name!r}.", hint="Use letters, digits, _ and -.")
        answer = self._ask(_request(found, files, limits or Limits(), self._mode))
        if answer["stderr"].startswith("sandbox: "):
            raise LabError(f"The sandbox could not start: {answer['stderr'].strip()}", hint="Run `labkit doctor`.")
        return Finished(**answer)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise LabError("The sandbox has no launcher.")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except (BrokenPipeError, ValueError) as error:
            raise LabError("The sandbox is closed.", hint="Open a new one.") from error
        if not reply:
            raise LabError(
                "The sandbox ended before its job did.", hint="Run it again; the machine may be out of memory."
            )
        return json.loads(reply)


def in_parallel(
    work: Callable[[Sandbox, Item], Result],
    items: Sequence[Item],
    *,
    workers: int | None = None,
    progress: Callable[[], object] = lambda: None,
) -> list[Result]:
    """`work(sandbox, item)` for each item, several at a time, results in the order of the items.

    Threads are enough, since the work is done by other processes. An error or Ctrl-C kills the jobs that run.

    Args:
        work: is called with a sandbox that nobody else uses meanwhile.
        items: what to work on.
        workers: jobs at a time; by default the cores of this process.
        progress: called in this thread as each item is done.
    """
    count = max(1, min(workers or cores(), len(items)))
    with contextlib.ExitStack() as stack:
        free: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        executor = ThreadPoolExecutor(count)
        stack.callback(executor.shutdown, wait=True)
        for _ in range(count):
            free.put(stack.enter_context(Sandbox()))
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)  # the first to run at the end

        def one(item: Item) -> Result:
            sandbox = free.get()
            try:
                return work(sandbox, item)
            finally:
                free.put(sandbox)

        futures = [executor.submit(one, item) for item in items]
        for future in as_completed(futures):
            future.result()
            progress()
        return [future.result() for future in futures]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _request(commands: list[list[str]], files: Mapping[str, str], limits: Limits, mode: _Mode) -> dict[str, Any]:
    return {
        **vars(limits),
        **vars(mode),
        "commands": commands,
        "files": {name: text.encode("utf-8", "replace").decode("utf-8") for name, text in files.items()},
        # Outside a namespace the limit counts all processes of `nobody`, those of other sandboxes too.
        "processes": limits.processes * (1 if mode.namespace else 16),
        "environment": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    }


def program(name: str) -> str:
    """The absolute path of a program; a `LabError` that says how to install it if it is missing."""
    found = shutil.which(name)
    if found is None:
        known = name in ("iverilog", "vvp")
        raise LabError(
            f"{name} is not installed, and no module can be judged without it."
            if known
            else f"{name} is not installed.",
            hint="Debian and Colab: apt-get install iverilog. macOS: brew install icarus-verilog. "
            "conda: conda install -c conda-forge iverilog."
            if known
            else "",
        )
    return os.path.abspath(found)


def _prefix(path: str) -> str:
    """The installation that a program belongs to: the folder above its bin; of a Homebrew keg, where all kegs are."""
    found = Path(path).resolve()
    kegs = next((folder for folder in found.parents if folder.name == "Cellar"), None)
    return str(kegs.parent if kegs else found.parent.parent)


def protections() -> Protections:
    """What keeps a hostile candidate harmless on this machine.

    Raises:
        LabError: iverilog is not installed.
    """
    mode = _mode()
    limits = ["cpu", "wall", "file_size", "output"]
    limits += ["memory"] if mode.limit_memory else []
    limits += ["processes"] if mode.limit_processes else []
    return Protections(
        limits=tuple(limits),
        namespace=("user", "mount", "process", "network", "ipc") if mode.namespace else (),
        static_check=True,
        user="nobody" if mode.drop_user else "own",
        note="" if mode.namespace else "no namespaces here: calls that touch files or the system are refused unread",
    )


@functools.cache
def _mode() -> _Mode:
    """The strongest mode in which a small module compiles and runs here."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    drops = (True, False) if root else (False,)
    linux = sys.platform == "linux"
    modes = [_Mode(drop, True, processes) for drop in drops for processes in (True, False) if linux]
    # Without a namespace the process limit counts all processes of the user, so it is only set for `nobody`.
    modes += [_Mode(drop, False, drop, memory) for drop in drops for memory in (True, False)]
    for mode in modes:
        if _works(mode):
            return mode
    raise LabError("iverilog is installed but does not run, even without a sandbox.", hint="Try `iverilog -V`.")


def _works(mode: _Mode) -> bool:
    commands = [[program("iverilog"), "-o", "x.vvp", "x.v"], [program("vvp"), "-n", "x.vvp"]]
    source = 'module x; initial $display("%0d", 6 * 7); endmodule\n'
    try:
        with Sandbox(mode) as sandbox:
            finished = sandbox.run(commands, {"x.v": source}, Limits(cpu_seconds=20))
    except LabError:  # this mode cannot start jobs; `_mode` tries the next
        return False
    return finished.stdout == "42\n"
