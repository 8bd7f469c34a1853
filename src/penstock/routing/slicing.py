"""Taking a batch apart: by vnode, or by the member that owns the vnode.

Rows are brought together by one stable sort on a byte each and one copy of the batch; the parts
are slices of that copy. Where all rows go one way nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import CARRIED_VNODE
from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.routing.keyhash import VNODES, UInt16Array

if TYPE_CHECKING:
    from penstock.routing.assignment import Assignment

VNODE_COLUMN: Final = CARRIED_VNODE
"""The last column of a batch on its way to a member: each row's vnode."""
VNODE_FIELD: Final = pa.field(VNODE_COLUMN, pa.uint16(), nullable=False)


def split_by_vnode(batch: pa.RecordBatch, vnodes: UInt16Array) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of each vnode that has any, in their order; vnodes ascending."""
    _check_vnodes(batch, vnodes)
    return _grouped(batch, vnodes.astype(np.uint8))


def split_by_target(
    batch: pa.RecordBatch, vnodes: UInt16Array, assignment: Assignment
) -> dict[int, pa.RecordBatch]:
    """The rows for each member that gets any, in their order, with `VNODE_COLUMN` behind the other
    columns; members ascending. The vnodes become part of the batches: do not change them later.
    """
    _check_vnodes(batch, vnodes)
    if VNODE_COLUMN in batch.schema.names:
        raise ConfigurationError(
            f"the column name {VNODE_COLUMN!r} is Penstock's own: rename that column"
        )
    marked = batch.append_column(VNODE_FIELD, pa.array(vnodes))
    groups = _grouped(marked, assignment.member_indexes[vnodes])
    return {assignment.members[index]: part for index, part in groups}


def split_vnode_column(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]] | None:
    """What `split_by_vnode` gives, from a batch that `split_by_target` made: its last column is
    taken off and obeyed. None if it has no such column."""
    places = batch.schema.get_all_field_indices(VNODE_COLUMN)
    if not places:
        return None
    if len(places) > 1:
        raise RemoteProtocolError(f"a batch came with {len(places)} columns {VNODE_COLUMN!r}")
    column: pa.Array[Any] = batch.column(places[0])
    if column.type != VNODE_FIELD.type:
        raise RemoteProtocolError(
            f"column {VNODE_COLUMN!r} came as {column.type}, and must be {VNODE_FIELD.type}"
        )
    if column.null_count:
        raise RemoteProtocolError(f"column {VNODE_COLUMN!r} came with nulls: every row has a vnode")
    vnodes = column.to_numpy()
    if len(vnodes) and vnodes.max() >= VNODES:
        raise RemoteProtocolError(
            f"column {VNODE_COLUMN!r} came with vnode {vnodes.max()}: they end at {VNODES - 1}"
        )
    return _grouped(batch.remove_column(places[0]), vnodes.astype(np.uint8))


def _check_vnodes(batch: pa.RecordBatch, vnodes: UInt16Array) -> None:
    if vnodes.dtype != np.uint16 or vnodes.shape != (batch.num_rows,):
        raise LocalProtocolError(
            f"a batch of {batch.num_rows} rows needs as many vnodes of uint16, not {vnodes.dtype} "
            f"of shape {vnodes.shape}"
        )
    if len(vnodes) and vnodes.max() >= VNODES:
        raise LocalProtocolError(f"vnodes end at {VNODES - 1}, and {vnodes.max()} was given")


def _grouped(
    batch: pa.RecordBatch, groups: np.ndarray[Any, np.dtype[np.uint8]]
) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of each group that has any, in their order; groups ascending."""
    counts = np.bincount(groups)
    present = np.flatnonzero(counts).tolist()
    if len(present) == 1:
        return [(present[0], batch)]
    if not present:
        return []
    # Sorting by bytes is counting them: NumPy does it in 3 ns per row.
    together = _taken(batch, np.argsort(groups, kind="stable"))
    parts, start = [], 0
    for group in present:
        count = int(counts[group])
        parts.append((group, together.slice(start, count)))
        start += count
    return parts


def _taken(batch: pa.RecordBatch, order: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
    try:
        return pc.take(batch, pa.array(order), boundscheck=False)
    except pa.ArrowNotImplementedError as error:
        # Views and run ends, at the time of writing; inside of lists and structs too.
        raise ConfigurationError(
            "Arrow cannot pick single rows from a batch of these columns: "
            f"{', '.join(f'{field.name} {field.type}' for field in batch.schema)}. Cast views and "
            f"run-end encoded columns to plain ones ({error})"
        ) from error
