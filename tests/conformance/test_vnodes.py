"""Batches with the vnode column: the receiver splits them, and takes the column off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.routing import VNODE_COLUMN, VNODE_FIELD, VNODES
from penstock.transport import Barrier, VnodeData
from tests.conformance.bystander import Bystander, close_of
from tests.conformance.fabric import RECEIVING
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually, take

if TYPE_CHECKING:
    from tests.conformance.fabric import Fabric


def test_rows_are_split_by_vnode(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    choose = np.random.default_rng(7)
    sent: dict[int, list[int]] = {}
    first = 0
    for rows in (1, 0, 1000, 7, 1, 300):
        vnodes = choose.integers(0, VNODES, rows).astype(np.uint16)
        row_numbers = np.arange(first, first + rows)
        first += rows
        for vnode, number in zip(vnodes.tolist(), row_numbers.tolist(), strict=True):
            sent.setdefault(vnode, []).append(number)
        schema = pa.schema([pa.field("number", pa.int64()), VNODE_FIELD])
        columns = [pa.array(row_numbers), pa.array(vnodes)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        sender.send(RECEIVING, VnodeData("orders", 0, batch), WAIT_SECONDS_MAX)
    sender.send(RECEIVING, Barrier(1, 1))
    found: dict[int, list[int]] = {}
    while isinstance((frame := take(receiver)[0].frame), VnodeData):
        assert frame.batch.schema.names == ["number"]
        assert frame.batch.num_rows > 0
        found.setdefault(frame.vnode, []).extend(frame.batch.column(0).to_pylist())  # type: ignore[arg-type]
    assert frame == Barrier(1, 1)
    assert found == sent
    eventually(
        lambda: sender.credit_bytes(RECEIVING) > 3 * 1024 * 1024, "that all credit is given back"
    )


def test_rows_that_cannot_be_split_end_their_stream_with_the_reason(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    bystander = Bystander(fabric, receiver)
    views = pa.array(["one", "two"], pa.string_view())
    batch = pa.RecordBatch.from_arrays(
        [views, pa.array([1, 2], pa.uint16())], ["view", VNODE_COLUMN]
    )
    Background(lambda: sender.send(RECEIVING, VnodeData("orders", 0, batch)), "sending").result()
    (loss,) = eventually(sender.losses, "that the sender is told")
    assert "view" in loss.reason
    close = close_of(receiver)[1]
    assert close.fault
    assert "view" in close.reason
    bystander.check()
