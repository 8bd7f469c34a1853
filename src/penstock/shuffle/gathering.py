"""The state of a feed, put together from what its Session knows. Pure.

SessionView, what happened before ──> FeedState, with its waits and what they mean
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from penstock.journal.names import name_of
from penstock.shuffle.naming import Naming
from penstock.shuffle.session.view import SILENT_SECONDS
from penstock.shuffle.status import seconds_of
from penstock.watch.causes import DiskOverdrawn, OpenTransaction
from penstock.watch.explaining import explained
from penstock.watch.history import History, Point
from penstock.watch.rates import Rates
from penstock.watch.standing import Seen, Standing
from penstock.watch.state import (
    SHOWN_MAX,
    BindingState,
    ConsumerState,
    DiskState,
    EpochState,
    Flow,
    HeldBy,
    Journals,
    JournalState,
    MemberState,
    QueueState,
    RecoveryState,
    SliceState,
    Transactions,
    TransactionState,
    WatermarkState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.epoch.times import EpochTime
    from penstock.routing import Assignment
    from penstock.shuffle.session.view import SessionView
    from penstock.shuffle.status import QueueStatus, SpanStatus
    from penstock.watch.state import FeedState

Consumer = Literal["spark", "shuffle"]


class Gathering:
    """Of one feed, as long as its process lives: it remembers what rates, ages and history need."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._standing = Standing()
        self._history = History()
        self._epochs: dict[int, EpochState] = {}
        self._consumed: tuple[int, float] | None = None
        self._consumed_rows = 0
        self._recovery_began: float | None = None

    def look(
        self,
        begun: FeedState,
        view: SessionView | None,
        assignment: Assignment,
        consumer: Consumer,
        waits: Iterable[Seen],
    ) -> FeedState:
        """`begun` has what is known without a Session: who, where, the time and the phase. `waits`
        are those that the Session does not know of."""
        now = begun.written
        self._rates.begin(now)
        seen = list(waits)
        state = replace(begun, vnodes=assignment.owners)
        if view is not None:
            state, found = self._with_view(state, view, assignment, consumer)
            seen += found
        watermark = state.watermark.clock
        self._history.add(
            now,
            Point(
                state.rows_per_second,
                state.rows_behind,
                None if watermark is None else max(0.0, now - watermark),
                state.disk_bytes,
            ),
        )
        return explained(
            replace(
                state,
                waits=self._standing.look(seen, now),
                epochs=tuple(self._epochs.values()),
                history=self._history.state(),
            )
        )

    def _with_view(
        self, state: FeedState, view: SessionView, assignment: Assignment, consumer: Consumer
    ) -> tuple[FeedState, list[Seen]]:
        now = state.written
        self._remember_epochs(view)
        naming = Naming(view)
        transactions = _transactions(view, naming, state.started)
        seen = [*view.waits(consumer, now), *transactions.waits()]
        largest = transactions.largest
        for heard, status in view.heard.values():
            if now - heard <= SILENT_SECONDS:  # else it may have gone on long ago
                seen += [_told_why(each, largest) for each in status.waits]
        return (
            replace(
                state,
                bindings=_bindings(view),
                members=tuple(
                    self._member(member, view, assignment) for member in assignment.members
                ),
                journals=self._journals(view, naming),
                transactions=transactions.state(),
                watermark=self._watermark(view, naming),
                consumer=self._consumer(view, consumer, now),
                recovery=self._recovery(view, now),
            ),
            [naming.seen(each) for each in seen],
        )

    # Members and journals

    def _member(self, member: int, view: SessionView, assignment: Assignment) -> MemberState:
        found = {lane: view.heard[one, lane] for one, lane in view.heard if one == member}
        vnodes = len(assignment.vnodes_of(member))
        if not found:
            return MemberState(member, None, None, None, vnodes, (), None)
        heard = max(at for at, _ in found.values())
        newest = max(found.values(), key=lambda each: each[0])[1]
        return MemberState(
            member,
            newest.process,
            newest.host,
            heard,
            vnodes,
            tuple(self._slice(member, lane, view) for lane in sorted(found)),
            self._queue(member, newest.queue),
        )

    def _slice(self, member: int, lane: int, view: SessionView) -> SliceState:
        told = view.heard[member, lane][1].slice
        return SliceState(
            lane,
            told.reads,
            told.rows_read,
            told.rows_behind,
            told.buffered_bytes,
            self._rates.of(("slice", member, lane), told.rows_read),
            tuple(
                Flow(
                    each.member,
                    self._rates.of(("flow", member, lane, each.member), each.rows),
                    each.credit_free,
                )
                for each in told.sent
            ),
        )

    def _queue(self, member: int, told: QueueStatus) -> QueueState:
        overdrawn = told.size_bytes - told.limit_bytes if told.is_overdrawn else 0
        return QueueState(
            told.rows,
            told.waiting_rows,
            told.lsn,
            self._rates.of(("queue", member), told.rows),
            DiskState(told.size_bytes, told.limit_bytes, told.is_pressed, max(0, overdrawn)),
        )

    def _journals(self, view: SessionView, naming: Naming) -> Journals:
        found = [
            JournalState(
                naming.journal(each.journal),
                each.binding,
                member,
                lane,
                each.offset,
                each.head,
                each.head - each.offset,
                each.clock,
                self._rates.of(("journal", each.journal, each.binding), each.offset),
            )
            for (member, lane), details in view.details.items()
            for each in details.journals
        ]
        found.sort(key=lambda each: (-each.rows_behind, each.journal, each.binding))
        count = sum(status.slice.reads for _, status in view.heard.values())
        return Journals(count, tuple(found[:SHOWN_MAX]))

    # Epochs and what follows them

    def _remember_epochs(self, view: SessionView) -> None:
        unaligned = {status.queue.unaligned_epoch for _, status in view.heard.values()}
        for each in view.epochs:
            known = self._epochs.get(each.number)
            if known is None or known.verdict == "open":
                self._epochs[each.number] = _epoch(each, view, unaligned)
        self._epochs = dict(sorted(self._epochs.items())[-SHOWN_MAX:])

    def session_ends(self) -> None:
        """An epoch that is open then is decided by the next session, which tells no more of it."""
        self._epochs = {
            number: each for number, each in self._epochs.items() if each.verdict != "open"
        }

    def _watermark(self, view: SessionView, naming: Naming) -> WatermarkState:
        clocks = [each.watermark for each in self._epochs.values() if each.watermark is not None]
        promised = [
            (status.slice.promised, key)
            for key, (_, status) in view.heard.items()
            if status.slice.promised is not None
        ]
        held_by = None
        if promised:
            _, (member, lane) = min(promised)
            details = view.details.get((member, lane))
            if details is not None and details.held_by is not None:
                held_by = HeldBy(naming.journal(details.held_by), member)
        return WatermarkState(clocks[-1] if clocks else None, held_by)

    def _consumer(self, view: SessionView, consumer: Consumer, now: float) -> ConsumerState:
        if self._consumed is None:
            self._consumed = view.consumed, now
        if self._consumed[0] != view.consumed:
            done = range(self._consumed[0] + 1, view.consumed + 1)
            self._consumed_rows += sum(view.epoch_rows.get(epoch, 0) for epoch in done)
            self._consumed = view.consumed, now
        rate = self._rates.of("consumer", self._consumed_rows)
        return ConsumerState(consumer, view.consumed, view.newest, self._consumed[1], rate)

    def _recovery(self, view: SessionView, now: float) -> RecoveryState | None:
        if not view.is_recovery:
            self._recovery_began = None
            return None
        if self._recovery_began is None:
            self._recovery_began = now
        done, total = view.rows_recovered, view.rows_to_recover
        seconds = now - self._recovery_began
        left = seconds / done * (total - done) if done and seconds else None
        return RecoveryState(done, total, left)


