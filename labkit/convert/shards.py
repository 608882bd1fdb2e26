"""Safetensors files written and read tensor by tensor, so that memory holds one tensor and not the model.

The libraries' own `save_file` wants all tensors of a file in memory. The format (github.com/huggingface/safetensors,
README, "Format") is a header length of 8 bytes, a JSON header padded to 8 bytes, and the tensors one after another.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open

from labkit.convert.folders import write_json
from labkit.errors import LabError, nearest

DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_NAMES = {np.dtype(np.float32): "F32", np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(np.float16): "F16"}

_EXPONENT = {np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F80), np.dtype(np.float16): np.uint16(0x7C00)}
_CHUNK = 2**22  # values


@dataclass(frozen=True)
class Planned:
    """A tensor that is to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Digest:
    """Of one tensor's bytes: SHA-256 to name them by, CRC-32 to find a fault, at three times the speed."""

    sha256: str
    crc32: int


Digests = dict[str, Digest]


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype of a name such as "bfloat16"; a `LabError` for one that is not written."""
    if name not in DTYPES:
        raise LabError(f"There is no dtype {name!r} to write.", hint=f"Nearest: {nearest(name, list(DTYPES))}.")
    return np.dtype(DTYPES[name])


def write(
    folder: Path, stem: str, plan: Iterable[Planned], produce: Callable[[str], np.ndarray], max_shard: str
) -> Digests:
    """Write the planned tensors as `<stem>.safetensors`, or as shards with an index, each made when its turn comes.

    Returns:
        The digest of each tensor's bytes, by name.
    """
    planned = {tensor.name: tensor for tensor in plan}
    try:
        split = split_state_dict_into_shards_factory(
            planned,
            get_storage_size=lambda tensor: tensor.nbytes,
            get_storage_id=lambda tensor: None,
            filename_pattern=f"{stem}{{suffix}}.safetensors",
            max_shard_size=max_shard,
        )
    except ValueError as error:
        raise LabError(f"{max_shard!r} is no size of a file.", hint="Write it as in '5GB' or '500MB'.") from error
    digests: Digests = {}
    for file, names in split.filename_to_tensors.items():
        digests |= _write_file(folder / file, [planned[name] for name in names], produce)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / f"{stem}.safetensors.index.json", index)
    return digests


def _write_file(path: Path, tensors: list[Planned], produce: Callable[[str], np.ndarray]) -> Digests:
    tensors = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)  # wider first: every offset stays aligned
    digests = {}
    with path.open("wb") as file:
        file.write(_header(tensors))
        for tensor, raw, digest in _ahead(tensors, produce):
            digests[tensor.name] = digest
            file.write(raw)
    return digests


def _ahead(
    tensors: list[Planned], produce: Callable[[str], np.ndarray]
) -> Iterator[tuple[Planned, memoryview, Digest]]:
    """Each tensor with its bytes, the next one in the making while this one is written."""

    def make(tensor: Planned) -> tuple[Planned, memoryview, Digest]:
        raw = as_bytes(produce(tensor.name))
        if raw.nbytes != tensor.nbytes:
            raise LabError(f"{tensor.name} has {raw.nbytes:,} bytes, planned were {tensor.nbytes:,}.")
        return tensor, raw, Digest(hashlib.sha256(raw).hexdigest(), zlib.crc32(raw))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(make, tensors[0])
        for after in tensors[1:]:
            made, coming = coming, pool.submit(make, after)
            yield made.result()
        yield coming.result()


def _header(tensors: list[Planned]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        kind = _NAMES[tensor.dtype]
        entries[tensor.name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def check(folder: Path, digests: Digests) -> None:
    """Read every tensor back through safetensors' own reader; a `LabError` names the first that is not as written."""
    left = dict(digests)
    for path in sorted(folder.glob("*.safetensors")):
        for name in _names(path):
            written = left.pop(name, None)
            if written is None or _checksum(path, name) != written.crc32:
                raise LabError(f"{name} of {path} is not what was written.", hint="Check the disk.")
    if left:
        raise LabError(f"{next(iter(left))} is in no file of {folder}.", hint="Check the disk.")


def _names(path: Path) -> list[str]:
    with safe_open(str(path), framework="numpy") as file:
        return list(file.keys())


def _checksum(path: Path, name: str) -> int:
    """Opens the file anew, since what a mapped file has read so far stays in memory until it is closed."""
    with safe_open(str(path), framework="numpy") as file:
        return zlib.crc32(as_bytes(file.get_tensor(name)))


def count_nonfinite(values: np.ndarray) -> int:
    """How many values are NaN or infinite, a few megabytes at a time."""
    raw = np.ascontiguousarray(values).reshape(-1)
    return sum(_nonfinite(raw[start : start + _CHUNK]) for start in range(0, raw.size, _CHUNK))


def _nonfinite(values: np.ndarray) -> int:
    mask = _EXPONENT.get(values.dtype)
    if mask is None:
        return values.size - int(np.isfinite(values).sum())
    return int(((values.view(np.uint16) & mask) == mask).sum())  # several times as fast as ml_dtypes' isfinite


def digest(digests: Digests) -> str:
    """One SHA-256 of all tensors: of their names and their own, in order of name."""
    return hashlib.sha256("".join(f"{name} {digests[name].sha256}\n" for name in sorted(digests)).encode()).hexdigest()
