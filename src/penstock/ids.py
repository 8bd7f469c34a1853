"""The identity of a document: who wrote it (producer), when (clock), and as what (flags).

A producer is six bytes; a clock is an unsigned 64-bit number; flags are ten bits. The three pack
into a version 1 UUID and come back out of it. In record batches they are plain columns: the
producer as int64, the clock as uint64, the flags as uint16.
"""

from __future__ import annotations

import datetime
import enum
import secrets
import uuid
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigurationError

CLOCK_MAX: Final = 2**64 - 1
UNIX_EPOCH_UNITS: Final = 122_192_928_000_000_000
"""100 ns units between 1582-10-15, where version 1 UUIDs begin, and 1970-01-01."""
CLOCK_NONE: Final = 0
"""No clock at all. Not the Unix epoch, although both print as zero seconds."""
CLOCK_UNIX_EPOCH: Final = UNIX_EPOCH_UNITS << 4
CLOCK_FLOOR: Final = 1
"""The last commit of a producer that was read but has committed nothing yet."""
CLOCK_TICK: Final = 160
"""One microsecond: ten units of 100 ns, above the four counter bits."""

FLAGS_MAX: Final = 0x3FF
FLAG_VALID: Final = 0x8000
"""Set in memory on documents that passed their schema. It never enters a UUID."""

_UNITS_PER_SECOND: Final = 10_000_000


class InvalidIdError(ConfigurationError):
    """A producer, clock, flags or UUID is not of the required form. The message quotes it."""


class Kind(enum.IntEnum):
    """What a document is to its producer's transactions, as its two low flag bits say."""

    OUTSIDE = 0
    """Committed by itself."""
    CONTINUE = 1
    """Part of a span that a later ACK commits or rolls back."""
    ACK = 2
    """Closes the producer's span in this journal. Not a document of the user's."""


def kind_of(flags: int) -> Kind:
    """Classifies flags: outside first, then continue, then ack; so 3 is a CONTINUE."""
    if flags & 3 == 0:
        return Kind.OUTSIDE
    return Kind.CONTINUE if flags & 1 else Kind.ACK


@dataclass(frozen=True, slots=True, order=True)
class Producer:
    """Six bytes that name one writer. Ordered by its bytes."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 6:
            raise InvalidIdError(f"a producer is 6 bytes, not {len(self.raw)}: {self.raw.hex()}")

    @classmethod
    def random(cls) -> Producer:
        """A new producer, distinct from all others but for a chance of one in 2**47."""
        raw = secrets.token_bytes(6)
        return cls.for_writing(bytes([raw[0] | 1]) + raw[1:])

    @classmethod
    def for_writing(cls, raw: bytes) -> Producer:
        """A producer that may write: its multicast bit must be set, as no network card's is."""
        producer = cls(raw)
        if not raw[0] & 1:
            raise InvalidIdError(f"producer {producer} may not write: its multicast bit is clear")
        return producer

    @classmethod
    def from_hex(cls, text: str) -> Producer:
        try:
            return cls(bytes.fromhex(text))
        except ValueError:
            raise InvalidIdError(f"a producer is 12 hexadecimal digits, not {text!r}") from None

    @classmethod
    def from_int64(cls, number: int) -> Producer:
        """The inverse of `int64`; the two low bytes must be zero."""
        if number & 0xFFFF or not -(2**63) <= number < 2**63:
            raise InvalidIdError(f"{number} is not a producer: its two low bytes must be zero")
        return cls((number >> 16).to_bytes(6, "big", signed=True))

    @property
    def int64(self) -> int:
        """The six bytes as the high six of a big-endian signed 64-bit number."""
        return int.from_bytes(self.raw, "big", signed=True) << 16

    def __str__(self) -> str:
        return self.raw.hex()


def clock_from_unix(seconds: int, nanoseconds: int = 0) -> int:
    """The clock of a moment, truncated to 100 ns."""
    units = seconds * _UNITS_PER_SECOND + nanoseconds // 100 + UNIX_EPOCH_UNITS
    if not 0 <= units < 2**60:
        raise InvalidIdError(f"no clock can say {seconds} s: it reaches from 1582 to 5236")
    return units << 4


