"""Bytes of arrays on one device: logical, and with the padding of the TPU's tiles. Standard library only."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

ITEM_BYTES = {"float32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "bool": 1}
_LANES, _SUBLANES = 128, 8
_LINE = 1024  # elements in a tile of a vector
_SMALLEST = 512  # bytes


def nbytes(shape: Sequence[int], dtype: str) -> int:
    """Logical bytes."""
    return math.prod(shape) * ITEM_BYTES[dtype]


@functools.lru_cache(maxsize=65536)
def padded_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes in the layout that the TPU compiler gives to an argument of a program.

    A tile is 8 x 128 elements of the last two dimensions of the layout, with fewer rows (a power of two, at least those
    that share a 32-bit word) where there are fewer. The compiler orders the dimensions so that least is padded, so a
    tall `[5376, 16]` costs nothing. A vector is padded to 1024 elements, or to the next power of two and 512 bytes.
    Tiles of 16 x 128 (bfloat16) and 32 x 128 (int8) appear only where they pad nothing more.
    Measured on libtpu 0.0.42.1 for v5e, v5p, v6e and tpu7x; tests/test_mesh.py has the values.
    """
    item = ITEM_BYTES[dtype]
    if len(shape) < 2:
        return _vector(math.prod(shape), item)
    total = math.prod(shape)
    pairs = ((row, lane) for row in range(len(shape)) for lane in range(len(shape)) if row != lane)
    tiled = (
        total // (shape[row] * shape[lane]) * _rows(shape[row], item) * _up(shape[lane], _LANES) for row, lane in pairs
    )
    return min(tiled) * item if total else 0


def _vector(size: int, item: int) -> int:
    tile = min(_LINE, max(_power_of_two(size), _SMALLEST // item))
    return _up(size, tile) * item


def _rows(size: int, item: int) -> int:
    packed = 4 // item if item < 4 else 1
    return _up(size, min(_SUBLANES, max(_power_of_two(size), packed)))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 1 else 1
