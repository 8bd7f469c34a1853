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
that may have been written twice, rows that a journal has lost) makes the matching of that producer
begin anew at its next look: what was not matched by then is below it.

With each epoch is remembered where matching stands (`remembered.py`). The next session goes on from
there, as if it had looked then; only if the log has lost entries since, it begins with a look.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

import numpy as np

from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier, reduce, reduce_all
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer
from penstock.journal.names import name_of
from penstock.journal.offset_identity import READER, are_transactional, clock_of, offset_of
from penstock.journal.transaction_log import Decided, Idle, Missed
from penstock.shuffle.session.ledger import entries_of, is_open
from penstock.shuffle.session.looks import Anchor, LoggedProducer, Matched, NotYetError, PastLook
from penstock.shuffle.session.numbers import (
    RESUMED,
    hinted,
    number_of,
    place_of,
    raise_to,
    source_of,
)
from penstock.shuffle.session.remembered import Remembered, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.journal.transaction_log import LogEntry, Marker
    from penstock.shuffle.session.hint_index import HintIndex
    from penstock.shuffle.session.ledger import ReadKey

log = logging.getLogger(__name__)


class Matching:
    def __init__(
        self,
        index: HintIndex,
        cohorts: Sequence[int],
        resume: Frontier,
        remembered: Remembered | None = None,
    ) -> None:
        """`cohorts` has the cohort of every binding. What is `remembered` belongs to the resume
        frontier. The first entries of the log that it is told are then those from
        `remembered.begins()` on."""
        self._index = index
        self._cohorts = tuple(cohorts)
        self._looks: list[PastLook] = []
        self._first_look = 0
        """The first one that counts: before it, the log has a hole."""
        self._producers: dict[int, LoggedProducer] = {}
        self._restless: set[int] = set()
        """Producers that were still at no look so far."""
        self._since: dict[int, int] = {}
        """By producer, the first look that counts, if its matching began anew."""
        self._anchors: dict[Source, Anchor] = {}
        self._expected: dict[Source, deque[Decided]] = {}
        """By journal's name, binding and producer, the entries whose markers have not come."""
        self._read_to: dict[ReadKey, int] = {}
        self._of_name: defaultdict[str, set[str]] = defaultdict(set)
        """By name, the journals that were read."""
        self._unread: dict[ReadKey, list[tuple[int, int, int]]] = {}
        """By journal and binding: once it is read up to this offset, this producer has this number
        there."""
        self._promised: set[tuple[int, int, int]] = set()
        """Look, cohort and producer whose journals were all named already."""
        self._commits: dict[Source, list[tuple[int, int]]] = {}
        """Numbers and clocks of the commits that were reported and not released; the first was."""
        self._pending: set[Source] = set()
        """Those of them that have more than the first."""
        self._log_ends: dict[int, int] = {}
        self._has_read_log = False
        self._read_through: set[int] = set()
        """Looks up to which all journals were read."""
        self.needs_look = remembered is None
        for entry in entries_of(resume):
            if entry.producer == READER.int64:
                self._note_read(entry.key, offset_of(entry.last_commit))
            else:
                self._commits[(*entry.key, entry.producer)] = [(RESUMED, entry.last_commit)]
        self._remembered = remembered
        self._opened: set[Source] = set()
        """Who has rows of a transaction that is not over, up to where each journal was read."""
        self._offsets: dict[Source, int] = {}
        """As frontiers have them: where open spans begin, or the last one ended."""
        self._begun_anew: set[int] = set()
        """Producers whose commits may wait for markers that are matched with nothing any more, and
        that were still at no look since."""
        self._through: dict[ReadKey, dict[int, int]] = {}
        """By journal and binding, the numbers of producers that are complete because it was read up
        to a look, and were not told to the pipeline."""
        self._unheard: dict[Source, tuple[int, int]] = {}
        """Of `Remembered.pending`, those whose journals this session has not heard of yet."""
        self._expected_from: dict[Source, int] = {}
        """Of entries that an earlier session has read these count, from this place on."""
        if remembered is not None:
            self._resume(remembered)

    def _resume(self, remembered: Remembered) -> None:
        is_look = remembered.is_look
        ends = dict.fromkeys(remembered.journals, 0)
        ends |= {journal: end if is_look else 0 for (journal, _), end in remembered.reads.items()}
        self._looks.append(
            PastLook(
                *(ends, frozenset(map(name_of, ends)), remembered.restless),
                decided={},
                log=remembered.log,
                is_resumed=not is_look,
            )
        )
        self._restless = set(remembered.restless)
        self._log_ends = {one: end for one, (_, end) in remembered.log.items()}
        if not is_look:
            for key, end in remembered.reads.items():
                self._note_read(key, end)
        self._unheard = dict(remembered.pending)
        self._opened = set(remembered.opened)
        self._expected_from = dict(remembered.expected)
        for source, (offset, place) in remembered.pending.items():
            self._anchors[source] = Anchor(offset, 0, number_of(-1), is_resumed=True)
            named = (name_of(source[0]), *source[1:])
            self._expected_from[named] = min(place, self._expected_from.get(named, place))

    # What an epoch remembers

    def remembered(self) -> Remembered | None:
        """Where matching stands with all that was released. None: at no place to go on from."""
        if not self._has_read_log:
            return self._remembered
        if not self._has_looked:
            return None
        if not self._is_read_through(self._first_look):
            return self._remembered_look(self._looks[self._first_look])
        restless = set(self._restless)
        for producer in {*self._since, *self._looks[self._first_look].moving}:
            looks = self._looks_of(producer)
            if not looks or not self._is_read_through(looks[0]):
                restless.add(producer)
        pending = dict(self._unheard)
        for source in self._pending:
            number, clock = self._commits[source][1]
            anchor = self._anchors.get(source)
            if anchor is None or number <= anchor.number:
                restless.add(source[2])  # below a look: not one entry's
            pending.setdefault(source, (offset_of(clock), place_of(number)))
        pending = {source: one for source, one in pending.items() if source[2] not in restless}
        expected = {
            source: queue[0].number
            for source, queue in self._expected.items()
            if queue and source[2] not in restless
        }
        needed = {p: known.decided for p, known in self._producers.items() if known.is_in_flight}
        for producer, place in [
            *((source[2], place) for source, (_, place) in pending.items()),
            *((source[2], place) for source, place in expected.items()),
        ]:
            needed[producer] = min(number_of(place), needed.get(producer, number_of(place)))
        journals = [look.ends.keys() for look in self._looks[self._first_look :]]
        return Remembered(
            self._log_since(needed),
            dict(self._read_to),
            pending,
            expected,
            frozenset(self._opened),
            frozenset(restless),
            journals=frozenset().union(*journals),
        )

    def _log_since(self, needed: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """By partition, where the log was read to, and where the first of the entries is that are
        needed: by producer, their numbers."""
        begins = dict(self._log_ends)
        for producer, number in needed.items():
            partition = self._producers[producer].partition
            begins[partition] = min(place_of(number), begins[partition])
        return {one: (begin, self._log_ends[one]) for one, begin in begins.items()}

    def _remembered_look(self, look: PastLook) -> Remembered:
        reads = {
            (journal, binding): end
            for journal, end in look.ends.items()
            for binding in self._bindings(name_of(journal))
        }
        restless = frozenset({*look.moving, *self._since})
        return Remembered(look.log, reads, restless=restless, is_look=True)

    def _looks_of(self, producer: int) -> list[int]:
        """The looks at which a producer was still, of those that count."""
        begin = max(self._first_look, self._since.get(producer, 0))
        places = range(begin, len(self._looks))
        return [place for place in places if producer not in self._looks[place].moving]

    def _is_read_through(self, place: int) -> bool:
        if place not in self._read_through and all(
            self._read_to.get((journal, binding), 0) >= end
            for journal, end in self._looks[place].ends.items()
            for binding in self._bindings(name_of(journal))
        ):
            self._read_through.add(place)
        return place in self._read_through

    # What the log tells

    def on_log(self, entries: Iterable[LogEntry]) -> None:
        self._has_read_log = True
        for entry in entries:
            match entry:
                case Missed():
                    self.forget("the transaction log was compacted before it was read")
                case Idle():
                    # Its number counts too: compaction may have taken the decision before it.
                    self._told(entry).is_in_flight = False
                case Decided():
                    is_new = entry.number >= self._log_ends.get(entry.partition, 0)
                    self._told(entry).is_in_flight = True
                    self._expect(entry, is_new=is_new)
                case _:
                    assert_never(entry)

    def _told(self, entry: Decided | Idle) -> LoggedProducer:
        known = self._producers.setdefault(entry.producer, LoggedProducer(entry.partition))
        known.decided = number_of(entry.number)
        end = self._log_ends.get(entry.partition, 0)
        self._log_ends[entry.partition] = max(end, entry.number + 1)
        return known

    def _expect(self, entry: Decided, *, is_new: bool) -> None:
        """Its markers are to come. Of those that an earlier session was told, only some are."""
        if not self._has_looked or entry.producer in self._restless:
            return  # its next look, which is its first, comes later
        for journal in entry.journals:
            for binding in self._bindings(journal):
                source = (journal, binding, entry.producer)
                if is_new or entry.number >= self._expected_from.get(source, entry.number + 1):
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
        log_then = self._log_since({number: self._producers[number].decided for number in moving})
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
        look = PastLook(dict(ends), names, frozenset(moving), still, log_then)
        self._looks.append(look)
        for producer in self._begun_anew - moving:
            self._begun_anew.discard(producer)
            for journal in ends:
                for binding in self._bindings(name_of(journal)):
                    self._complete_at_look(len(self._looks) - 1, (journal, binding), producer)
        self.needs_look = bool(self._begun_anew)
        self.on_log(after)

    # What Slices report

    def match(self, delta: Frontier, markers: Sequence[Marker]) -> Matched | None:
        """The delta as the pipeline takes it: numbers in place of offsets, and hints at the other
        journals of each transaction. None: not before the log was read once more, or looked at
        (`needs_look`)."""
        try:
            for lost in [marker for marker in markers if marker.is_lost]:
                self._note_lost(lost)
            markers = [marker for marker in markers if not marker.is_lost]
            anchors = self._anchors_of(delta, markers)
            matched = self._matched(markers, anchors)
        except NotYetError:
            return None
        hints: dict[Source, int] = {}
        below: dict[Source, int] = {}
        for marker, entry in matched:
            source = source_of(marker)
            if entry is not None:
                self._take(marker, entry, hints)
                if marker.is_commit and self._is_of_earlier_session(anchors[source]):
                    # Its Slice may have told commits below the look to that session: they are in
                    # the delta, and no marker says so.
                    self._promise(source, anchors[source], below)
            elif marker.is_commit and not anchors[source].is_resumed:
                self._take_below(source, clock_of(marker.offset), anchors[source], below)
        for source, clock in self._untold(delta, anchors):
            # Of a Slice that was restored: it told these commits to an earlier session.
            self._take_below(source, clock, anchors[source], below)
        self._note_reads(delta)
        self._note_heard(delta)
        numbered = reduce(self._numbered(delta), self.through())
        named = hinted(below)
        return Matched(reduce_all([numbered, hinted(hints), named]), named)

    def _note_heard(self, delta: Frontier) -> None:
        for entry in entries_of(delta, are_transactional(delta.producers)):
            is_opened = is_open(entry.last_commit, entry.offset)
            turn = self._opened.add if is_opened else self._opened.discard
            turn((*entry.key, entry.producer))
            self._offsets[*entry.key, entry.producer] = entry.offset
        heard = {entry.key for entry in entries_of(delta, delta.producers == READER.int64)}
        self._unheard = {key: one for key, one in self._unheard.items() if key[:2] not in heard}

    def mismatched(self, delta: Frontier, markers: Sequence[Marker]) -> None:
        """The log was read since these were reported, and does not explain them: producers that it
        does not explain are matched from their next look on."""
        anchors = self._anchors_of(delta, markers)
        counts: dict[Source, int] = {}
        for marker in markers:
            source = source_of(marker)
            if marker.offset >= anchors[source].end:
                counts[source] = counts.get(source, 0) + 1
        for source, count in counts.items():
            if len(self._queue(source)) < count:
                self._begin_anew(source[2], "the transaction log has no entry for a marker of it")

    def _note_lost(self, lost: Marker) -> None:
        """A journal has lost rows, and perhaps markers among them. The log was read since that was
        found out: so it has the entries of these markers. Who waits for one there may wait for one
        that is gone, and would take the next for it."""
        key = (name_of(lost.journal), lost.binding)
        for source in [one for one, queue in self._expected.items() if queue and one[:2] == key]:
            producer = source[2]
            if producer not in self._restless:
                anchor = self._anchor((lost.journal, lost.binding, producer))
                if anchor.end < lost.offset and self._expected.get(source):
                    self._begin_anew(producer, f"{key[0]} has lost rows")

    def _anchors_of(self, delta: Frontier, markers: Sequence[Marker]) -> dict[Source, Anchor]:
        """Raises if one is missing."""
        told: dict[Source, int] = {}
        for marker in markers:
            clock = clock_of(marker.offset) if marker.is_commit else CLOCK_FLOOR
            raise_to(told, source_of(marker), clock)
        anchors = {source: self._anchor(source) for source in told}
        for entry in entries_of(delta, are_transactional(delta.producers)):
            source = (*entry.key, entry.producer)
            if entry.last_commit <= max(self._last_commit(source), told.get(source, CLOCK_FLOOR)):
                continue
            # Told by a Slice that was restored.
            anchor = anchors[source] = self._anchor(source)
            if anchor.is_resumed or offset_of(entry.last_commit) >= anchor.end:
                self._begin_anew(entry.producer, "a marker of it was not found again")
                raise NotYetError
        return anchors

    def _anchor(self, source: Source) -> Anchor:
        found = self._anchors.get(source)
        if found is not None:
            return found
        journal, binding, producer = source
        for place in () if producer in self._restless else self._looks_of(producer):
            look = self._looks[place]
            is_named = name_of(journal) in look.names or len(self._of_name[name_of(journal)]) > 1
            if journal not in look.ends and is_named:
                continue  # another journal had the name: what is expected may be of that one
            number = look.decided.get(producer, number_of(-1))
            # A journal that was not there is younger: its markers are all behind the look.
            end = look.ends.get(journal, 0)
            if look.is_resumed:
                end = self._resumed_to(journal, binding)
            anchor = Anchor(end, place, number, look.is_resumed)
            queue = self._queue(source)
            while queue and number_of(queue[0].number) <= number:
                queue.popleft()
            self._anchors[source] = anchor
            return anchor
        self.needs_look = True
        raise NotYetError

    def _resumed_to(self, journal: str, binding: int) -> int:
        """Up to where an earlier session has matched the markers of a read."""
        found = self._remembered and self._remembered.reads.get((journal, binding))
        return found or 0

    def _matched(
        self, markers: Sequence[Marker], anchors: Mapping[Source, Anchor]
    ) -> list[tuple[Marker, Decided | None]]:
        """Each marker with its entry of the log; None for those below the look."""
        taken: dict[Source, int] = {}
        found: list[tuple[Marker, Decided | None]] = []
        for marker in markers:
            source = source_of(marker)
            if marker.offset < anchors[source].end:
                found.append((marker, None))
                continue
            queue, place = self._queue(source), taken.get(source, 0)
            if place == len(queue):
                raise NotYetError
            entry = queue[place]
            if marker.is_empty:
                # Counted, a repetition would be taken for the marker of the next transaction.
                self._begin_anew(marker.producer, "a marker of it may have been written twice")
                raise NotYetError
            if (entry.epoch, entry.is_commit) != (marker.epoch, marker.is_commit):
                self._begin_anew(marker.producer, "a marker of it is not what the log says")
                raise NotYetError
            taken[source] = place + 1
            found.append((marker, entry))
        return found

    def _take(self, marker: Marker, entry: Decided, hints: dict[Source, int]) -> None:
        source = source_of(marker)
        self._queue(source).popleft()
        if not marker.is_commit or clock_of(marker.offset) <= self._last_commit(source):
            return  # an earlier session may have delivered it
        number = number_of(entry.number)
        self._note(source, number, clock_of(marker.offset))
        own = (name_of(marker.journal), marker.binding)
        for journal in entry.journals:
            for binding in self._index.targets(journal, self._cohorts[marker.binding]):
                if (journal, binding) != own:
                    raise_to(hints, (journal, binding, marker.producer), number)

    def _note_read(self, key: ReadKey, end: int) -> None:
        self._of_name[name_of(key[0])].add(key[0])
        self._read_to[key] = max(end, self._read_to.get(key, 0))

    def _take_below(
        self, source: Source, clock: int, anchor: Anchor, hints: dict[Source, int]
    ) -> None:
        """A commit below a look is complete when all journals were read up to it."""
        self._note(source, anchor.number, clock)
        self._promise(source, anchor, hints)

    def _is_of_earlier_session(self, anchor: Anchor) -> bool:
        is_look = self._remembered is not None and self._remembered.is_look
        return is_look and anchor.look == 0

    def _promise(self, source: Source, anchor: Anchor, hints: dict[Source, int]) -> None:
        """Names all journals that are not read up to the look."""
        _, binding, producer = source
        cohort = self._cohorts[binding]
        if (anchor.look, cohort, producer) in self._promised:
            return
        self._promised.add((anchor.look, cohort, producer))
        for journal, end in self._looks[anchor.look].ends.items():
            for target in self._index.targets(name_of(journal), cohort):
                if self._read_to.get((journal, target), 0) < end:
                    self._complete_at_look(anchor.look, (journal, target), producer)
                    raise_to(hints, (name_of(journal), target, producer), anchor.number + 1)

    def _complete_at_look(self, place: int, key: ReadKey, producer: int) -> None:
        """Once this journal is read up to the look, all that the producer decided before is known
        there."""
        look = self._looks[place]
        number = look.decided.get(producer, number_of(-1)) + 1
        unread = self._unread.setdefault(key, [])
        unread.append((look.ends[key[0]], producer, number))
        self._pass(key)

    def _untold(
        self, delta: Frontier, anchors: Mapping[Source, Anchor]
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

    def _note_reads(self, delta: Frontier) -> None:
        for entry in entries_of(delta, delta.producers == READER.int64):
            self._note_read(entry.key, offset_of(entry.last_commit))
            self._pass(entry.key)

    def _pass(self, key: ReadKey) -> None:
        """The ends of looks up to which a journal was read."""
        end = self._read_to.get(key, 0)
        unread = self._unread.get(key, [])
        for _, producer, number in [one for one in unread if one[0] <= end]:
            own = self._through.setdefault(key, {})
            own[producer] = max(number, own.get(producer, 0))
        self._unread[key] = [one for one in unread if one[0] > end]

    def through(self) -> Frontier:
        """For the pipeline: what is complete because journals were read up to a look."""
        found, self._through = self._through, {}
        return Frontier.of(
            JournalFrontier(*key, self._completed(key, numbers))
            for key, numbers in sorted(found.items())
        )

    def _completed(self, key: ReadKey, numbers: Mapping[int, int]) -> tuple[ProducerFrontier, ...]:
        """With the offsets that are known: a span that is open stays open."""
        return tuple(
            sorted(
                (
                    ProducerFrontier(
                        Producer.from_int64(producer),
                        number,
                        offset=self._offsets.get((*key, producer), 0),
                    )
                    for producer, number in numbers.items()
                ),
                key=lambda entry: entry.producer,
            )
        )

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
            if len(commits) == 1:
                self._pending.discard((*entry.key, entry.producer))
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
        commits = self._commits.setdefault(source, [(RESUMED, CLOCK_FLOOR)])
        if clock > commits[-1][1]:
            commits.append((number, clock))
            self._pending.add(source)

    def forget(self, why: str) -> None:
        """Nothing is known of what belongs together, until the next look."""
        if self._has_looked and (self._remembered is None or self._remembered.log):
            log.warning("transactions are matched anew: %s", why)
        self._first_look = len(self._looks)
        self._restless, self._anchors, self._expected = set(), {}, {}
        self._unheard, self._remembered = {}, None
        self._begun_anew |= {producer for _, _, producer in self._pending}
        self.needs_look = (
            True  # compaction keeps a producer's last entry: who is in flight is known
        )

    def _begin_anew(self, producer: int, why: str) -> None:
        name = Producer.from_int64(producer)
        log.warning("transactions of producer %s are matched anew: %s", name, why)
        self._restless.add(producer)
        self._since[producer] = len(self._looks)
        self._anchors = {key: anchor for key, anchor in self._anchors.items() if key[2] != producer}
        self._expected = {key: one for key, one in self._expected.items() if key[2] != producer}
        self._unheard = {key: one for key, one in self._unheard.items() if key[2] != producer}
        if any(source[2] == producer for source in self._pending):
            self._begun_anew.add(producer)
        self.needs_look = True
