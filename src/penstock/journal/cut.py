"""A cut: up to where each journal is read, and which commits of each producer count.

A cut never shows a part of a transaction, although journals are probed one after the other while
producers go on. A transaction whose ACKs may lie on both sides of the probes is hidden in all
journals, and with it what the same producer committed there after it. These are the steps:

    1  the journals and write heads of now: whatever begins later lies behind them
    2  every producer's touches, then its completed clock. All transactions up to that clock
       were acknowledged everywhere before this moment, so they lie below the heads of step 3
    3  the journals and write heads again: these are the ends of the cut. A journal that is new
       is looked at from its begin; producers that are new have no completed clock that counts
    4  between where an uncompleted transaction can begin (its touch, or the head of step 1) and
       the end, ACKs above the completed clock are looked for: the producer's commits from that
       clock on are hidden in that journal

In step 2 the touches come first: read the other way round, a transaction could be over by the
time its touches are read, and its ACKs be looked for too late in the journal.

Of a producer whose ledger is damaged the journals tell enough. What it had committed anywhere
before step 1 is, by step 3, acknowledged in all of its journals, or one of them has its span open:
documents are durable before a commit is. A producer does one thing after the other, so all that it
committed before the first document of that span is whole, and only what comes later is hidden.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from penstock.errors import ConfigurationError
from penstock.frontier import Frontier, describe_unresolved, from_json
from penstock.ids import CLOCK_MAX, CLOCK_NONE, Kind, clock_from_datetime
from penstock.journal.errors import (
    DamagedLedgerError,
    OffsetDroppedError,
    ProducerFencedError,
    UnknownJournalError,
)
from penstock.journal.names import known_as
from penstock.journal.progress import first_clock_open, states_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.journal.store import Probe, ReadableStore, States
    from penstock.journal.writable import ProducerRecord, WritableStore

AsOf: TypeAlias = datetime.datetime | Frontier | None
"""A moment, a frontier, or everything there is."""
Journals: TypeAlias = "Sequence[str] | Callable[[], Sequence[str]]"
"""By name where no others can appear; else who lists them."""

_TRIES_MAX: Final = 3
"""Retention drops a segment now and then; not three times within one cut."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalCut:
    """The part of a journal that counts: rows [begin, end), of these the documents whose commit
    clock is at most `commit_max`, or the producer's own limit where it has one."""

    journal: str
    begin: int
    end: int
    commit_max: int = CLOCK_MAX
    limits: Mapping[int, int] = field(default_factory=dict)

    def limit(self, producer: int) -> int:
        return self.limits.get(producer, self.commit_max)


def take_cut(
    store: WritableStore,
    journals: Journals,
    as_of: AsOf = None,
    binding: int = 0,
) -> list[JournalCut]:
    """What `ReadableStore.cut` asks for, of a store that has ledgers."""
    for _ in range(_TRIES_MAX):
        # Retention may take away what was just probed.
        with contextlib.suppress(OffsetDroppedError):
            return _take_cut(store, journals, as_of, binding)
    return _take_cut(store, journals, as_of, binding)


def _take_cut(
    store: WritableStore, journals: Journals, as_of: AsOf, binding: int
) -> list[JournalCut]:
    if isinstance(as_of, Frontier):
        return cut_at(store, journals, as_of, binding)
    commit_max = CLOCK_MAX if as_of is None else clock_from_datetime(as_of)
    first = _probed(store, journals)  # step 1
    known, damaged = _records(store)  # step 2
    probes = _probed(store, journals)  # step 3
    completed = {record.producer.int64: record.completed for record in known if not record.settled}
    strangers = {ledger.producer.int64 for ledger in store.ledgers()} - damaged
    strangers -= {record.producer.int64 for record in known}
    completed.update(dict.fromkeys(strangers, CLOCK_NONE))
    touched: dict[str, int] = {}
    for record in known:
        decided = () if record.decision is None else record.decision.touches
        for touch in (*record.touches, *decided):
            touched[touch.journal] = min(touch.offset, touched.get(touch.journal, touch.offset))
    provable = _provable(store, damaged, first, probes)
    cuts = []
    for journal, probe in probes.items():  # step 4
        head = first[journal].write_head if journal in first else 0
        begin = min(head, touched.get(journal, probe.write_head))
        begin = max(begin, probe.first_kept)
        hidden = _hidden_from(store, journal, begin, probe.write_head, completed)
        limits = {producer: min(clock - 1, commit_max) for producer, clock in hidden.items()}
        limits |= {producer: min(clock, commit_max) for producer, clock in provable.items()}
        cuts.append(JournalCut(journal, probe.first_kept, probe.write_head, commit_max, limits))
    return cuts


