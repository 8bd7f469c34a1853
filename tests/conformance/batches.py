"""Batches that tell where they come from, and what of them was received."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.transport import VnodeData

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.transport import Received


def numbered(
    number: int, *, stage: str = "orders", pad_bytes: int = 0, vnode: int = 0
) -> VnodeData:
    """A batch of one row, with its number and as much beside it as is wanted."""
    pad = pa.array([bytes([number % 251]) * pad_bytes], pa.binary())
    batch = pa.RecordBatch.from_arrays([pa.array([number]), pad], ["number", "pad"])
    return VnodeData(stage, vnode, batch)


def number_of(frame: object) -> int:
    assert isinstance(frame, VnodeData), frame
    (number,) = frame.batch.column(0).to_pylist()
    assert isinstance(number, int)
    return number


def numbers(received: Iterable[Received]) -> list[int]:
    """Of those that are batches, in their order."""
    return [number_of(each.frame) for each in received if isinstance(each.frame, VnodeData)]


def same(frame: object, sent: object) -> bool:
    """Whether a frame is the one that was sent, down to its batch's values and schema."""
    if isinstance(frame, VnodeData) and isinstance(sent, VnodeData):
        return (
            (frame.stage, frame.vnode) == (sent.stage, sent.vnode)
            and frame.batch.schema.equals(sent.batch.schema, check_metadata=True)
            and frame.batch.equals(sent.batch)
        )
    return frame == sent
