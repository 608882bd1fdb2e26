"""What ran out when a compile or a load failed: the compiler's and the runtime's messages, read.

Forms: "E1000: CompileTimeHbmOom" and its older wording, the table of "memory space hbm" with the largest allocations,
scoped VMEM and SMEM ("E1001" and its wording without a code), and the allocation that fails when a program is loaded.
"""

from __future__ import annotations

import dataclasses
import re

from labkit.records import Record

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([0-9.]+)\s*([BKMGT]?)i?B?\b"
# Each form: the memory (unless the message names it), when, and what was needed and there, with their units.
_FORMS = (
    ("hbm", "compile", rf"total memory required for [^(]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    ("", "compile", rf"memory space (?P<space>hbm|vmem|smem)\. Used {_SIZE} of {_SIZE}"),
    ("hbm", "load", rf"Attempting to (?:reserve|allocate) {_SIZE}.*?There are {_SIZE} free"),
    ("vmem", "compile", rf"[Ss]coped vmem .*?{_SIZE}.*?limit {_SIZE}"),
    ("", "compile", r"Allocation \(size=(\d+)()\) would exceed memory \(size=(\d+)()\).*?space=(?P<space>vmem|smem)"),
)
_BUFFER = re.compile(
    r"\d+\. Size: (?P<size>\S+)\s*\n(?P<body>.*?)(?:={5,}|\Z)",
    re.DOTALL,
)
_CODE = re.compile(r"\b(E\d{4}): (\w+)")
_WHERE = {"hbm": "HBM", "vmem": "VMEM", "smem": "SMEM"}


@dataclasses.dataclass(frozen=True)
class Buffer(Record):
    """One allocation: its bytes with padding, its shape in HLO's words, and where in the program it comes from."""

    bytes: int
    shape: str
    op_name: str
    source: str = ""

    def __str__(self) -> str:
        where = self.source or self.op_name or "unnamed"
        return f"{self.bytes / 2**20:,.0f} MiB {self.shape} from {where}"


@dataclasses.dataclass(frozen=True)
class OutOfMemory(Record):
    """Which memory ("hbm", "vmem", "smem") ran out, when ("compile", "load"), and by how much; sizes are bytes.

    `limit` is what a program may use; of a load it is what was still free. `buffers` are the largest ones, where the
    message lists them.
    """

    memory: str
    when: str
    needed: int
    limit: int
    code: str
    buffers: tuple[Buffer, ...]
    message: str

    @property
    def over(self) -> int:
        """Bytes that are too many."""
        return self.needed - self.limit

    def __str__(self) -> str:
        what = f"Out of {_WHERE[self.memory]} at {self.when}: {_gib(self.needed)} needed, {_gib(self.limit)} there"
        largest = f"; largest: {self.buffers[0]}" if self.buffers else ""
        return f"{what}, {_gib(self.over)} too many{largest}"


def diagnose(message: str) -> OutOfMemory | None:
    """What ran out, or None if the message is about something else."""
    for memory, when, pattern in _FORMS:
        found = re.search(pattern, message, re.DOTALL)
        if found:
            space = memory or found["space"]
            needed, limit = _sizes(found)
            code = _CODE.search(message)
            return OutOfMemory(space, when, needed, limit, code[1] if code else "", _buffers(message), message)
    return None


def _buffers(message: str) -> tuple[Buffer, ...]:
    """The table of largest allocations, as older compilers print it."""
    return tuple(_buffer(found["size"], found["body"]) for found in _BUFFER.finditer(message))


def _buffer(size: str, body: str) -> Buffer:
    def field(pattern: str) -> str:
        found = re.search(pattern, body)
        return found[1] if found else ""

    number = re.fullmatch(_SIZE, size)
    line = field(r"source_line=(\d+)")
    source = field(r'source_file="([^"]*)"') + (f":{line}" if line else "")
    return Buffer(
        _bytes(number[1], number[2]) if number else 0, field(r"Shape: (\S+)"), field(r'op_name="([^"]*)'), source
    )


def _sizes(found: re.Match[str]) -> tuple[int, int]:
    """The two sizes of a form, whether or not a memory is named between them."""
    named = found.re.groupindex.get("space")
    values = [value for i, value in enumerate(found.groups(), start=1) if i != named]
    return _bytes(values[0], values[1]), _bytes(values[2], values[3])


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if abs(size) >= 2**28 else f"{size / 2**20:.2f} MiB"
