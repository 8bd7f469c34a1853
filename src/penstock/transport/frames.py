"""Frames: what members say to each other. docs/format.md has their bytes.

A sender says Hello, then VnodeData, Mark, Barrier and Flush in its own order, and Close at the end.
The receiver answers with Hello, then Credit and Flushed, or Close with the reason. Frames are plain
data: how they travel is the carrier's matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.checkpoint.barrier import Barrier as Barrier  # noqa: PLC0414 - one of the frames
from penstock.errors import LocalProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

PROTOCOL_VERSION: Final = 1

BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""A sender cuts larger batches by rows. One row may be this large, encoded."""
BATCH_ROWS_MAX: Final = 2**24
"""A sender cuts longer batches, which matters for columns that take next to no bytes: what a
receiver allocates for rows must be in proportion to something that is limited."""
BODY_BYTES_MAX: Final = BATCH_BYTES_MAX + 1024 * 1024
"""What a frame may ask its receiver to allocate: a batch, and a schema of up to a mebibyte."""
FRAME_COST_BYTES: Final = 1024
"""What a frame costs its receiver beside its bytes: so that a window full of one-byte batches is
no larger in memory than a window full of large ones."""
STAGE_BYTES_MAX: Final = 255
"""Of a stage's name."""
STAGES_MAX: Final = 65_536
"""Stages of one connection. Each keeps a schema and an encoder at both ends, some kilobytes. A feed
of as many bindings as there may be has one for each binding's rollbacks, and for each schema that
its documents were written with: 15 of them."""
SCHEMAS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all stages of one connection, at the receiver: 4 KiB each, if there are as many as may be."""
TOKEN_BYTES_MAX: Final = 64
REASON_BYTES_MAX: Final = 2048
"""A reason is a few sentences; more of it would only help a peer that floods."""

U16_MAX: Final = 2**16 - 1
U63_MAX: Final = 2**63 - 1
U64_MAX: Final = 2**64 - 1


class Origin(NamedTuple):
    """Where frames come from: one lane of one member."""

    member: int
    lane: int = 0

    def __str__(self) -> str:
        return f"member {self.member} lane {self.lane}"


@dataclass(frozen=True, slots=True)
class Hello:
    """Opens a connection, in each direction. `member` is a claim, which the certificate or the
    token must prove."""

    member: int
    lane: int
    token: bytes = field(repr=False)
    window_bytes: int = 0
    """What the receiver holds of this connection before anybody takes it. Zero from a sender."""
    version: int = PROTOCOL_VERSION
    generation: int = 0
    """Which of the member's processes a sender is: a receiver that has heard of a later one refuses
    it. Zero from a receiver, from a member that has but one process, and from older releases."""

    def __post_init__(self) -> None:
        _check_range("member", self.member, U64_MAX)
        _check_range("lane", self.lane, U16_MAX)
        _check_range("window", self.window_bytes, U63_MAX)
        _check_range("generation", self.generation, U63_MAX)
        _check_range("version", self.version, U16_MAX)
        if len(self.token) > TOKEN_BYTES_MAX:
            raise LocalProtocolError(f"a token has at most {TOKEN_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class VnodeData:
    """Rows of one stage. A batch with the vnode column holds rows of several vnodes; the receiver
    splits it, and what it hands out has the vnode here and the column removed."""

    stage: str
    vnode: int
    batch: pa.RecordBatch

    def __post_init__(self) -> None:
        if not 0 <= self.vnode <= U16_MAX:  # in place: there are many of these
            _check_range("vnode", self.vnode, U16_MAX)


class MarkKind(IntEnum):
    DUE = 0
    """Rows may follow, none with a lesser key."""
    DELAYED = 1
    """The next row has this key and waits until it is old enough: others need not wait for it."""
    IDLE = 2
    """Nothing is there to be sent."""
    CAPPED = 3
    """Rows up to the next mark count as this key at most: a clock among them is ahead of its time.
    What was promised before still holds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A promise about the rows that follow, for a receiver that merges senders by their keys."""

    kind: MarkKind
    key: int = 0

    def __post_init__(self) -> None:
        _check_range("key", self.key, U64_MAX)


@dataclass(frozen=True, slots=True)
class Flush:
    """Asks that everything before it be made durable."""

    cycle: int

    def __post_init__(self) -> None:
        _check_range("cycle", self.cycle, U64_MAX)


@dataclass(frozen=True, slots=True)
class Flushed:
    """Answers a Flush: everything before it is durable, up to `lsn`."""

    cycle: int
    lsn: int

    def __post_init__(self) -> None:
        _check_range("cycle", self.cycle, U64_MAX)
        _check_range("lsn", self.lsn, U64_MAX)


@dataclass(frozen=True, slots=True)
class Credit:
    """Room for so much more. A credit of nothing says no more than "I am alive", and may come from
    either end."""

    data_bytes: int = 0
    control_frames: int = 0

    def __post_init__(self) -> None:
        _check_range("credit", self.data_bytes, U64_MAX)
        _check_range("credit", self.control_frames, U64_MAX)


@dataclass(frozen=True, slots=True)
class Close:
    """The last frame of its direction. A fault says what the other end did wrong."""

    reason: str = ""
    fault: bool = False


DONE: Final = Close("done")
"""Ends a stream in order. A receiver answers a sender's Close with it: it has read everything."""

Frame: TypeAlias = Hello | VnodeData | Mark | Barrier | Flush | Flushed | Credit | Close
Message: TypeAlias = VnodeData | Mark | Barrier | Flush
"""What the users of a Sender send."""


def _check_range(name: str, value: int, maximum: int) -> None:
    if not 0 <= value <= maximum:
        raise LocalProtocolError(f"{name} {value} is outside of 0 to {maximum}")


ALIVE: Final = Credit()
