"""The small process that runs sandboxed jobs: a script of its own, started by `sandbox.Sandbox`.

It reads one JSON request a line from stdin and answers with one JSON line. A process of its own, because a job has to
be forked into new namespaces, and forking a process with JAX's threads and memory is slow and unsafe. Only the standard
library is used and nothing of labkit is imported, so it starts in about 20 ms. It ends, and kills its job, when stdin
is closed: whatever happens to labkit, no job outlives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import selectors
import signal
import sys
import time

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
NOBODY = 65534
ROOT = "/sys"  # hidden under the job's own root: exists on every Linux, and holds no program that a job could need
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")

# Made here and not in each job, whose process would look the functions up anew.
_LIBC = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    _CALLS = (_LIBC.prctl, _LIBC.mount, _LIBC.syscall)


def main() -> None:
    """Answer requests until stdin is closed; the one argument says how to isolate, as JSON."""
    isolation = json.loads(sys.argv[1])
    if not isolation["namespace"]:
        import tempfile  # noqa: F401  now, since `nobody` may not read Python's folder
    if isolation["drop_user"]:
        _become_nobody()
    if isolation["namespace"]:
        _leave_host(isolation["tools"])
    gc.disable()  # little is made here, and a collection would copy pages that forked processes share
    if sys.platform == "linux":
        _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what leaves its process group becomes our child
    for raw in iter(sys.stdin.buffer.readline, b""):
        answer = serve(json.loads(raw))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def serve(request: dict) -> dict:
    """Run the request's commands one after another until one fails, and tell how that went."""
    if request["namespace"]:
        return _run_job(request, None)
    import tempfile  # not at the top: it maps libraries such as OpenSSL, which makes every fork slower

    with tempfile.TemporaryDirectory(prefix="labkit-job-", ignore_cleanup_errors=True) as home:
        return _run_job(request, home)


def _run_job(request: dict, home: str | None) -> dict:
    pipes = [os.pipe() for _ in range(3)]
    start = time.monotonic()
    job = _start(request, home, pipes)
    for _, write in pipes:
        os.close(write)
    captured, stopped = _watch(job, [read for read, _ in pipes], request)
    return _answer(captured, stopped, time.monotonic() - start)


def _answer(captured: list[bytes], stopped: str, seconds: float) -> dict:
    stdout, stderr, status = (part.decode("utf-8", "replace") for part in captured)
    report = json.loads(status.splitlines()[-1]) if status else {"done": 0, "status": 0, "cpu": False, "last": False}
    return {
        "stdout": stdout,
        "stderr": stderr,
        "done": report["done"],
        "status": report["status"] if report["last"] else -signal.SIGKILL,
        "stopped": stopped or ("cpu" if report["cpu"] else ""),
        "seconds": seconds,
    }


# The parent's side


def _watch(job: int, reads: list[int], request: dict) -> tuple[list[bytes], str]:
    """Collect stdout, stderr and the status report; kill the job at its wall time, or when it prints too much."""
    captured = [bytearray() for _ in reads]
    stopped = ""
    with selectors.DefaultSelector() as selector:
        for index, fd in enumerate(reads):
            selector.register(fd, selectors.EVENT_READ, index)
        selector.register(0, selectors.EVENT_READ, None)
        end = time.monotonic() + request["wall_seconds"]
        while not stopped and len(selector.get_map()) > 1 and b'"last": true' not in captured[2]:
            ready = selector.select(max(0.0, end - time.monotonic()))
            stopped = _collect(selector, ready, captured, request["output_bytes"])
            if not ready:
                stopped = "wall"
        _kill(job)
        if not stopped:
            _drain(selector, captured, request["output_bytes"])
    for fd in reads:
        os.close(fd)
    return [bytes(part[: request["output_bytes"]]) for part in captured], stopped


def _collect(selector: selectors.BaseSelector, ready: list, captured: list[bytearray], most: int) -> str:
    for key, _ in ready:
        if key.data is None:  # stdin speaks during a job only when labkit has gone
            return "abandoned"
        chunk = os.read(key.fd, 65536)
        if not chunk:
            selector.unregister(key.fd)
        captured[key.data] += chunk
        if len(captured[key.data]) > most:
            return "output"
    return ""


def _drain(selector: selectors.BaseSelector, captured: list[bytearray], most: int) -> None:
    """What is still in the pipes of an ended job; a process that got away may hold them open, so wait little."""
    selector.unregister(0)
    while selector.get_map() and (ready := selector.select(0.05)):
        if _collect(selector, ready, captured, most):
            return


def _kill(job: int) -> None:
    """The job's whole process group; in a namespace its first process takes all others with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(job, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(job, signal.SIGKILL)
    os.waitpid(job, 0)
    while orphans := _children():
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
            os.waitpid(orphan, 0)


def _children() -> list[int]:
    """Processes that were handed to us when their parent ended; unknown where there is no /proc."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []


# The child's side


