"""The window between a sender and a receiver, as a test fills it and looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.transport.connection import SendTimeoutError
from tests.conformance.batches import numbered
from tests.conformance.fabric import RECEIVING
from tests.conformance.waiting import WAIT_SECONDS_MAX

if TYPE_CHECKING:
    from penstock.transport import Receiver, Sender

FRAME_BYTES = 5248
"""What a frame of `fill` costs, and a little more."""


def fill(sender: Sender, member: int = RECEIVING, stage: str = "orders") -> int:
    """Sends until there is no credit left for a frame of this kind. Returns how many went."""
    sender._connection(member, WAIT_SECONDS_MAX)
    for number in range(10_000):
        for _ in range(3):  # with credit left, the encoder may only have to get through others
            try:
                sender.send(member, numbered(number, stage=stage, pad_bytes=4000), 0.05)
                break
            except SendTimeoutError:
                if sender.credit_bytes(member) < FRAME_BYTES:
                    return number
        else:
            return number
    pytest.fail("there is no end to the credit")


def charged_bytes(receiver: Receiver) -> int:
    """Of everything that nobody took yet."""
    inbox = receiver._inbox
    with inbox._ready:
        return sum(each.charged_bytes for queue in inbox._queues.values() for each in queue)