def _bindings(view: SessionView) -> tuple[BindingState, ...]:
    return tuple(
        BindingState(
            each.place,
            each.collection,
            view.plan.lanes[each.lane],
            each.lane,
            each.cohort,
            (each.delay >> 4) / 1e7,
        )
        for each in view.plan.bindings[:SHOWN_MAX]
    )


def _epoch(each: EpochTime, view: SessionView, unaligned: set[int]) -> EpochState:
    decision = each.decision
    verdict: Literal["commit", "abort", "open"] = "open"
    if decision is not None:
        verdict = "commit" if decision.is_commit else "abort"
    return EpochState(
        number=each.number,
        verdict=verdict,
        began=each.began,
        captured_seconds=_after(each.captured, each.began),
        prepared_seconds=_after(each.prepared, each.began),
        total_seconds=_after(each.concluded, each.began),
        aligned=None if verdict != "commit" else each.number not in unaligned,
        last_member=each.last_member,
        waits_for=each.waits_for,
        rows=view.epoch_rows.get(each.number),
        reason=decision.reason or None if decision is not None else None,
        watermark=(
            None if decision is None or not decision.watermark else seconds_of(decision.watermark)
        ),
    )


def _after(moment: float | None, begin: float | None) -> float | None:
    return None if moment is None or begin is None else max(0.0, moment - begin)


