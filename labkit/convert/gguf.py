"""The header of a GGUF file (github.com/ggml-org/ggml, docs/gguf.md): what llama.cpp's checkpoints hold.

Only the header is read, and every number in it is checked against the file before it is believed. Standard library
only; the block sizes are those of ggml (ggml-common.h).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from labkit.errors import LabError

# type number: name, values of a block, bytes of a block
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SHOWN = 8  # values of an array that are kept
_MAX_DIMS = 8


@dataclass(frozen=True)
class Entry:
    """One tensor of the header; `shape` is the row-major one, the reverse of the file's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int


def read(path: Path) -> tuple[list[Entry], dict[str, str]]:
    """The tensors of a GGUF file, and its metadata as text (long arrays as their length).

    Raises:
        LabError: naming the file, and the tensor where it is one, for a header that cannot be believed.
    """
    with path.open("rb") as file:
        stream = _Stream(file, path)
        if stream.take(4) != b"GGUF":
            raise stream.wrong("does not begin with GGUF")
        version, tensors, pairs = stream.number("<I"), stream.number("<Q"), stream.number("<Q")
        if version not in (2, 3):
            raise stream.wrong(f"has version {version}; 2 and 3 are known")
        about = dict(_pair(stream) for _ in range(stream.count(pairs, 13)))
        entries = [_entry(stream) for _ in range(stream.count(tensors, 24))]
        _check(stream, entries, about)
    shown = {key: f"{len(value)} values" if isinstance(value, range) else str(value) for key, value in about.items()}
    return entries, shown


class _Stream:
    """A file whose every read is checked against its size."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path, self.size = file, path, path.stat().st_size

    def wrong(self, what: str) -> LabError:
        return LabError(f"{self.path} {what}.", hint="Download it again; labkit reads headers of GGUF 2 and 3.")

    def take(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise self.wrong(f"is truncated: {count:,} bytes are missing after byte {self.file.tell():,}")
        return self.file.read(count)

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", errors="replace")

    def count(self, number: int, least: int) -> int:
        """A number of things of at least `least` bytes each, as far as the file can have so many."""
        if number * least > self.size - self.file.tell():
            raise self.wrong(f"says that {number:,} entries follow, for which it is too short")
        return number


def _pair(stream: _Stream) -> tuple[str, Any]:
    name = stream.text()
    return name, _value(stream, stream.number("<I"), name)


def _value(stream: _Stream, kind: int, name: str) -> Any:
    if kind in _SCALARS:
        return stream.number(_SCALARS[kind])
    if kind == _STRING:
        return stream.text()
    if kind != _ARRAY:
        raise stream.wrong(f"has {name} of the unknown kind {kind}")
    inner, length = stream.number("<I"), stream.number("<Q")
    if inner in _SCALARS:
        raw = stream.take(length * struct.calcsize(_SCALARS[inner]))
        return range(length) if length > _SHOWN else [x for (x,) in struct.iter_unpack(_SCALARS[inner], raw)]
    if inner != _STRING:
        raise stream.wrong(f"has {name} with an array of the kind {inner}, which is not known")
    words = [stream.text() for _ in range(stream.count(length, 8))]
    return range(length) if length > _SHOWN else words


def _entry(stream: _Stream) -> Entry:
    name, dims = stream.text(), stream.number("<I")
    if dims > _MAX_DIMS:
        raise stream.wrong(f"gives tensor {name} {dims:,} dimensions")
    shape = tuple(stream.number("<Q") for _ in range(dims))[::-1]
    kind, offset = stream.number("<I"), stream.number("<Q")
    if kind not in TYPES:
        raise stream.wrong(f"gives tensor {name} the unknown type {kind}")
    dtype, values, size = TYPES[kind]
    if shape and shape[-1] % values:
        raise stream.wrong(f"gives tensor {name} rows of {shape[-1]:,} values, but {dtype} has blocks of {values}")
    return Entry(name, dtype, shape, math.prod(shape) // values * size, offset)


def _check(stream: _Stream, entries: list[Entry], about: dict[str, Any]) -> None:
    """Every tensor once, aligned, within the file, and none over another."""
    align = about.get("general.alignment", 32)
    if not isinstance(align, int) or align < 8 or align % 8:
        raise stream.wrong(f"has an alignment of {align}")
    begin = -(-stream.file.tell() // align) * align
    end, before, seen = 0, "the header", set()
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.name in seen:
            raise stream.wrong(f"names tensor {entry.name} twice")
        if entry.offset < end or entry.offset % align:
            raise stream.wrong(f"has tensor {entry.name} at offset {entry.offset:,}, which overlaps {before}")
        end, before = entry.offset + entry.nbytes, entry.name
        if begin + end > stream.size:
            raise stream.wrong(f"is truncated: tensor {entry.name} ends at byte {begin + end:,} of {stream.size:,}")
        seen.add(entry.name)
