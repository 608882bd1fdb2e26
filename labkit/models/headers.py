"""Headers of safetensors files, read strictly: a file that lies is refused before any of its tensors is read.

The format (github.com/huggingface/safetensors, README, "Format"): 8 bytes of length, a JSON header, and the tensors one
after another without holes. Standard library only; the header is all that is read, so a file of 60 GB takes no longer.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

from labkit.errors import LabError

MAX_HEADER = 100_000_000  # bytes; safetensors' own limit
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E5M2": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
_AGAIN = "Download or save the weights again."


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Where one tensor of a safetensors file is: `start` and `end` are byte offsets in `file`."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read(file: Path) -> list[TensorInfo]:
    """The tensors of one file, in order of their bytes.

    Raises:
        LabError: naming the file, and the tensor where it is one: a header that is cut off, huge or no JSON, a name
            twice, an unknown dtype, a shape that is none, bytes that are not those of shape and dtype, tensors that
            overlap or leave a hole, a file that is shorter or longer than its header says.
    """
    size = file.stat().st_size
    header, begin = _json(file, size)
    infos = [_info(file, begin, name, entry) for name, entry in header.items()]
    infos.sort(key=lambda info: (info.start, info.end))
    _refuse_gaps(file, infos, begin, size)
    return infos


def metadata(file: Path) -> dict[str, str]:
    """What the file says about itself under `__metadata__`; empty where it says nothing."""
    size = file.stat().st_size
    return dict(_object(file, _raw(file, size)).get("__metadata__", {}))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON file that holds an object; a `LabError` for any other."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(f"{path} cannot be read as JSON: {error}.", hint="Copy it again.") from error
    if not isinstance(found, dict):
        raise LabError(f"{path} holds no JSON object.", hint="Copy it again.")
    return found


def _json(file: Path, size: int) -> tuple[dict[str, Any], int]:
    """The header without its metadata, and the byte at which the tensors begin."""
    raw = _raw(file, size)
    found = _object(file, raw)
    about = found.pop("__metadata__", {})
    if not (isinstance(about, dict) and all(isinstance(value, str) for value in about.values())):
        raise LabError(f"{file}: __metadata__ of its header is no table of strings.", hint=_AGAIN)
    return found, 8 + len(raw)


def _raw(file: Path, size: int) -> bytes:
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0] if size >= 8 else 0
        if not 2 <= length <= size - 8:
            raise _incomplete(file, f"it has {size:,} bytes, its header {length:,}")
        if length > MAX_HEADER:
            raise LabError(f"{file}: a header of {length:,} bytes is above the limit of {MAX_HEADER:,}.", hint=_AGAIN)
        return stream.read(length)


def _object(file: Path, raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            raise LabError(f"{file}: the header names {double} twice.", hint=_AGAIN)
        return found

    try:
        found = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets without end
        raise _incomplete(file, str(error)) from error
    if not isinstance(found, dict):
        raise _incomplete(file, "it is no JSON object")
    return found


def _incomplete(file: Path, why: str) -> LabError:
    return LabError(
        f"{file} is not a complete safetensors file: its header cannot be read ({why}).",
        hint=_AGAIN,
    )


def _info(file: Path, begin: int, name: str, entry: Any) -> TensorInfo:
    def wrong(what: str) -> LabError:
        return LabError(f"Tensor {name} of {file} {what}.", hint=_AGAIN)

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong("has a header entry that is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f"has the unknown dtype {dtype!r}")
    if not _sizes(shape):
        raise wrong(f"has the shape {shape!r}, which is none")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"has data_offsets {offsets!r}, which are no range")
    bits = math.prod(shape) * BITS[dtype]
    if bits != (offsets[1] - offsets[0]) * 8:
        raise wrong(f"has {offsets[1] - offsets[0]:,} bytes in the file, but {shape} of {dtype} are {bits / 8:,.0f}")
    return TensorInfo(name, file, dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _sizes(value: Any) -> bool:
    """A list of whole numbers that a 64-bit file can mean."""
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**63 for x in value)


def _refuse_gaps(file: Path, infos: list[TensorInfo], begin: int, size: int) -> None:
    for info in infos:
        if info.end > size:
            raise LabError(
                f"{file} is truncated: tensor {info.name} ends at byte {info.end:,}, the file has {size:,}.",
                hint=_AGAIN,
            )
    end, before = begin, "the header"
    for info in infos:
        if info.start != end:
            what = "overlaps" if info.start < end else "leaves a hole after"
            raise LabError(f"Tensor {info.name} of {file} {what} {before}.", hint=_AGAIN)
        end, before = info.end, info.name
    if end != size:
        raise LabError(f"{file} has {size - end:,} bytes after its last tensor, {before}.", hint=_AGAIN)
