"""Headers of records, by name: as columns, and as what identifies a row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PREFIX: Final = "header:"
"""Before a header's name, where a column is meant: `header:tenant`."""


def header_in(column: str) -> str | None:
    """The header that a column is, if it is one."""
    return column.removeprefix(PREFIX) if column.startswith(PREFIX) else None


def header_values(lists: Any, name: str) -> pa.BinaryArray:
    """Of each row the value of this header: the last one, if several have the name, as Kafka's own
    `lastHeader` has it; null without any."""
    pairs = lists.flatten()
    has_name: Any = pc.equal(pairs.field("key"), pa.scalar(name))
    found = np.flatnonzero(has_name.to_numpy(zero_copy_only=False))
    rows = lists.value_parent_indices().to_numpy()[found]
    places = np.full(len(lists), -1, np.int64)
    places[rows] = found  # the last of a row stays
    taken: Any = pa.array(places, mask=places < 0)
    values: pa.BinaryArray = pairs.field("value").take(taken)
    return values
