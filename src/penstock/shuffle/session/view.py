"""What a Session knows at a moment, for whoever watches, and what it waits for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.frontier import resolve_checkpoint
from penstock.journal.names import name_of
from penstock.shuffle.status import seconds_of
from penstock.watch.causes import (
    Acknowledging,
    AwaitedCommit,
    Consuming,
    EpochsAhead,
    Idle,
    Listing,
    Recovery,
    TransactionLogWait,
    WholePerPartition,
)
from penstock.watch.standing import Seen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.epoch.times import EpochTime
    from penstock.frontier import Frontier
    from penstock.journal.transaction_log import NamedProducer
    from penstock.shuffle.plan import Plan
    from penstock.shuffle.resume import Resume
    from penstock.shuffle.session.pipeline import Awaited
    from penstock.shuffle.session.state import SliceKey
    from penstock.shuffle.status import Details, MemberStatus

AWAITED_MAX: Final = 100
"""Commits that are named. Who waits for more waits for one of these, too."""
SILENT_SECONDS: Final = 2.0
"""A member says something four times a second."""

Heard: TypeAlias = tuple[float, "MemberStatus"]


@dataclass(frozen=True, slots=True)
class AwaitedView:
    cohort: int
    since: float
    commit: Awaited
    hinted_by: str | None


@dataclass(frozen=True, slots=True)
class SessionView:
    plan: Plan
    members: tuple[int, ...]
    heard: Mapping[SliceKey, Heard]
    """The last status of each Slice, and when it came."""
    details: Mapping[SliceKey, Details]
    unlisted: tuple[tuple[int, SliceKey], ...]
    """Bindings, and which Slice lists them."""
    awaited: tuple[AwaitedView, ...]
    epochs: tuple[EpochTime, ...]
    epoch_rows: Mapping[int, int]
    """Of the journals, that an epoch has and the one before has not."""
    consumed: int
    drawn: int
    """The consumer has asked for what comes after this epoch: so it is done with it, though it may
    not have said so. Spark says so when it plans its next batch."""
    newest: int
    epochs_ahead_max: int
    has_news: bool
    is_recovery: bool
    is_caught_up: bool
    rows_to_recover: int
    is_whole: bool = True
    """Transactions are whole across journals."""
    unmatched_since: float | None = None
    """Since when progress waits for the transaction log, if some does."""
    named: Mapping[str, NamedProducer] = field(default_factory=dict)
    """By producer, what the transaction log knows of those that are shown."""

    @property
    def rows_recovered(self) -> int:
        rows = sum(status.slice.rows_read for _, status in self.heard.values())
        return min(rows, self.rows_to_recover)

    def waits(self, consumer: str, now: float) -> Iterator[Seen]:
        for binding, (member, lane) in self.unlisted:
            collection = self.plan.bindings[binding].collection
            yield Seen(Listing(member, lane, binding, collection))
        yield from self._epoch_waits(now)
        if self.is_recovery:
            yield from self._recovery_waits()
            return
        for each in self.awaited:
            yield Seen(
                AwaitedCommit(
                    each.cohort,
                    str(each.commit.producer),
                    name_of(each.commit.journal),
                    each.hinted_by and name_of(each.hinted_by),
                    committed_at(self.plan, each.commit),
                ),
                since=each.since,
            )
        if not self.is_whole:
            yield Seen(WholePerPartition())
        if self.unmatched_since is not None:
            yield Seen(TransactionLogWait(), since=self.unmatched_since)
        if self.newest > self.drawn:
            yield Seen(Consuming(consumer, self.drawn, self.newest), self.drawn)
            if self.has_news and self.newest - self.consumed >= self.epochs_ahead_max:
                cause = EpochsAhead(self.consumed, self.newest, self.epochs_ahead_max)
                yield Seen(cause, self.consumed)
        elif self.is_caught_up:
            rows = sum(status.slice.read_offset for _, status in self.heard.values())
            yield Seen(Idle(), rows)

    def _epoch_waits(self, now: float) -> Iterator[Seen]:
        if not self.epochs or self.epochs[-1].stage is None:
            return
        epoch = self.epochs[-1]
        times: dict[int, float] = {}
        for (member, _), (heard, _) in self.heard.items():
            times[member] = max(heard, times.get(member, heard))
        silent = tuple(
            member
            for member in epoch.waits_for
            if member in self.members and now - times.get(member, epoch.began) > SILENT_SECONDS
        )
        cause = Acknowledging(epoch.number, str(epoch.stage), epoch.waits_for, silent)
        yield Seen(cause, since=epoch.began)

    def _recovery_waits(self) -> Iterator[Seen]:
        journals = {(each.commit.journal, each.commit.binding) for each in self.awaited}
        yield Seen(Recovery(self.rows_recovered, self.rows_to_recover, len(journals)))


def rows_to_recover(resume: Resume) -> int:
    """How many rows a recovery session has to read, by what the newest epoch knew."""
    if not resume.recovering:
        return 0
    newest, start = resume.newest.frontier, resume.record.consumed.frontier
    return sum(
        max(0, _end(newest, index) - _begin(start, index, newest))
        for index in range(newest.journal_count)
    )


def _end(frontier: Frontier, index: int) -> int:
    return max((abs(one.offset) for one in frontier.journal_at(index).producers), default=0)


def _begin(frontier: Frontier, index: int, newest: Frontier) -> int:
    journal = newest.journal_at(index)
    known = frontier.journal(journal.journal, journal.binding)
    return 0 if known is None else resolve_checkpoint(known.producers).offset


def committed_at(plan: Plan, awaited: Awaited) -> float | None:
    """When a commit that is awaited was made, in seconds. None where its clock is no time."""
    if plan.bindings[awaited.binding].by_offset:
        return None
    return seconds_of(awaited.hinted_commit)
