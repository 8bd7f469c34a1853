"""The vnode of each row: that of its key. Pure.

In a log that others write many rows may have no key at all. They belong to nobody, and as one key
they would all go to one member: so they are spread, by where they stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.routing import vnodes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.routing.keyhash import UInt16Array
    from penstock.shuffle.plan import BindingPlan


def vnodes_of_rows(
    binding: BindingPlan,
    documents: pa.RecordBatch,
    offsets: np.ndarray[Any, np.dtype[np.int64]],
    journals: Sequence[tuple[str, int]],
) -> UInt16Array:
    """`journals` are those of the rows, one after another, each with the number of its rows."""
    keys = [documents.column(name) for name in binding.key]
    vnodes = vnodes_of(keys)
    if not binding.spreads_null_keys or not keys[0].null_count:
        return vnodes
    rows = np.flatnonzero(keys[0].is_null().to_numpy(zero_copy_only=False))
    names = np.repeat([name for name, _ in journals], [count for _, count in journals])
    vnodes[rows] = vnodes_of([pa.array(names[rows]), pa.array(offsets[rows])])
    return vnodes
