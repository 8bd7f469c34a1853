"""Bytes that lie scattered in a buffer, as Arrow's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.journal.kafka.records.boundaries import NotRecordsError
from penstock.journal.kafka.records.varints import signed

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADERS: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)


def gathered(data: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array[Any]:
    """The slices of the buffer, in memory of their own; null where the length is negative. Slices
    are in order and do not overlap: so they and the bytes between them make one array without a
    copy, of which Arrow picks every second value."""
    count = len(begins)
    is_there = lengths >= 0
    if not is_there.any():
        return pa.nulls(count, pa.binary())
    cuts = np.empty(2 * count + 1, dtype=np.int32)
    cuts[0] = 0
    cuts[1::2] = begins
    cuts[2::2] = begins + np.maximum(lengths, 0)
    between = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(cuts.data), pa.py_buffer(data)]
    )
    every_second: pa.Array[Any] = pa.BooleanArray.from_buffers(
        pa.bool_(), 2 * count, [None, pa.py_buffer(b"\xaa" * (count // 4 + 1))]
    )
    slices = between.filter(every_second)
    if is_there.all():
        return slices
    there = pa.py_buffer(np.packbits(is_there, bitorder="little").tobytes())
    _, offsets, values = slices.buffers()
    return pa.BinaryArray.from_buffers(pa.binary(), count, [there, offsets, values])


def headers_of(
    data: bytes, octets: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.Array[Any]:
    """The headers of each record, from where their number stands to the record's end. All records'
    first headers are taken at once, then all second ones, and so on."""
    counts, position = signed(octets, begins)
    if ((counts < 0) | (counts * 2 > ends - position)).any():
        raise NotRecordsError(int(begins[0]))
    places = np.cumsum(counts) - counts
    key_begins, key_lengths, value_begins, value_lengths = np.zeros(
        (4, int(counts.sum())), dtype=np.int64
    )
    having = np.flatnonzero(counts > 0)
    for turn in range(int(counts.max(initial=0))):
        having = having[counts[having] > turn]
        at, limit = places[having] + turn, ends[having]
        key_lengths[at], key_begins[at] = signed(octets, _before(position[having], limit))
        behind = key_begins[at] + key_lengths[at]
        if (key_lengths[at] < 0).any():
            raise NotRecordsError(int(limit[0]) - 1)
        value_lengths[at], value_begins[at] = signed(octets, _before(behind, limit))
        position[having] = value_begins[at] + np.maximum(value_lengths[at], 0)
    if not np.array_equal(position, ends):
        raise NotRecordsError(int(ends[position != ends][0]) - 1)
    keys = _text(gathered(data, key_begins, key_lengths))
    values = gathered(data, value_begins, value_lengths)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    cuts = np.append(places, counts.sum()).astype(np.int32)
    buffers = [None, pa.py_buffer(cuts.data)]
    return pa.Array.from_buffers(HEADERS, len(counts), buffers, children=[pairs])


def _before(position: NDArray[np.int64], limit: NDArray[np.int64]) -> NDArray[np.int64]:
    beyond = position >= limit
    if beyond.any():
        raise NotRecordsError(int(limit[beyond][0]) - 1)
    return position


def _text(keys: pa.Array[Any]) -> pa.Array[Any]:
    """Kafka wants UTF-8 and checks nothing; Java replaces what is not."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [bytes(key or b"").decode(errors="replace") for key in keys.to_pylist()], pa.string()
        )
