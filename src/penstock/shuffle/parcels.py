"""Parcels: documents on their way from a Slice to a Queue, and in its segments.

A parcel has rows of one binding and one version of its collection's schema. Before the document's
own columns stand those that say where it comes from and where it goes. Rollbacks travel beside the
parcels, in their place, as rows of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.columns import CLOCK, OFFSET, PRODUCER, READ, TIME, VNODE
from penstock.errors import RemoteProtocolError

__all__ = [
    "CLOCK",
    "OFFSET",
    "PARCEL_FIELDS",
    "PRODUCER",
    "READ",
    "READS_SCHEMA",
    "READS_STAGE",
    "ROLLBACK_SCHEMA",
    "ROW_BYTES",
    "TIME",
    "TIMED_ROW_BYTES",
    "VNODE",
    "Stage",
    "fields_of",
    "parcel_schema",
    "times_of",
]

PARCEL_FIELDS: Final = (
    pa.field(READ, pa.uint32(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
    pa.field(PRODUCER, pa.int64(), nullable=False),
    pa.field(CLOCK, pa.uint64(), nullable=False),
    pa.field(VNODE, pa.uint16(), nullable=False),
)
"""Before the document's own columns."""
_TIMED_FIELDS: Final = (
    *PARCEL_FIELDS[:4],
    pa.field(TIME, pa.uint64(), nullable=False),
    *PARCEL_FIELDS[4:],
)
"""Where rows have times apart from their clocks."""
ROW_BYTES: Final = 30
TIMED_ROW_BYTES: Final = 38
"""What these columns take of each row."""

ROLLBACK_SCHEMA: Final = pa.schema(
    [
        pa.field(READ, pa.uint32(), nullable=False),
        pa.field(PRODUCER, pa.int64(), nullable=False),
        pa.field("after", pa.uint64(), nullable=False),
        pa.field("through", pa.uint64(), nullable=False),
    ]
)
"""Of this read and producer, forget what is stored before with `after < clock <= through`."""

READS_STAGE: Final = "reads"
_READS_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("read", pa.uint32(), nullable=False),
    pa.field("binding", pa.uint16(), nullable=False),
    pa.field("journal", pa.string(), nullable=False),
]
READS_SCHEMA: Final = pa.schema(_READS_FIELDS)
"""What a read's number stands for. A stream says so before the first row with that number."""


@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """What the batches of one stage of a stream are: a binding's documents of one schema version,
    or its rollbacks."""

    binding: int
    version: int
    """Of the collection's schema, from 1. 0: rollbacks."""

    @property
    def is_rollbacks(self) -> bool:
        return self.version == 0

    def __str__(self) -> str:
        return f"parcels/{self.binding}/{self.version}"

    @classmethod
    def parse(cls, text: str) -> Stage:
        start, _, rest = text.partition("/")
        binding, _, version = rest.partition("/")
        if start != "parcels" or not binding.isdecimal() or not version.isdecimal():
            raise RemoteProtocolError(f"{text!r} is no stage of a shuffle")
        return cls(int(binding), int(version))


def parcel_schema(documents: pa.Schema, *, is_timed: bool) -> pa.Schema:
    """The schema of parcels with these documents."""
    return pa.schema([*(_TIMED_FIELDS if is_timed else PARCEL_FIELDS), *documents])


def fields_of(schema: pa.Schema) -> tuple[pa.Field[Any], ...]:
    """Those of a parcel's columns that stand before the document's own. Their place tells: an old
    collection may have a column of the same name."""
    is_timed = len(schema) > 4 and schema.field(4).name == TIME
    return _TIMED_FIELDS if is_timed else PARCEL_FIELDS


def times_of(batch: pa.RecordBatch) -> pa.Array[Any]:
    """What a parcel's rows are ordered by: their times, or else their clocks."""
    return batch.column(4 if fields_of(batch.schema) is _TIMED_FIELDS else 3)