def cut_at(
    store: ReadableStore, journals: Journals, frontier: Frontier, binding: int = 0
) -> list[JournalCut]:
    """The cut of these journals that a frontier names."""
    if frontier.unresolved_hints:
        raise ConfigurationError(
            "this frontier would show a part of a transaction:\n" + describe_unresolved(frontier)
        )
    probes = _probed(store, journals)
    return [_at_frontier(name, probe, frontier, binding) for name, probe in probes.items()]


def _probed(store: ReadableStore, journals: Journals) -> dict[str, Probe]:
    """What they hold. Listed ones may have vanished since; those that were named may not."""
    names = journals() if callable(journals) else journals
    found = store.probes(names)
    if not callable(journals):
        check_there(names, found)
    return found


def check_there(names: Iterable[str], found: Mapping[str, Probe]) -> None:
    """Of journals that are given by name, all have to be there."""
    for missing in sorted(set(names) - found.keys()):
        raise UnknownJournalError(missing)


def parse_as_of(text: str) -> AsOf:
    """Reads an option: a frontier as JSON, or a moment like 2026-11-15T20:00:00+00:00."""
    if text.lstrip().startswith("{"):
        return from_json(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"as_of {text!r} is neither a moment (2026-11-15T20:00:00+00:00) nor a frontier's JSON"
        ) from None
    if moment.tzinfo is None:
        raise ConfigurationError(f"as_of {text!r} has no time zone; write for example {text}+00:00")
    return moment


def _at_frontier(journal: str, probe: Probe, frontier: Frontier, binding: int) -> JournalCut:
    # A frontier of a shuffle knows journals by their identities too; then another one in its place
    # is none of the frontier's.
    found = frontier.journal(known_as(journal, probe.identity), binding)
    found = found or frontier.journal(journal, binding)
    entries = () if found is None else found.producers
    ahead = max((abs(entry.offset) for entry in entries), default=0)
    if ahead > probe.write_head:
        raise ConfigurationError(
            f"the frontier is at offset {ahead} of {journal}, which ends at {probe.write_head}: "
            "it belongs to another store"
        )
    limits = {entry.producer.int64: entry.last_commit for entry in entries}
    return JournalCut(journal, probe.first_kept, probe.write_head, CLOCK_NONE, limits)


def _records(store: WritableStore) -> tuple[list[ProducerRecord], set[int]]:
    """What the ledgers say, and the producers whose ledger is damaged and not settled."""
    records, damaged = [], set()
    for ledger in store.ledgers():
        try:
            records.append(ledger.record())
        except ProducerFencedError:
            pass  # forgotten just now, and settled long ago: it is acknowledged everywhere
        except DamagedLedgerError as damage:
            if not damage.known.is_settled:
                log.warning("%s", damage)
                damaged.add(ledger.producer.int64)
    return records, damaged


def _provable(
    store: WritableStore,
    producers: set[int],
    first: Mapping[str, Probe],
    probes: Mapping[str, Probe],
) -> dict[int, int]:
    """Up to which clock the journals themselves prove that a producer's commits are whole."""
    if not producers:
        return {}
    found = dict.fromkeys(producers, CLOCK_NONE)
    for journal, probe in first.items():
        states = _states(store, journal, probe)
        for producer in producers & states.keys():
            found[producer] = max(found[producer], states[producer].last_commit)
    for journal, probe in probes.items():
        states = _states(store, journal, probe)
        for producer in producers & states.keys():
            begun = first_clock_open(store, journal, producer, states[producer])
            if begun is not None:
                found[producer] = min(found[producer], begun - 1)
    return found


def _states(store: WritableStore, journal: str, probe: Probe) -> States:
    return states_of(store, JournalCut(journal, probe.first_kept, probe.write_head))


def _hidden_from(
    store: WritableStore, journal: str, begin: int, end: int, completed: Mapping[int, int]
) -> dict[int, int]:
    """For each producer with an uncompleted transaction acknowledged in [begin, end): its clock.

    An ACK commits if it comes after documents of its span and none of them is later than it;
    the ACK of a rollback repeats an older clock.
    """
    hidden: dict[int, int] = {}
    latest: dict[int, int] = {}  # the latest clock of each producer's open span
    if begin >= end or not completed:
        return hidden
    for batch in store.read(journal, begin, end, columns=()):
        for producer in np.unique(batch.producers).tolist():
            if producer not in completed:
                continue
            rows = np.flatnonzero(batch.producers == producer)
            kinds, clocks = batch.flags[rows] & 3, batch.clocks[rows]
            spans = np.where(kinds & Kind.CONTINUE, clocks, 0).astype(np.uint64)
            after, span = 0, latest.get(producer, 0)
            for row in np.flatnonzero(kinds == Kind.ACK).tolist():
                clock = int(clocks[row])
                span = max(span, int(spans[after:row].max(initial=0)))
                if clock > completed[producer] and 0 < span <= clock:
                    hidden[producer] = min(clock, hidden.get(producer, clock))
                after, span = row, 0
            latest[producer] = max(span, int(spans[after:].max(initial=0)))
    return hidden
