"""A sender and a receiver in one process: what a member sends to itself is handed over as it is."""

from __future__ import annotations

import pyarrow as pa

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.transport import Receiver, Sender, VnodeData
from penstock.transport.security import ClusterSecurity

WAIT_SECONDS_MAX = 120.0


def _arrived(sender: Sender, receiver: Receiver, member: int, batch: pa.RecordBatch) -> object:
    sender.send(member, VnodeData("stage", 0, batch))
    received = receiver.receive(WAIT_SECONDS_MAX)
    assert received is not None
    assert received.origin == sender.origin
    assert isinstance(received.frame, VnodeData)
    assert received.frame.batch == batch
    return received.frame.batch


def test_only_its_own_member_is_near() -> None:
    """What comes through a socket is equal, but another object."""
    cluster, slots = ClusterSecurity.create("near"), MemoryKeyValue(1)
    one, two = cluster.member_security(1), cluster.member_security(2)
    batch = pa.record_batch({"number": pa.array(range(100), pa.int64())})
    with (
        Receiver(one, slots) as receiver,
        Receiver(two, slots.view(2)) as other,
        Sender(one, slots, near=receiver.near) as sender,
        Sender(one, slots, lane=1) as far,
    ):
        assert _arrived(sender, receiver, 1, batch) is batch
        assert _arrived(sender, other, 2, batch) is not batch
        assert _arrived(far, receiver, 1, batch) is not batch