@dataclass(slots=True)
class _Transaction:
    producer: str
    cohort: int
    since: float
    is_external: bool = False
    """In partitions of Kafka's."""
    touched: dict[str, None] = field(default_factory=dict)
    awaited: dict[str, None] = field(default_factory=dict)
    hinted_by: str | None = None
    rows: int | None = 0
    size_bytes: int | None = 0
    """Of its open spans; if it has none any more, what it holds is not known."""

    def add(self, span: SpanStatus) -> None:
        self.since = self.since if span.begun is None else min(self.since, span.begun)
        self.touched[span.journal] = None
        self.rows = None if self.rows is None or span.rows is None else self.rows + span.rows
        if self.size_bytes is None or span.bytes is None:
            self.size_bytes = None
        else:
            self.size_bytes += span.bytes


class _Open:
    """The transactions that are open, or not acknowledged everywhere."""

    def __init__(self, found: list[_Transaction], others: int, naming: Naming) -> None:
        self._naming = naming
        self._found = sorted(found, key=lambda each: (each.since, each.producer))
        self._others = others

    @property
    def largest(self) -> _Transaction | None:
        """Of those whose rows are stored."""
        held = [each for each in self._found if each.rows != 0]
        return max(held, key=lambda each: each.size_bytes or 0, default=None)

    def waits(self) -> Iterable[Seen]:
        for each in self._found[:SHOWN_MAX]:
            if not each.awaited:  # else the checkpoint says what it waits for
                yield Seen(
                    OpenTransaction(
                        each.producer,
                        tuple(each.touched),
                        each.cohort,
                        each.rows,
                        each.size_bytes,
                        each.is_external,
                    ),
                    since=each.since,
                )

    def state(self) -> Transactions:
        return Transactions(
            len(self._found) + self._others,
            tuple(
                TransactionState(
                    self._naming.producer(each.producer),
                    each.since,
                    each.cohort,
                    tuple(map(self._naming.journal, each.touched)),
                    tuple(map(self._naming.journal, each.awaited)),
                    each.hinted_by and self._naming.journal(each.hinted_by),
                    each.rows or None,
                    each.size_bytes or None,
                    holds_up=bool(each.awaited),
                )
                for each in self._found[:SHOWN_MAX]
            ),
        )


def _transactions(view: SessionView, naming: Naming, started: float) -> _Open:
    """`started` is when the feed did: a span of which nobody knows when it began is as old."""
    found: dict[tuple[str, int], _Transaction] = {}

    def of(producer: str, cohort: int, since: float) -> _Transaction:
        key = producer, cohort
        if key not in found:
            found[key] = _Transaction(producer, cohort, since)
        return found[key]

    for details in view.details.values():
        for span in details.spans:
            cohort = view.plan.bindings[span.binding].cohort
            since = naming.began(span.producer) or span.begun or started
            transaction = of(span.producer, cohort, since)
            transaction.is_external |= naming.is_partition(span.journal)
            transaction.add(span)
    if not view.is_recovery:
        for each in view.awaited:
            transaction = of(str(each.commit.producer), each.cohort, each.since)
            transaction.awaited[name_of(each.commit.journal)] = None
            if each.hinted_by is not None:
                transaction.hinted_by = name_of(each.hinted_by)
                transaction.touched[transaction.hinted_by] = None
    others = sum(each.span_count - len(each.spans) for each in view.details.values())
    return _Open(list(found.values()), others, naming)


def _told_why(seen: Seen, largest: _Transaction | None) -> Seen:
    """A Queue knows that it is over its budget, and not whose rows it holds."""
    if not isinstance(seen.cause, DiskOverdrawn) or largest is None or not largest.touched:
        return seen
    journal = next(iter(largest.touched))
    return replace(seen, cause=replace(seen.cause, producer=largest.producer, journal=journal))
