"""What a member tells of itself four times a second, for whoever watches.

Its size has a limit whatever the feed is: of journals and open spans the first are named, and the
others counted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.ids import clock_to_unix
from penstock.threads import ended
from penstock.watch.causes import StoreSilent, ThreadEnded
from penstock.watch.standing import Seen

if TYPE_CHECKING:
    from penstock.journal.store import ReadableStore

MICROSECONDS: Final = 1_000_000
NAMED_MAX: Final = 100
"""Journals and spans of one Slice: as many as a view shows of a whole feed."""


@dataclass(frozen=True, slots=True)
class Sent:
    """By a Slice, to one member."""

    member: int
    rows: int
    credit_free: float
    """Of the most that there ever was, 0 to 1."""


@dataclass(frozen=True, slots=True)
class SliceStatus:
    reads: int
    read_offset: int
    """The rows of all its journals that lie behind it."""
    rows_behind: int
    rows_read: int
    """By this session."""
    buffered_bytes: int
    settled: bool
    """All that there was is sent, durable and told."""
    promised: float | None
    """The moment that none of its rows comes below any more."""
    sent: tuple[Sent, ...]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    rows: int
    blocks: int
    size_bytes: int
    limit_bytes: int
    waiting_rows: int
    lsn: int
    is_pressed: bool
    is_overdrawn: bool
    unaligned_epoch: int
    """The last one whose snapshot was taken without waiting for all barriers; 0: none was."""


@dataclass(frozen=True, slots=True)
class JournalStatus:
    journal: str
    binding: int
    offset: int
    head: int
    clock: float | None


@dataclass(frozen=True, slots=True)
class SpanStatus:
    """A producer's open span in one journal."""

    producer: str
    journal: str
    binding: int
    begun: float | None
    """None: its first row was read by an earlier session, and rows have times of their own."""
    rows: int | None
    """None: it began before this session, and was not read by it."""
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Details:
    """Of a Slice; they come once a second."""

    journals: tuple[JournalStatus, ...]
    """The furthest behind."""
    spans: tuple[SpanStatus, ...]
    """The oldest."""
    span_count: int
    held_by: str | None
    """The journal that holds the Slice's promise back."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """From a member, now and then, for each lane and behind what this lane has told."""

    member: int
    lane: int
    process: int
    host: str
    slice: SliceStatus
    queue: QueueStatus
    waits: tuple[Seen, ...]
    details: Details | None


def ended_threads() -> tuple[Seen, ...]:
    """Those of this process that ended too early, and that nobody else tells of."""
    process = os.getpid()
    return tuple(
        Seen(ThreadEnded(process, each.thread, each.reason), since=each.at) for each in ended()
    )


def silent_store(member: int, store: ReadableStore) -> tuple[Seen, ...]:
    """What it has been asked for and does not answer. Most of that is answered in milliseconds."""
    silence = store.silence()
    if silence is None:
        return ()
    # Another question that waits is another wait.
    progress = int(silence.begun * MICROSECONDS)
    return (Seen(StoreSilent(member, store.url, silence.reason), progress),)


def seconds_of(clock: int) -> float:
    """A clock as seconds of the wall clock."""
    seconds, nanoseconds = clock_to_unix(clock)
    return seconds + nanoseconds / 1e9
