"""The groups of a part: which reads and producers it has rows of, and between which clocks.

They stand in a block's metadata, so that it is known who sees a part before it is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from penstock.shuffle.parcels import Stage

GROUP: Final = np.dtype(
    [("read", "<u4"), ("rows", "<u4"), ("producer", "<i8"), ("first", "<u8"), ("last", "<u8")]
)
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
    count = len(rows.reads)
    if (rows.reads == rows.reads[0]).all() and (rows.producers == rows.producers[0]).all():
        starts, by_source = np.zeros(1, np.int64), slice(None)
    else:
        by_source = _sort_by_source(rows)
        reads, producers = rows.reads[by_source], rows.producers[by_source]
        new = np.ones(count, np.bool_)
        new[1:] = (reads[1:] != reads[:-1]) | (producers[1:] != producers[:-1])
        starts = np.flatnonzero(new)
    groups = np.empty(len(starts), GROUP)
    groups["read"] = rows.reads[by_source][starts]
    groups["rows"][:-1] = starts[1:] - starts[:-1]
    groups["rows"][-1] = count - starts[-1]
    groups["producer"] = rows.producers[by_source][starts]
    groups["first"] = np.minimum.reduceat(rows.first[by_source], starts)
    groups["last"] = np.maximum.reduceat(rows.last[by_source], starts)
    return groups


def _sort_by_source(rows: Identities) -> Any:
    reads, read_codes = _codes(rows.reads)
    producers, producer_codes = _codes(rows.producers)
    keys = read_codes * len(producers) + producer_codes
    if len(reads) * len(producers) <= 1 << 16:
        keys = keys.astype(np.uint16)  # NumPy sorts these by counting, in a tenth of the time
    return np.argsort(keys, kind="stable")


def _codes(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct values, ascending, and the place of each value among them."""
    if (values == values[0]).all():  # often all are of one producer, or of one read
        return values[:1], np.zeros(len(values), np.int64)
    encoded = pa.array(values).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    ascending = np.argsort(distinct)
    ranks = np.empty(len(distinct), np.int64)
    ranks[ascending] = np.arange(len(distinct))
    return distinct[ascending], ranks[encoded.indices.to_numpy()]