def _start(request: dict, home: str | None, pipes: list[tuple[int, int]]) -> int:
    """A new process, in namespaces of its own if asked, that runs the job and ends; its id."""
    job = _clone(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC) if request["namespace"] else os.fork()
    if job == 0:
        _child(request, home, pipes)
    return job


def _clone(flags: int) -> int:
    """Like fork, into new namespaces: one call less and one process less than fork, unshare and fork."""
    number = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "no namespaces on this kind of machine")
    job = _LIBC.syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if job < 0:
        raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
    return job


def _child(request: dict, home: str | None, pipes: list[tuple[int, int]]) -> None:
    """Become a session of its own, build the job's world and run its commands; never returns."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for target, (_, write) in enumerate(pipes[:2], start=1):
            os.dup2(write, target)
        if request["namespace"]:
            _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _mount("none", ROOT + "/work", "tmpfs", MS_NOSUID | MS_NODEV, f"size={request['disk_bytes']},mode=755")
            os.chroot(ROOT)
        _run_all(request, home or "/work", pipes[2][1])
    except OSError as error:
        os.write(2, f"sandbox: {error}\n".encode())
    finally:
        os._exit(0)


def _become_nobody() -> None:
    """For good: root has no part in a job, and as root a limit of processes would not count."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    if sys.platform == "linux":
        _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self stays root's, and no user can be mapped


def _call(name: str, *arguments: object) -> None:
    """A C library call that raises `OSError` when it fails."""
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _leave_host(tools: list[str]) -> None:
    """Once for all jobs: a user namespace, no network, and a root that holds the system's programs and nothing else.

    The user inside is an ordinary one, so that exec drops the rights that this process has in its namespaces.
    """
    user, group = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _build_root(tools)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind and kind.encode(), flags, options.encode())


def _build_root(tools: list[str]) -> None:
    """At `ROOT`, read-only: programs, /dev/null, and an empty /work over which each job mounts its own."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("none", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for folder in dict.fromkeys((*SYSTEM, *tools)):
        if os.path.islink(folder):
            os.symlink(os.readlink(folder), ROOT + folder)
        elif os.path.isdir(folder) and not os.path.isdir(ROOT + folder):
            os.makedirs(ROOT + folder)
            _mount(folder, ROOT + folder, None, MS_BIND | MS_REC)
            _mount("none", ROOT + folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | _locked_flags(folder))
    for folder in ("/dev", "/work"):
        os.makedirs(ROOT + folder)
    os.symlink("work", ROOT + "/tmp")
    os.close(os.open(ROOT + "/dev/null", os.O_CREAT, 0o666))
    _mount("/dev/null", ROOT + "/dev/null", None, MS_BIND)
    _mount("none", ROOT, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _locked_flags(folder: str) -> int:
    """Flags of the original mount that a remount in a user namespace has to repeat."""
    flags = os.statvfs(folder).f_flag
    known = {
        os.ST_NOSUID: MS_NOSUID,
        os.ST_NODEV: MS_NODEV,
        os.ST_NOEXEC: 8,
        os.ST_NOATIME: 1024,
        os.ST_RELATIME: 1 << 21,
    }
    return sum(mount for found, mount in known.items() if flags & found)


def _run_all(request: dict, home: str, report: int) -> None:
    """Write the files, run the commands in turn, and report after each how many succeeded and how it ended."""
    os.chdir(home)
    for name, text in request["files"].items():
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, text.encode("utf-8", "replace"))
        os.close(file)
    for limit, value in _limits(request):
        resource.setrlimit(limit, value)
    environment = request["environment"] | {"HOME": home, "TMPDIR": home}
    for index, command in enumerate(request["commands"], start=1):
        before = _cpu_seconds()
        status = _run(command, environment)
        cpu = status == -signal.SIGXCPU or (status != 0 and _cpu_seconds() - before >= 0.9 * request["cpu_seconds"])
        last = status != 0 or index == len(request["commands"])
        ended = {"done": index - (status != 0), "status": status, "cpu": cpu, "last": last}
        os.write(report, json.dumps(ended).encode() + b"\n")
        if last:
            return


def _run(command: list[str], environment: dict[str, str]) -> int:
    """One command's exit status, negative for a signal. It inherits this process's limits."""
    default = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores these two
    child = os.posix_spawn(command[0], command, environment, setsigdef=default)
    while True:
        ended, status = os.waitpid(-1, 0)  # the first process of a namespace also inherits orphans
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _limits(request: dict) -> list[tuple[int, tuple[int, int]]]:
    cpu = request["cpu_seconds"]
    limits = [
        (resource.RLIMIT_CPU, (cpu, cpu + 1)),
        (resource.RLIMIT_FSIZE, (request["file_bytes"],) * 2),
        (resource.RLIMIT_CORE, (0, 0)),
        (resource.RLIMIT_NOFILE, (64, 64)),
    ]
    if request["limit_memory"]:
        limits.append((resource.RLIMIT_AS, (request["memory_bytes"],) * 2))
    if request["limit_processes"]:
        limits.append((resource.RLIMIT_NPROC, (request["processes"],) * 2))
    return limits


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
