"""The names of our own columns, which stand beside a document's: all of them, in one place. Pure.

A collection that had one of these could not be told apart from what we add: in frames, in Spark, on
the way between members, or in queues. So a new column may not be named like that.
"""

from __future__ import annotations

from typing import Final

META: Final = "_meta"
JOURNAL: Final = "_journal"
OFFSET: Final = "_offset"
PRODUCER: Final = "_producer"
CLOCK: Final = "_clock"
TIME: Final = "_time"
FLAGS: Final = "_flags"
HINTS: Final = "_hints"
KIND: Final = "_kind"
READ: Final = "_read"
VNODE: Final = "_vnode"
KEY: Final = "_key"
"""In a Queue's snapshot: what a row that waits is ordered by."""
LSN: Final = "_lsn"
BINDING: Final = "_binding"
BYTE: Final = "_byte"
"""These three in what `penstock inspect` shows of a file."""

OWN_PREFIX: Final = "__penstock"
CARRIED_VNODE: Final = f"{OWN_PREFIX}_vnode"
"""On the way to a member."""

RESERVED_COLUMNS: Final = (
    META,
    JOURNAL,
    OFFSET,
    PRODUCER,
    CLOCK,
    TIME,
    FLAGS,
    HINTS,
    KIND,
    READ,
    VNODE,
    KEY,
    LSN,
    BINDING,
    BYTE,
    CARRIED_VNODE,
)


def is_reserved(name: str) -> bool:
    """Spark does not tell upper case from lower in names, so neither does this."""
    lower = name.lower()
    return lower in RESERVED_COLUMNS or lower.startswith(OWN_PREFIX)
