"""The bytes and offsets of Arrow's binary arrays, as NumPy sees them, and back."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

Octets = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Column = Any
"""An Arrow array of any type: the stubs know arrays by their scalars only, and columns differ."""


def offsets_and_octets(array: pa.Array[Any]) -> tuple[Numbers, Octets]:
    """Where each value begins and the last one ends, in the bytes beside. Null values may have
    bytes too: ask `is_valid`."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(len(array) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    numbers = np.frombuffer(cast(Any, offsets), dtype=np.int32)
    octets = np.frombuffer(cast(Any, b"" if data is None else data), dtype=np.uint8)
    return numbers[array.offset :][: len(array) + 1].astype(np.int64), octets


def binary_array(starts: Numbers, octets: Octets, null: Mask | None = None) -> pa.BinaryArray:
    """The values that lie between one start and the next."""
    validity = None
    if null is not None and null.any():
        validity = pa.py_buffer(cast(Any, np.packbits(~null, bitorder="little")))
    buffers = [
        validity,
        pa.py_buffer(cast(Any, starts.astype(np.int32))),
        pa.py_buffer(cast(Any, np.ascontiguousarray(octets))),
    ]
    return cast(pa.BinaryArray, pa.Array.from_buffers(pa.binary(), len(starts) - 1, buffers))


def without_prefix(array: pa.BinaryArray, size: int) -> pa.BinaryArray:
    """The values without their first bytes; a value that has fewer is left empty. Arrow's own
    `binary_slice` fails on values that are shorter."""
    offsets, octets = offsets_and_octets(array)
    octets, offsets = octets[offsets[0] : offsets[-1]], offsets - offsets[0]
    cut = np.minimum(np.diff(offsets), size)
    kept = np.ones(len(octets), dtype=bool)
    for step in range(size):
        kept[offsets[:-1][cut > step] + step] = False
    starts = offsets - np.concatenate(([0], np.cumsum(cut)))
    return binary_array(starts, octets[kept], ~valid_rows(array))


def valid_rows(array: pa.Array[Any]) -> Mask:
    """Which values are not null."""
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
