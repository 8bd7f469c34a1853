"""Who else speaks to a receiver while a bad peer does, and what is heard of the bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.transport import Close
from tests.conformance.batches import numbered, numbers
from tests.conformance.fabric import OTHER, RECEIVING
from tests.conformance.waiting import WAIT_SECONDS_MAX, eventually, take

if TYPE_CHECKING:
    from penstock.transport import Received, Receiver
    from tests.conformance.fabric import Fabric


class Bystander:
    """A good sender, whose stream must not suffer from others."""

    def __init__(self, fabric: Fabric, receiver: Receiver) -> None:
        self._sender = fabric.sender(OTHER)
        self._receiver = receiver
        self._number = 0

    def check(self, stage: str = "of the bystander") -> None:
        self._number += 1
        self._sender.send(RECEIVING, numbered(self._number, stage=stage), WAIT_SECONDS_MAX)
        taken = eventually(
            lambda: self._receiver.drain_stage(stage), "that a bystander's batch arrives"
        )
        assert numbers(taken) == [self._number]
        assert self._sender.losses() == []


def close_of(receiver: Receiver) -> tuple[list[Received], Close]:
    """What was received up to the next Close, which is of the only other sender."""
    taken = []
    while not isinstance((received := take(receiver)[0]).frame, Close):
        taken.append(received)
    return taken, received.frame
