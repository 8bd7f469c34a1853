"""What a task hands to Spark: record batches of just the columns asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.views import document_batch, raw_batch
from penstock.spark.options import Order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.journal.documents import Documents
    from penstock.journal.store import JournalBatch

SORTED_BATCH_ROWS: Final = 32_768
"""Sorted rows go to Spark in pieces, or it would hold a whole partition once more."""

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one journal in offset order, with what they may have to be sorted by."""

    journal: str
    offsets: Numbers
    times: Numbers
    batch: pa.RecordBatch

    def where(self, mask: Numbers) -> Rows:
        """The rows for which the mask is true."""
        keep = np.flatnonzero(mask)
        return Rows(self.journal, self.offsets[keep], self.times[keep], self.batch.take(keep))


def document_rows(found: Documents, schema: pa.Schema, binding: int) -> Rows:
    """Committed documents as the columns of `schema`."""
    batch = document_batch(found, schema, binding)
    return Rows(found.journal, found.offsets, found.times, batch)


def raw_rows(found: JournalBatch, schema: pa.Schema) -> Rows:
    """Rows as they were written, as the columns of `schema`."""
    return Rows(found.journal, found.offsets, found.times, raw_batch(found, schema))


def in_order(parts: Iterable[Rows], order: Order | None) -> Iterator[pa.RecordBatch]:
    """The rows' batches, sorted if asked. Parts come by journal and offset already; sorting by
    clock holds all of them in memory."""
    if order is not Order.CLOCK:
        yield from (part.batch for part in parts if part.batch.num_rows)
        return
    held = [part for part in parts if part.batch.num_rows]
    if not held:
        return
    # Text is sorted by its bytes, as Spark does.
    names = sorted({part.journal for part in held}, key=str.encode)
    rank = {name: place for place, name in enumerate(names)}
    keys = pa.table(
        {
            "clock": pa.array(np.concatenate([part.times for part in held])),
            "journal": pa.array(
                np.repeat([rank[part.journal] for part in held], [len(part.times) for part in held])
            ),
            "offset": pa.array(np.concatenate([part.offsets for part in held])),
        }
    )
    places = pc.sort_indices(
        keys, sort_keys=[("clock", "ascending"), ("journal", "ascending"), ("offset", "ascending")]
    )
    table = pa.Table.from_batches([part.batch for part in held]).take(places)
    yield from table.combine_chunks().to_batches(max_chunksize=SORTED_BATCH_ROWS)
