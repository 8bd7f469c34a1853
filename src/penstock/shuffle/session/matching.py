"""Which commits belong together, where a transaction log says so and markers do not. Pure.

A Slice reports a transaction marker by its journal and offset. The transaction log says which
journals a transaction reaches, in the order in which the producer decided them. So the n-th marker
of a producer in a journal belongs to the n-th entry of the log that names the journal, counted from
a place where both are known to agree. That place is a *look*:

    1  the log is read to its end
    2  the end of every journal is asked for
    3  the log is read to its end again

If a producer had nothing in flight at 1, and decided nothing up to 3, then what it had decided by 1
has its markers below the ends of 2 in all journals, and whatever it decides later has them above.
It is *still* at the look. Markers below the ends count as one transaction that reached everywhere:
they are complete once every journal was read up to its end of the look. Markers above are matched
one by one.

The checkpoint pipeline compares commits of one producer across journals. Offsets do not compare, so
it is given *numbers*: of a transaction its place in the log, doubled; one more stands for "and read
up to the look". What comes out of the pipeline is translated back to offsets by `released`.

Whatever does not fit (a marker of another epoch than its entry, an entry that is missing, a marker
that may have been written twice) makes the matching of that producer begin anew at its next look:
what was not matched by then is below it.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import numpy as np

from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    reduce,
    reduce_all,
)
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer
from penstock.journal.names import name_of
from penstock.journal.offset_identity import READER, are_transactional, clock_of, offset_of
from penstock.journal.transaction_log import Decided, Idle, Missed
from penstock.shuffle.session.ledger import entries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.journal.transaction_log import LogEntry, Marker
    from penstock.shuffle.session.hint_index import HintIndex
    from penstock.shuffle.session.ledger import ReadKey

Source: TypeAlias = tuple[str, int, int]
"""A journal as frontiers call it, a binding that reads it, and a producer."""

RESUMED: Final = CLOCK_FLOOR + 1
"""The number of all that a session resumes from: below that of every transaction."""
_FIRST: Final = 16

log = logging.getLogger(__name__)


def number_of(place: int) -> int:
    """Of a transaction that the log has at this place; -1 is before all of them."""
    return 2 * (place + 1) + _FIRST


@dataclass(frozen=True, slots=True)
class _Look:
    ends: Mapping[str, int]
    """Of all journals there were, by what frontiers call them."""
    names: frozenset[str]
    moving: frozenset[int]
    """Producers that were not still."""
    decided: Mapping[int, int]
    """By producer, the number of the last thing that the log had of it."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """From where on the markers of a producer in a journal are matched one by one."""

    end: int
    look: int
    number: int
    """Of all markers below the end."""


@dataclass(slots=True)
class _Producer:
    is_in_flight: bool = False
    decided: int = field(default_factory=lambda: number_of(-1))


@dataclass(frozen=True, slots=True)
class Matched:
    """A delta for the pipeline."""

    delta: Frontier
    below: Frontier
    """The hints in it that stand for all that is below a look. They also concern a boundary that
    already waits for the producer: it cannot tell which of these commits are its own."""


class _NotYetError(Exception):
    """The log or a look is missing that would tell."""


class Matching:
    def __init__(self, index: HintIndex, cohorts: Sequence[int], resume: Frontier) -> None:
        """`cohorts` has the cohort of every binding."""
        self._index = index
        self._cohorts = tuple(cohorts)
        self._looks: list[_Look] = []
        self._first_look = 0
        """The first one that counts: before it, the log has a hole."""
        self._producers: dict[int, _Producer] = {}
        self._restless: set[int] = set()
        """Producers that were still at no look so far."""
        self._since: dict[int, int] = {}
        """By producer, the first look that counts, if its matching began anew."""
        self._anchors: dict[Source, _Anchor] = {}
        self._expected: dict[Source, deque[Decided]] = {}
        """By journal's name, binding and producer, the entries whose markers have not come."""
        self._read_to: dict[ReadKey, int] = {}
        self._unread: dict[ReadKey, list[tuple[int, int, int]]] = {}
        """By journal and binding: once it is read up to this offset, this producer has this number
        there."""
        self._promised: set[tuple[int, int, int]] = set()
        """Look, cohort and producer whose journals were all named already."""
        self._commits: dict[Source, list[tuple[int, int]]] = {}
        """Numbers and clocks of the commits that were reported and not released; the first was."""
        self.needs_look = True
        for entry in entries_of(resume):
            if entry.producer == READER.int64:
                self._read_to[entry.key] = offset_of(entry.last_commit)
            else:
                self._commits[(*entry.key, entry.producer)] = [(RESUMED, entry.last_commit)]

    # What the log tells

    def on_log(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            match entry:
                case Missed():
                    self._forget()
                case Idle():
                    # Its number counts too: compaction may have taken the decision before it.
                    known = self._producers.setdefault(entry.producer, _Producer())
                    known.is_in_flight, known.decided = False, number_of(entry.number)
                case Decided():
                    self._decided(entry)
                case _:
                    assert_never(entry)

    def _decided(self, entry: Decided) -> None:
        known = self._producers.setdefault(entry.producer, _Producer())
        known.is_in_flight = True
        known.decided = number_of(entry.number)
        if not self._has_looked or entry.producer in self._restless:
            return  # its next look, which is its first, comes later
        for journal in entry.journals:
            for binding in self._bindings(journal):
                source = (journal, binding, entry.producer)
                self._expected.setdefault(source, deque()).append(entry)

    @property
    def _has_looked(self) -> bool:
        return len(self._looks) > self._first_look

    def on_look(
        self, before: Iterable[LogEntry], ends: Mapping[str, int], after: Sequence[LogEntry]
    ) -> None:
        """The steps of a look: the log, the ends of journals as frontiers call them, the log."""
        self.on_log(before)
        moving = {number for number, known in self._producers.items() if known.is_in_flight}
        moving |= {entry.producer for entry in after if isinstance(entry, Decided)}
        if any(isinstance(entry, Missed) for entry in after):
            self.on_log(after)
            return  # who moved in between is not known: it takes another look
        still = {
            number: known.decided
            for number, known in self._producers.items()
            if number not in moving
        }
        # Whom no look had seen before was still at all of them.
        self._restless = moving & self._restless if self._has_looked else set(moving)
        names = frozenset(map(name_of, ends))
        self._looks.append(_Look(dict(ends), names, frozenset(moving), still))
        self.needs_look = False
        self.on_log(after)

    # What Slices report

    def match(self, delta: Frontier, markers: Sequence[Marker]) -> Matched | None:
        """The delta as the pipeline takes it: numbers in place of offsets, and hints at the other
        journals of each transaction. None: not before the log was read once more, or looked at
        (`needs_look`)."""
        try:
            anchors = self._anchors_of(delta, markers)
            matched = self._matched(markers, anchors)
        except _NotYetError:
            return None
        hints: dict[Source, int] = {}
        below: dict[Source, int] = {}
        for marker, entry in matched:
            if entry is not None:
                self._take(marker, entry, hints)
            elif marker.is_commit:
                source = _source(marker)
                self._take_below(source, clock_of(marker.offset), anchors[source], below)
        for source, clock in self._untold(delta, anchors):
            # Of a Slice that was restored: it told these commits to an earlier session.
            self._take_below(source, clock, anchors[source], below)
        numbered = reduce(self._numbered(delta), self._through(delta))
        named = _hinted(below)
        return Matched(reduce_all([numbered, _hinted(hints), named]), named)

    def mismatched(self, delta: Frontier, markers: Sequence[Marker]) -> None:
        """The log was read since these were reported, and does not explain them: producers that it
        does not explain are matched from their next look on."""
        anchors = self._anchors_of(delta, markers)
        counts: dict[Source, int] = {}
        for marker in markers:
            source = _source(marker)
            if marker.offset >= anchors[source].end:
                counts[source] = counts.get(source, 0) + 1
        for source, count in counts.items():
            if len(self._queue(source)) < count:
                self._begin_anew(source[2], "the transaction log has no entry for a marker of it")

    def _anchors_of(self, delta: Frontier, markers: Sequence[Marker]) -> dict[Source, _Anchor]:
        """Raises if one is missing."""
        anchors = {source: self._anchor(source) for source in {_source(one) for one in markers}}
        rows = are_transactional(delta.producers)
        for entry in entries_of(delta, rows):
            source = (*entry.key, entry.producer)
            if source not in anchors and entry.last_commit > self._last_commit(source):
                anchor = anchors[source] = self._anchor(source)
                if offset_of(entry.last_commit) >= anchor.end:
                    # Told by a Slice that was restored, and not below the look: it is too old.
                    del self._anchors[source]
                    self.needs_look = True
                    raise _NotYetError
        return anchors

    def _anchor(self, source: Source) -> _Anchor:
        found = self._anchors.get(source)
        if found is not None:
            return found
        journal, _, producer = source
        for place, look in enumerate(self._looks):
            since = max(self._first_look, self._since.get(producer, 0))
            is_early = producer in self._restless or place < since
            if is_early or producer in look.moving:
                continue
            if journal not in look.ends and name_of(journal) in look.names:
                continue  # another journal had the name then: what is expected may be of that one
            number = look.decided.get(producer, number_of(-1))
            # A journal that was not there is younger: its markers are all behind the look.
            anchor = _Anchor(look.ends.get(journal, 0), place, number)
            queue = self._queue(source)
            while queue and number_of(queue[0].number) <= number:
                queue.popleft()
            self._anchors[source] = anchor
            return anchor
        self.needs_look = True
        raise _NotYetError

    def _matched(
        self, markers: Sequence[Marker], anchors: Mapping[Source, _Anchor]
    ) -> list[tuple[Marker, Decided | None]]:
        """Each marker with its entry of the log; None for those below the look."""
        taken: dict[Source, int] = {}
        found: list[tuple[Marker, Decided | None]] = []
        for marker in markers:
            source = _source(marker)
            if marker.offset < anchors[source].end:
                found.append((marker, None))
                continue
            queue, place = self._queue(source), taken.get(source, 0)
            if place == len(queue):
                raise _NotYetError
            entry = queue[place]
            if marker.is_empty:
                # Counted, a repetition would be taken for the marker of the next transaction.
                self._begin_anew(marker.producer, "a marker of it may have been written twice")
                raise _NotYetError
            if (entry.epoch, entry.is_commit) != (marker.epoch, marker.is_commit):
                self._begin_anew(marker.producer, "a marker of it is not what the log says")
                raise _NotYetError
            taken[source] = place + 1
            found.append((marker, entry))
        return found

    def _take(self, marker: Marker, entry: Decided, hints: dict[Source, int]) -> None:
        source = _source(marker)
        self._queue(source).popleft()
        if not marker.is_commit:
            return
        number = number_of(entry.number)
        self._note(source, number, clock_of(marker.offset))
        own = (name_of(marker.journal), marker.binding)
        for journal in entry.journals:
            for binding in self._index.targets(journal, self._cohorts[marker.binding]):
                if (journal, binding) != own:
                    _raise(hints, (journal, binding, marker.producer), number)

    def _take_below(
        self, source: Source, clock: int, anchor: _Anchor, hints: dict[Source, int]
    ) -> None:
        """A commit below a look is complete when all journals were read up to it."""
        self._note(source, anchor.number, clock)
        _, binding, producer = source
        cohort = self._cohorts[binding]
        if (anchor.look, cohort, producer) in self._promised:
            return
        self._promised.add((anchor.look, cohort, producer))
        for journal, end in self._looks[anchor.look].ends.items():
            for target in self._index.targets(name_of(journal), cohort):
                if self._read_to.get((journal, target), 0) < end:
                    unread = self._unread.setdefault((journal, target), [])
                    unread.append((end, producer, anchor.number + 1))
                    _raise(hints, (name_of(journal), target, producer), anchor.number + 1)

    def _untold(
        self, delta: Frontier, anchors: Mapping[Source, _Anchor]
    ) -> list[tuple[Source, int]]:
        """Commits of the delta that no marker told."""
        return [
            ((*entry.key, entry.producer), entry.last_commit)
            for entry in entries_of(delta, are_transactional(delta.producers))
            if (*entry.key, entry.producer) in anchors
            and entry.last_commit > self._last_commit((*entry.key, entry.producer))
        ]

    def _numbered(self, delta: Frontier) -> Frontier:
        """The delta with numbers in place of the clocks of transactional producers."""
        numbers = delta.last_commits.copy()
        for entry in entries_of(delta, are_transactional(delta.producers)):
            if entry.last_commit <= CLOCK_FLOOR:
                continue  # it was read, and committed nothing
            commits = self._commits.get((*entry.key, entry.producer), ())
            found = [number for number, clock in commits if clock <= entry.last_commit]
            numbers[entry.row] = found[-1] if found else RESUMED
        # Bindings that read the same journal are hinted at by the log, too.
        hints = np.where(
            are_transactional(delta.producers), np.uint64(CLOCK_NONE), delta.hinted_commits
        )
        kept = (numbers > np.uint64(CLOCK_NONE)) | (hints > np.uint64(CLOCK_NONE))
        return replace(delta, last_commits=numbers, hinted_commits=hints).keep_entries(kept)

    def _through(self, delta: Frontier) -> Frontier:
        """What is complete because journals were read up to a look."""
        entries: dict[ReadKey, dict[int, int]] = {}
        for entry in entries_of(delta, delta.producers == READER.int64):
            end = max(offset_of(entry.last_commit), self._read_to.get(entry.key, 0))
            self._read_to[entry.key] = end
            unread = self._unread.get(entry.key, [])
            for _, producer, number in [one for one in unread if one[0] <= end]:
                own = entries.setdefault(entry.key, {})
                own[producer] = max(number, own.get(producer, 0))
            self._unread[entry.key] = [one for one in unread if one[0] > end]
        return _frontier(entries, ProducerFrontier)

    # What the pipeline gives back

    def released(self, taken: Frontier) -> Frontier:
        """What came out of the pipeline, with clocks of the journals in place of numbers."""
        clocks = taken.last_commits.copy()
        rows = are_transactional(taken.producers)
        for entry in entries_of(taken, rows):
            if entry.last_commit <= CLOCK_FLOOR:
                continue
            commits = self._commits.get((*entry.key, entry.producer), [])
            while len(commits) > 1 and commits[1][0] <= entry.last_commit:
                del commits[0]
            is_known = bool(commits) and commits[0][0] <= entry.last_commit
            clocks[entry.row] = commits[0][1] if is_known else CLOCK_FLOOR
        hints = np.where(rows, np.uint64(CLOCK_NONE), taken.hinted_commits)
        return replace(taken, last_commits=clocks, hinted_commits=hints)

    def resumed(self, resume: Frontier) -> Frontier:
        """What a pipeline begins with."""
        committed = resume.last_commits > np.uint64(CLOCK_FLOOR)
        is_numbered = are_transactional(resume.producers) & committed
        return replace(
            resume,
            last_commits=np.where(is_numbered, np.uint64(RESUMED), resume.last_commits),
        )

    # Odds and ends

    def _bindings(self, journal: str) -> list[int]:
        return [
            binding
            for cohort in sorted(set(self._cohorts))
            for binding in self._index.targets(journal, cohort)
        ]

    def _queue(self, source: Source) -> deque[Decided]:
        journal, binding, producer = source
        return self._expected.setdefault((name_of(journal), binding, producer), deque())

    def _last_commit(self, source: Source) -> int:
        commits = self._commits.get(source)
        return commits[-1][1] if commits else CLOCK_FLOOR

    def _note(self, source: Source, number: int, clock: int) -> None:
        commits = self._commits.setdefault(source, [])
        if clock > self._last_commit(source):
            commits.append((number, clock))

    def _forget(self) -> None:
        log.warning("the transaction log was compacted before it was read: matching begins anew")
        self._first_look = len(self._looks)
        self._restless, self._anchors, self._expected = set(), {}, {}
        self.needs_look = (
            True  # compaction keeps a producer's last entry: who is in flight is known
        )

    def _begin_anew(self, producer: int, why: str) -> None:
        log.warning("transactions of producer %s are matched anew: %s", _name(producer), why)
        self._restless.add(producer)
        self._since[producer] = len(self._looks)
        self._anchors = {key: anchor for key, anchor in self._anchors.items() if key[2] != producer}
        self._expected = {key: one for key, one in self._expected.items() if key[2] != producer}
        self.needs_look = True


def _source(marker: Marker) -> Source:
    return marker.journal, marker.binding, marker.producer


def _name(producer: int) -> str:
    return str(Producer.from_int64(producer))


def _raise(hints: dict[Source, int], source: Source, number: int) -> None:
    hints[source] = max(number, hints.get(source, CLOCK_NONE))


def _hinted(hints: Mapping[Source, int]) -> Frontier:
    entries: dict[ReadKey, dict[int, int]] = {}
    for (journal, binding, producer), number in hints.items():
        entries.setdefault((journal, binding), {})[producer] = number
    return _frontier(
        entries, lambda producer, number: ProducerFrontier(producer, CLOCK_NONE, number)
    )


def _frontier(
    entries: Mapping[ReadKey, Mapping[int, int]],
    entry_of: Callable[[Producer, int], ProducerFrontier],
) -> Frontier:
    """A frontier of these journals, of which each producer has a number."""

    def made(numbers: Mapping[int, int]) -> tuple[ProducerFrontier, ...]:
        found = [entry_of(Producer.from_int64(one), number) for one, number in numbers.items()]
        return tuple(sorted(found, key=lambda entry: entry.producer))

    return Frontier.of(JournalFrontier(*key, made(own)) for key, own in sorted(entries.items()))
