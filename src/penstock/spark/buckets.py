"""Buckets of keys: every key in one of them, the same one in every process.

Spark cannot be asked to shuffle what a Python source reads, so each task reads everything and
keeps the documents whose key falls into its bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.journal.collection import Collection

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0xD1B54A32D192ED03)
_FACTOR: Final = np.uint64(0x100000001B3)
"""Odd, so that no power of it is a multiple of 2**64."""


def check_key(collection: Collection, key: Sequence[str]) -> None:
    """A key to shuffle by is plain columns that compare exactly."""
    for name in key:
        index = collection.schema.get_field_index(name)
        if index < 0:
            raise ConfigurationError(
                f"option 'shuffle_key': collection {collection.name!r} has no column {name!r}; "
                f"it has {', '.join(collection.schema.names)}"
            )
        kind = collection.schema.field(index).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise ConfigurationError(
                f"option 'shuffle_key': column {name!r} is {kind}; choose a plain value that "
                "compares exactly"
            )


def in_bucket(
    columns: Sequence[pa.Array[Any]], bucket: int, buckets: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row's key, given as columns, falls into the bucket."""
    hashes = np.full(len(columns[0]), _SEED)
    for column in columns:
        hashes = _mix(hashes * np.uint64(31) + _hash(column))
    found: np.ndarray[Any, np.dtype[np.bool_]] = hashes % np.uint64(buckets) == np.uint64(bucket)
    return found


def _hash(column: pa.Array[Any]) -> Hashes:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        hashes = _hash_bytes(column.cast(pa.binary()))
    else:
        hashes = _mix(_numbers(column))
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _numbers(column: pa.Array[Any]) -> Hashes:
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    number = column.cast(pa.int64()).fill_null(0)
    return number.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _hash_bytes(column: pa.Array[Any]) -> Hashes:
    """A polynomial in each value's bytes, all values at once; then its length, then mixed."""
    values = column.fill_null(b"")
    _, offsets_buffer, data_buffer = cast("list[Any]", values.buffers())
    offsets = np.frombuffer(offsets_buffer, np.int32)[
        values.offset : values.offset + len(values) + 1
    ]
    lengths = np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    total = int(offsets[-1] - offsets[0]) if len(offsets) else 0
    if total and data_buffer is not None:
        data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
        powers = np.multiply.accumulate(np.full(int(lengths.max()), _FACTOR))
        starts = (offsets[:-1] - offsets[0]).astype(np.int64)
        places = np.arange(total) - np.repeat(starts, lengths)
        filled = lengths > 0
        hashes[filled] += np.add.reduceat((data + np.uint64(1)) * powers[places], starts[filled])
    return _mix(hashes)


def _mix(hashes: Hashes) -> Hashes:
    """Spreads every bit over all bits: nearby numbers land in unrelated buckets."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
