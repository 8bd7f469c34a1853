"""Parcels: documents on their way from a Slice to a Queue, and in its segments.

A parcel has rows of one binding and one version of its collection's schema. Before the document's
own columns stand those that say where it comes from and where it goes. Rollbacks travel beside the
parcels, in their place, as rows of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.columns import CLOCK, OFFSET, PRODUCER, READ, VNODE
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
    "VNODE",
    "Stage",
]

PARCEL_FIELDS: Final = (
    pa.field(READ, pa.uint32(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
    pa.field(PRODUCER, pa.int64(), nullable=False),
    pa.field(CLOCK, pa.uint64(), nullable=False),
    pa.field(VNODE, pa.uint16(), nullable=False),
)
"""Before the document's own columns."""

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
