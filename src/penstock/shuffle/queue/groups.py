"""The groups of a part: which reads and producers it has rows of, and between which clocks.

They stand in a block's metadata, so that it is known who sees a part before it is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ids import CLOCK_MAX

if TYPE_CHECKING:
    from penstock.shuffle.parcels import Stage

GROUP: Final = np.dtype(
    [("read", "<u4"), ("rows", "<u4"), ("producer", "<i8"), ("first", "<u8"), ("last", "<u8")]
)
_READ_BITS: Final = 0xFFFF
"""A producer's two low bytes are zero: there is room for the number of a read."""
Groups: TypeAlias = np.ndarray[Any, np.dtype[np.void]]


class Identities(NamedTuple):
    """The columns of a part that decide who sees a row. Rollbacks have two clocks."""

    reads: npt.NDArray[np.uint32]
    producers: npt.NDArray[np.int64]
    first: npt.NDArray[np.uint64]
    """A row's clock, or what a rollback is `after`."""
    last: npt.NDArray[np.uint64]
    """A row's clock, or what a rollback goes `through`."""


def identities(stage: Stage, batch: pa.RecordBatch) -> Identities:
    if stage.is_rollbacks:
        read, producer, after, through = (batch.column(index).to_numpy() for index in range(4))
        return Identities(read, producer, after, through)
    clock = batch.column(3).to_numpy()
    return Identities(batch.column(0).to_numpy(), batch.column(2).to_numpy(), clock, clock)


def groups_of(rows: Identities) -> Groups:
    """One for each read and producer, ascending by them."""
    reads, producers, codes = _sources(rows)
    groups = np.empty(len(reads), GROUP)
    groups["read"], groups["producer"] = reads, producers
    groups["rows"] = np.bincount(codes, minlength=len(reads))
    first = np.full(len(reads), CLOCK_MAX, np.uint64)
    last = np.zeros(len(reads), np.uint64)
    np.minimum.at(first, codes, rows.first)
    np.maximum.at(last, codes, rows.last)
    groups["first"], groups["last"] = first, last
    return groups[np.lexsort((producers, reads))]


def _sources(
    rows: Identities,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.integer[Any]]]:
    """The distinct pairs of read and producer, and of each row which one it has."""
    least = int(rows.reads.min())
    if int(rows.reads.max()) - least <= _READ_BITS:
        # The rule: reads that live at one time are numbered one after the other.
        distinct, codes = _codes(rows.producers | (rows.reads - np.uint32(least)))
        return (distinct & _READ_BITS) + least, distinct & ~_READ_BITS, codes
    reads, read_codes = _codes(rows.reads)
    producers, producer_codes = _codes(rows.producers)
    distinct, codes = _codes(read_codes.astype(np.int64) * len(producers) + producer_codes)
    return reads[distinct // len(producers)], producers[distinct % len(producers)], codes


def _codes(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    """The distinct values, and of each value which one it is."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
