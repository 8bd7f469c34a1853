"""The whole state of a feed, as it stands in its folder's `state.json`. Pure.

Times are seconds of the wall clock. What is not known is None, never a made-up zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

FORMAT: Final = 1
SHOWN_MAX: Final = 100
"""Of journals, of transactions, and of epochs: the state stays small whatever the feed is."""
HISTORY_SECONDS: Final = 600

Phase: TypeAlias = Literal["starting", "recovering", "running", "restarting", "stopped", "failed"]
Verdict: TypeAlias = Literal["healthy", "waiting", "stuck", "down"]


@dataclass(frozen=True, slots=True)
class Wait:
    """What holds something up now, and its cause."""

    kind: str
    who: str
    since: float
    is_stall: bool
    """It is no part of a normal flow."""
    text: str
    advice: str | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RestartEvent:
    at: float
    reason: str
    member: int | None
    recovered: float | None


@dataclass(frozen=True, slots=True)
class Restarts:
    count: int = 0
    events: tuple[RestartEvent, ...] = ()
    """The newest, oldest first."""


@dataclass(frozen=True, slots=True)
class BindingState:
    binding: int
    collection: str
    priority: int
    lane: int
    cohort: int
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Flow:
    """From a Slice to a member's Queue."""

    member: int
    rows_per_second: float | None
    credit_free: float | None
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class SliceState:
    lane: int
    reads: int
    rows_read: int
    rows_behind: int
    buffered_bytes: int
    rows_per_second: float | None
    to: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class DiskState:
    size_bytes: int
    limit_bytes: int
    is_pressed: bool
    """Rows wait for the consumer to make room."""
    overdrawn_bytes: int


@dataclass(frozen=True, slots=True)
class QueueState:
    rows: int
    waiting_rows: int
    lsn: int
    rows_per_second: float | None
    disk: DiskState


@dataclass(frozen=True, slots=True)
class MemberState:
    member: int
    process: int | None
    host: str | None
    heard: float | None
    """When it last said something."""
    vnodes: int
    slices: tuple[SliceState, ...]
    queue: QueueState | None


@dataclass(frozen=True, slots=True)
class JournalState:
    """One journal as one binding reads it."""

    journal: str
    binding: int
    member: int
    lane: int
    offset: int
    head: int
    rows_behind: int
    clock: float | None
    """Of the last row that was sent on."""
    rows_per_second: float | None


@dataclass(frozen=True, slots=True)
class Journals:
    count: int = 0
    shown: tuple[JournalState, ...] = ()
    """The furthest behind first."""


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A transaction that is open, or acknowledged in some of its journals only."""

    producer: str
    since: float
    cohort: int
    touched: tuple[str, ...]
    awaited: tuple[str, ...]
    hinted_by: str | None
    rows: int | None
    bytes: int | None
    holds_up: bool
    """A checkpoint waits for it."""


@dataclass(frozen=True, slots=True)
class Transactions:
    count: int = 0
    shown: tuple[TransactionState, ...] = ()
    """The oldest first."""


@dataclass(frozen=True, slots=True)
class EpochState:
    number: int
    verdict: Literal["commit", "abort", "open"]
    began: float
    captured_seconds: float | None
    """This, and the two below: since it began."""
    prepared_seconds: float | None
    total_seconds: float | None
    aligned: bool | None
    last_member: int | None
    """Who was last to acknowledge."""
    waits_for: tuple[int, ...]
    rows: int | None
    reason: str | None
    watermark: float | None


@dataclass(frozen=True, slots=True)
class HeldBy:
    journal: str
    member: int


@dataclass(frozen=True, slots=True)
class WatermarkState:
    clock: float | None = None
    held_by: HeldBy | None = None


@dataclass(frozen=True, slots=True)
class ConsumerState:
    kind: Literal["spark", "shuffle"]
    consumed: int
    newest: int
    since: float | None
    """Since when it is done with `consumed`."""
    rows_per_second: float | None = None
    """Of the epochs that it is done with."""


@dataclass(frozen=True, slots=True)
class RecoveryState:
    rows_done: int
    rows_total: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class HistoryState:
    seconds: tuple[float, ...] = ()
    rows_per_second: tuple[float | None, ...] = ()
    rows_behind: tuple[int | None, ...] = ()
    watermark_lag_seconds: tuple[float | None, ...] = ()
    disk_bytes: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedState:
    feed: str
    store: str
    folder: str
    process: int
    host: str
    started: float
    written: float
    phase: Phase
    reason: str | None = None
    verdict: Verdict = "waiting"
    explanation: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    """The most important first."""
    restarts: Restarts = field(default_factory=Restarts)
    bindings: tuple[BindingState, ...] = ()
    members: tuple[MemberState, ...] = ()
    journals: Journals = field(default_factory=Journals)
    transactions: Transactions = field(default_factory=Transactions)
    epochs: tuple[EpochState, ...] = ()
    """The newest last."""
    watermark: WatermarkState = field(default_factory=WatermarkState)
    consumer: ConsumerState | None = None
    recovery: RecoveryState | None = None
    vnodes: tuple[int, ...] = ()
    """The member of each."""
    history: HistoryState = field(default_factory=HistoryState)

    @property
    def rows_behind(self) -> int | None:
        """In the journals, and not yet sent on. None before a member has told."""
        behind = [each.rows_behind for member in self.members for each in member.slices]
        return sum(behind) if behind else None

    @property
    def rows_per_second(self) -> float | None:
        """Into the queues."""
        rates = [
            queue.rows_per_second for queue in self._queues if queue.rows_per_second is not None
        ]
        return sum(rates) if rates else None

    @property
    def disk_bytes(self) -> int | None:
        sizes = [queue.disk.size_bytes for queue in self._queues]
        return sum(sizes) if sizes else None

    @property
    def _queues(self) -> list[QueueState]:
        return [member.queue for member in self.members if member.queue is not None]


@dataclass(frozen=True, slots=True)
class SparkBatch:
    batch: int
    at: float
    rows: int
    epoch: int | None
    milliseconds: dict[str, float]
