"""Byte credits, at both ends of a connection. Pure: no threads, no clock.

The receiver holds at most a window of what a sender sent and nobody took yet. It grants the room
it has; the sender spends it before it sends. A frame is charged its bytes, but never more than
three quarters of the window: a larger frame goes when that much is free. Room is granted in
quarters of the window. So a sender that waits for a charge has less than three quarters
outstanding, and once everything is taken more than a quarter is free, and granted: nobody waits
for ever.

Control frames (Barrier, Flush) take no byte credit, so that data without room never holds them up.
They are counted instead, since a queue of them needs a limit too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport.frames import Credit

WINDOW_BYTES_MIN: Final = 16 * 1024
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
QUEUED_FRAMES_MAX: Final = 64
"""Data that is queued and not yet encoded. The caller and the encoder share an interpreter: with
less they would change places all the time, with more one would keep the other waiting."""
CONTROL_FRAMES_MAX: Final = 1024
"""Barriers and flushes of one sender that nobody took yet: far more than there are in flight."""


def charge(cost_bytes: int, window_bytes: int) -> int:
    """What a frame takes of the window."""
    return min(cost_bytes, window_bytes - window_bytes // 4)


@dataclass(slots=True)
class Allowance:
    """The sender's end: what it may still send.

    A caller reserves what a frame takes at most before it queues it; the encoder, which knows the
    bytes, settles it. So what is queued never waits for credit.
    """

    window_bytes: int = 0
    data_bytes: int = 0
    control_frames: int = 0
    reserved_bytes: int = 0
    reserved_frames: int = 0
    crowded: bool = False
    """Enough is queued; the encoder has to get through half of it first."""

    def grant(self, credit: Credit) -> None:
        self.data_bytes += credit.data_bytes
        self.control_frames += credit.control_frames
        if self.data_bytes > self.window_bytes or self.control_frames > CONTROL_FRAMES_MAX:
            raise RemoteProtocolError(
                f"the receiver granted more than its window: {self.data_bytes} bytes of "
                f"{self.window_bytes}, {self.control_frames} control frames of {CONTROL_FRAMES_MAX}"
            )

    def reserve(self, cost_bytes: int) -> bool:
        """Takes room for a data frame, if there is enough beside what is reserved already."""
        charged = charge(cost_bytes, self.window_bytes)
        if self.crowded or self.reserved_bytes + charged > self.data_bytes:
            return False
        self.reserved_bytes += charged
        self.reserved_frames += 1
        self.crowded = (
            self.reserved_bytes >= QUEUED_BYTES_MAX or self.reserved_frames >= QUEUED_FRAMES_MAX
        )
        return True

    def settle(self, estimate_bytes: int, cost_bytes: int) -> None:
        """Spends what a reserved frame really costs, and frees the rest."""
        if cost_bytes > estimate_bytes:
            raise LocalProtocolError(
                f"a frame costs {cost_bytes} bytes, and {estimate_bytes} were reserved for it"
            )
        self.reserved_bytes -= charge(estimate_bytes, self.window_bytes)
        self.reserved_frames -= 1
        self.data_bytes -= charge(cost_bytes, self.window_bytes)
        self.crowded = self.crowded and (
            self.reserved_bytes > QUEUED_BYTES_MAX // 2
            or self.reserved_frames > QUEUED_FRAMES_MAX // 2
        )

    def spend_control(self) -> bool:
        if self.control_frames == 0:
            return False
        self.control_frames -= 1
        return True

    @property
    def free_bytes(self) -> int:
        return max(0, self.data_bytes - self.reserved_bytes)


@dataclass(slots=True)
class Window:
    """The receiver's end, one for each origin: what it holds, and what it has promised to hold.
    It outlives a connection, since frames of the last one may not be taken yet."""

    capacity_bytes: int
    held_bytes: int = 0
    promised_bytes: int = 0
    held_frames: int = 0
    promised_frames: int = field(default=0)

    def __post_init__(self) -> None:
        if self.capacity_bytes < WINDOW_BYTES_MIN:
            raise ConfigurationError(
                f"a stream's window of {self.capacity_bytes} bytes is too small; it needs at least "
                f"{WINDOW_BYTES_MIN}: raise inbound_bytes_max or lower streams_max"
            )

    def reopen(self) -> Credit:
        """A new connection: what was promised to the last one is void."""
        self.promised_bytes = max(0, self.capacity_bytes - self.held_bytes)
        self.promised_frames = max(0, CONTROL_FRAMES_MAX - self.held_frames)
        return Credit(self.promised_bytes, self.promised_frames)

    def arrive(self, cost_bytes: int) -> int:
        """A data frame arrived. Returns what it is charged."""
        charged = charge(cost_bytes, self.capacity_bytes)
        if charged > self.promised_bytes:
            raise RemoteProtocolError(
                f"the sender exceeded its credit: a frame of {charged} bytes with "
                f"{self.promised_bytes} left"
            )
        self.promised_bytes -= charged
        self.held_bytes += charged
        return charged

    def arrive_control(self) -> None:
        if self.promised_frames == 0:
            raise RemoteProtocolError(
                f"the sender exceeded its credit: {CONTROL_FRAMES_MAX} control frames wait already"
            )
        self.promised_frames -= 1
        self.held_frames += 1

    def take(self, charged_bytes: int, control_frames: int) -> Credit | None:
        """Frames were taken out. Returns what to grant, when it is worth a frame."""
        self.held_bytes -= charged_bytes
        self.held_frames -= control_frames
        free_bytes = self.capacity_bytes - self.held_bytes - self.promised_bytes
        free_frames = CONTROL_FRAMES_MAX - self.held_frames - self.promised_frames
        grant_bytes = free_bytes if free_bytes >= self.capacity_bytes // 4 else 0
        grant_frames = free_frames if free_frames >= CONTROL_FRAMES_MAX // 4 else 0
        if not grant_bytes and not grant_frames:
            return None
        self.promised_bytes += grant_bytes
        self.promised_frames += grant_frames
        return Credit(grant_bytes, grant_frames)

    def put_back(self, charged_bytes: int, control_frames: int) -> None:
        """Frames were put back. What is promised stays so: until they are taken again, the window
        may be overdrawn by them."""
        self.held_bytes += charged_bytes
        self.held_frames += control_frames
