"""The shuffle transport: frames between members, over three carriers with one contract.

A `Sender` opens a connection to a member with the first frame for it; a `Receiver` listens at a
member and hands out what all senders sent. docs/format.md has the bytes, ARCHITECTURE.md the walk.
"""

from penstock.transport.connection import SendTimeoutError
from penstock.transport.frames import (
    Barrier,
    Close,
    Flush,
    Flushed,
    Mark,
    MarkKind,
    Origin,
    VnodeData,
)
from penstock.transport.inbox import Received
from penstock.transport.receiver import Receiver
from penstock.transport.sender import Loss, Sender
from penstock.transport.timing import Timing

__all__ = [
    "Sender",
    "Receiver",
    "Received",
    "Origin",
    "VnodeData",
    "Mark",
    "MarkKind",
    "Barrier",
    "Flush",
    "Flushed",
    "Close",
    "Loss",
    "SendTimeoutError",
    "Timing",
]
