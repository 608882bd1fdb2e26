"""Safetensors files written and read tensor by tensor, so that memory holds one tensor and not the model.

The libraries' own `save_file` wants all tensors of a file in memory. The format (github.com/huggingface/safetensors,
README, "Format") is a header length of 8 bytes, a JSON header padded to 8 bytes, and the tensors one after another.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import xxhash
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open

from labkit.convert.folders import write_json
from labkit.errors import LabError, nearest
from labkit.models import headers

T = TypeVar("T")
DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.float16): "F16",
    np.dtype(np.int8): "I8",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
}

_EXPONENT = {np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F80), np.dtype(np.float16): np.uint16(0x7C00)}
_CHUNK = 2**22  # values
_BUFFER = 2**20  # bytes


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


Digests = dict[str, str]  # XXH3 (128 bits) of each tensor's bytes: finds faults, ten times as fast as SHA-256
Produce = Callable[[str], Iterable[np.ndarray]]  # the pieces of a tensor by its name


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype of a name such as "bfloat16"; a `LabError` for one that is not written."""
    if name not in DTYPES:
        raise LabError(f"There is no dtype {name!r} to write.", hint=f"Nearest: {nearest(name, list(DTYPES))}.")
    return np.dtype(DTYPES[name])


def write(folder: Path, stem: str, plan: Iterable[Planned], produce: Produce, max_shard: str) -> Digests:
    """Write the planned tensors as `<stem>.safetensors`, or as shards with an index, piece by piece as they are made.

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


def _write_file(path: Path, tensors: list[Planned], produce: Produce) -> Digests:
    tensors = sorted(tensors, key=lambda planned: -planned.dtype.itemsize)  # wider first: every offset stays aligned
    hashes = {tensor.name: xxhash.xxh3_128() for tensor in tensors}
    written = dict.fromkeys(hashes, 0)
    with path.open("wb") as file:
        file.write(_header(tensors))
        for tensor, raw in _ahead((x, as_bytes(piece)) for x in tensors for piece in produce(x.name)):
            written[tensor.name] += raw.nbytes
            if written[tensor.name] > tensor.nbytes:
                break
            hashes[tensor.name].update(raw)
            file.write(raw)
    for tensor in tensors:
        if written[tensor.name] != tensor.nbytes:
            raise LabError(f"{tensor.name} gave {written[tensor.name]:,} bytes, planned were {tensor.nbytes:,}.")
    return {name: made.hexdigest() for name, made in hashes.items()}


def _ahead(pieces: Iterator[T]) -> Iterator[T]:
    """The same pieces, the next one in the making while this one is written."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)
            yield piece


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
    """Read every tensor back; a `LabError` names the first that is not as written.

    Safetensors' own reader has to take the files. The bytes are read plainly: its NumPy side has no float8.
    """
    left = dict(digests)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="numpy") as file:
            known = set(file.keys())
        for info in headers.read(path):
            written = left.pop(info.name, None)
            if written is None or info.name not in known or _read_digest(info) != written:
                raise LabError(f"{info.name} of {path} is not what was written.", hint="Check the disk.")
    if left:
        raise LabError(f"{next(iter(left))} is in no file of {folder}.", hint="Check the disk.")


def _read_digest(info: headers.TensorInfo) -> str:
    found, buffer = xxhash.xxh3_128(), memoryview(bytearray(_BUFFER))
    with info.file.open("rb", buffering=0) as file:
        file.seek(info.start)
        left = info.end - info.start
        while left and (read := file.readinto(buffer[: min(left, _BUFFER)])):
            found.update(buffer[:read])
            left -= read
    return found.hexdigest()


def refuse_nonfinite(name: str, bad: int, size: int, dtype: Any) -> None:
    """A `LabError` with the tensor's name if some of its values are NaN or infinite."""
    if bad:
        raise LabError(
            f"{name} has {bad:,} of {size:,} values that are not finite as {np.dtype(dtype).name}.",
            hint="Find the step that made them; allow_nonfinite=True writes them all the same.",
        )


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
    """One digest of all tensors: of their names and their own, in order of name."""
    listed = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return xxhash.xxh3_128(listed.encode()).hexdigest()