def clock_to_unix(clock: int) -> tuple[int, int]:
    """Seconds and nanoseconds since 1970. Earlier clocks give zero seconds; the counter, 4 ns."""
    units = max((clock >> 4) - UNIX_EPOCH_UNITS, 0)
    seconds, rest = divmod(units, _UNITS_PER_SECOND)
    return seconds, rest * 100 + (clock & 15) * 4


def clock_from_datetime(moment: datetime.datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidIdError(f"{moment} has no time zone; say which, for example {moment}+00:00")
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return clock_from_unix(since.days * 86_400 + since.seconds, since.microseconds * 1_000)


def clock_to_datetime(clock: int) -> datetime.datetime:
    """The moment of a clock in UTC, truncated to microseconds."""
    seconds, nanoseconds = clock_to_unix(clock)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(seconds=seconds, microseconds=nanoseconds // 1_000)


def clock_duration(seconds: int, nanoseconds: int = 0) -> int:
    """A length of time, to be added to a clock. Unlike a clock it does not start in 1582."""
    if seconds < 0 or nanoseconds < 0:
        raise InvalidIdError(f"a duration is not negative: {seconds} s {nanoseconds} ns")
    return (seconds * _UNITS_PER_SECOND + nanoseconds // 100) << 4


def clock_delay(clock: int, duration: int) -> int:
    """The clock moved later by a duration, stopping at the last clock there is."""
    return min(clock + duration, CLOCK_MAX)


def clock_elapsed(later: int, earlier: int) -> tuple[int, int]:
    """The time from one clock to another as seconds and nanoseconds; zero if it is negative."""
    difference = max(later - earlier, 0)
    seconds, units = divmod(difference >> 4, _UNITS_PER_SECOND)
    return seconds, units * 100 + (difference & 15) * 4


def clock_tick(clock: int) -> int:
    """The next clock of a producer: one microsecond on."""
    if clock > CLOCK_MAX - CLOCK_TICK:
        raise InvalidIdError(f"clock {clock:#x} cannot tick: it is at the end of time")
    return clock + CLOCK_TICK


def clock_update(clock: int, observed: int) -> int:
    """A clock never goes back: the greater of the two."""
    return max(clock, observed)


@dataclass(frozen=True, slots=True)
class Id:
    """One document's identity."""

    producer: Producer
    clock: int
    flags: int

    def to_uuid(self) -> uuid.UUID:
        if not 0 <= self.flags <= FLAGS_MAX:
            raise InvalidIdError(f"flags {self.flags:#x} do not fit a UUID: at most {FLAGS_MAX:#x}")
        if not 0 <= self.clock <= CLOCK_MAX:
            raise InvalidIdError(f"clock {self.clock:#x} is not an unsigned 64-bit number")
        timestamp, counter = self.clock >> 4, self.clock & 15
        return uuid.UUID(
            bytes=(timestamp & 0xFFFF_FFFF).to_bytes(4, "big")
            + (timestamp >> 32 & 0xFFFF).to_bytes(2, "big")
            + (0x1000 | timestamp >> 48 & 0x0FFF).to_bytes(2, "big")
            + (0x8000 | counter << 10 | self.flags).to_bytes(2, "big")
            + self.producer.raw
        )

    @classmethod
    def from_uuid(cls, value: uuid.UUID | str) -> Id:
        """Takes a version 1 UUID apart. Its order as text is not clock order: compare clocks."""
        try:
            parsed = value if isinstance(value, uuid.UUID) else uuid.UUID(value)
        except ValueError:
            raise InvalidIdError(f"{value!r} is not a UUID") from None
        raw = parsed.bytes
        if raw[6] >> 4 != 1:
            raise InvalidIdError(f"{parsed} is not a version 1 UUID: its version is {raw[6] >> 4}")
        low, middle, high, sequence = (
            int.from_bytes(part, "big") for part in (raw[:4], raw[4:6], raw[6:8], raw[8:10])
        )
        timestamp = (high & 0x0FFF) << 48 | middle << 32 | low
        return cls(
            producer=Producer(raw[10:]),
            clock=timestamp << 4 | sequence >> 10 & 15,
            flags=sequence & FLAGS_MAX,
        )
