"""Barriers: marks in a stream that say where a checkpoint cuts it, and what flows beside them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.errors import LocalProtocolError, RemoteProtocolError

ItemT = TypeVar("ItemT")

U64_MAX: Final = 2**64 - 1
_BYTES: Final = struct.Struct("<QQQ")
BARRIER_BYTES: Final = _BYTES.size


class Flags(IntFlag):
    """What a barrier asks for. Bits that have no name here are kept and passed on."""

    FULL_SNAPSHOT = 1
    """Every part is written again; nothing refers to an older snapshot."""
    DRAIN = 2
    """The last barrier before the stream ends on purpose."""
    CANCEL = 4
    """The checkpoint is given up: whoever works on it stops."""
    UNALIGNED = 8
    """The barrier overtook items on its way: nobody holds an input back for it."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything before it belongs to the checkpoint, everything after it does not.

    Checkpoints are told apart by their number, which rises and is never used again: an attempt that
    failed keeps its number, and the next attempt at the same epoch gets a new one.
    """

    checkpoint: int
    epoch: int
    flags: int = 0

    def __post_init__(self) -> None:
        _check_range("checkpoint", self.checkpoint)
        _check_range("epoch", self.epoch)
        _check_range("flags", self.flags)

    @property
    def is_full_snapshot(self) -> bool:
        return bool(self.flags & Flags.FULL_SNAPSHOT)

    @property
    def is_drain(self) -> bool:
        return bool(self.flags & Flags.DRAIN)

    @property
    def is_cancel(self) -> bool:
        return bool(self.flags & Flags.CANCEL)

    @property
    def is_unaligned(self) -> bool:
        return bool(self.flags & Flags.UNALIGNED)

    def flagged(self, flags: Flags) -> Barrier:
        """The same barrier with these flags set too."""
        return replace(self, flags=int(self.flags | flags))

    def to_bytes(self) -> bytes:
        return _BYTES.pack(self.checkpoint, self.epoch, self.flags)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Barrier:
        size_bytes = memoryview(data).nbytes
        if size_bytes != BARRIER_BYTES:
            raise RemoteProtocolError(f"a barrier has {BARRIER_BYTES} bytes, not {size_bytes}")
        return cls(*_BYTES.unpack(data))


@dataclass(frozen=True, slots=True)
class Event(Generic[ItemT]):
    """Data in a stream: a record batch, usually."""

    item: ItemT


@dataclass(frozen=True, slots=True)
class Watermark:
    """Says that no item with an older clock follows, but for late ones."""

    clock: int


StreamMessage: TypeAlias = Event[ItemT] | Watermark | Barrier
"""What flows through a stream. Events and watermarks keep their place; a barrier may overtake."""


def _check_range(name: str, value: int) -> None:
    if not 0 <= value <= U64_MAX:
        raise LocalProtocolError(f"{name} {value} is outside of 0 to {U64_MAX}")
