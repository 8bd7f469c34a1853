"""The Slice as a state machine: what happens goes in, what is to be done comes out. Pure.

    Probe ──> Fetch ──> (Fetched) ──> round: level, sequence, parcels, mark ──> flush ──> Report

`handle` takes what happened. `round` is called whenever rows may be due: after events, when credit
comes back, and when a Sleep is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import Frontier, reduce_all
from penstock.ids import CLOCK_MAX
from penstock.journal.offset_identity import READER, clock_of
from penstock.journal.transaction_log import Marker
from penstock.sequence import ProducerState
from penstock.shuffle.marks import BEGINNING, Mark, MarkKind
from penstock.shuffle.parcels import Stage
from penstock.shuffle.slice import progress, telling
from penstock.shuffle.slice.clocks import LyingClocks
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    BarrierClaimed,
    Fetch,
    Fetched,
    Flushed,
    HintIndex,
    Lost,
    Probe,
    Probed,
    ProgressAsked,
    ReadStarted,
    Replay,
    ReplayFetched,
    Report,
    SendBarrier,
    SendFlush,
    SendMark,
    SendParcel,
    SendReads,
    SendRollbacks,
    Sleep,
    SliceEffect,
    SliceEvent,
    TellEnded,
    TellMissing,
    TellSpansLeft,
    Vanished,
)
from penstock.shuffle.slice.flushes import Flushes
from penstock.shuffle.slice.levelling import GREEDY_READS, ROUND_ROWS_MAX, Levels, cut, gather
from penstock.shuffle.slice.parcelling import FrameCosts, announcement, frame_bytes, parcels
from penstock.shuffle.slice.reads import Piece, Read
from penstock.shuffle.slice.replay import SpanReplay
from penstock.shuffle.slice.rounds import (
    ROUND_READS_MAX,
    HintKey,
    NamedJournals,
    Round,
    forgetting,
    make_round,
)
from penstock.shuffle.slice.snapshots import SavedRead, SavedReplay, SliceSnapshot
from penstock.shuffle.slice.spans import OpenSpans
from penstock.shuffle.status import NAMED_MAX, Details, Sent, SliceStatus, seconds_of
from penstock.watch.causes import Credit, JournalLags, Probing
from penstock.watch.standing import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.routing import Assignment
    from penstock.shuffle.plan import BindingPlan
    from penstock.shuffle.slice.reads import Forgotten

FETCH_BYTES: Final = 1024 * 1024
"""Of one fetch: a batch of a few thousand documents, and many fetches fit the budget."""
CROWDED_SHARE: Final = 1 / 2
"""Of the budget, what a fetch of every read takes where many hold each other up."""
HEADS_SHARE: Final = 1 / 4
"""Of the budget, what all reads together may take to have their next rows at hand, each as much as
any other: without these nothing is drained."""
DRAINED_SHARE: Final = 1 / 4
"""Of the budget, what is left to reads that were drained to their end: they hold up all others. The
rest is for whoever can be read ahead."""
WORTH_ROWS: Final = 128
"""Of a piece, on average. A round of many smaller ones waits for rows on their way that would let
more go."""
ROUND_CREDIT: Final = 1 / 2
"""Of all credit there is, a round takes at most this: so a Queue writes one while the next is made.
And what a Slice has sent of a round leaves room for the rest of it, once all before is written,
even if the sender takes a frame for larger than it is."""
LARGE_CREDIT: Final = 3 / 4
"""As much is free again when a Queue holds nothing more, and no frame is charged more."""
LEAST_CREDIT: Final = 1 / 4
"""With less free, a round is not worth it: credit comes back in quarters. What a Queue holds of the
Slice that promised least it can write, so as much comes back in any case."""


class SliceState:
    def __init__(
        self,
        bindings: Iterable[BindingPlan],
        assignment: Assignment,
        hint_index: HintIndex,
        *,
        read_ahead_bytes: int,
        restored: SliceSnapshot | None = None,
    ) -> None:
        """`read_ahead_bytes` is what all reads together may hold, however many they are; but each
        may hold one row, whatever it takes."""
        self._bindings = {binding.place: binding for binding in bindings}
        self._assignment = assignment
        self._hint_index = hint_index
        self._read_ahead_bytes = read_ahead_bytes

        self._reads: list[Read] = []
        self._numbers: dict[int, Read] = {}
        self._levels = Levels()
        self._all_started = False
        self._probing, self._fetching_bytes, self._buffered_bytes = 0, 0, 0.0
        self._hungry: dict[int, Read] = {}
        """By place, the reads with nothing buffered and no fetch under way."""
        self._fed: dict[int, Read] = {}
        """By place, those with something buffered and no fetch under way."""
        self._unannounced: list[Read] = []
        self._at_gap: dict[int, Read] = {}
        """By place, those that have a gap behind what is buffered."""
        self._ending: dict[int, int | None] = {}
        """By place, those whose journal is gone, and the flush that has the last of them."""
        self._gapped: dict[int, Read] = {}
        """By place, those with gapped producers."""
        self._replay: SpanReplay | None = None

        self._news: dict[int, Read] = {}
        """By place, those with producers to report."""
        self._hints, self._new_hints = dict[HintKey, int](), dict[HintKey, int]()
        self._named = NamedJournals()
        self._markers: list[Marker] = []
        """That were drained since the last flush began."""
        self._gap_floor: dict[int, int] = {}

        self._saved: dict[tuple[str, int], SavedRead] = {}
        """Reads of a snapshot, or of journals that vanished, that the Session has not started
        again; by what frontiers call the journal, and binding."""
        self._saved_replays: dict[tuple[str, int], SavedReplay] = {}
        """By read, those of a snapshot whose turn has not come."""
        self._saved_frontier: Frontier | None = None
        """To be told once more."""
        self._frame_costs = FrameCosts()
        self._credit = self._credit_max = 0
        """What every member has credit for, and the most that this ever was."""
        self.lacks_credit = self._awaits_rows = False
        """The last round was put off until there is more; or until the read that holds up all
        others is fetched."""
        self._promised = 0
        """The greatest key that was sent or marked as due: no row comes below it any more."""
        self._marks: dict[int, Mark | None] = dict.fromkeys(assignment.members, BEGINNING)
        self._flushes = Flushes(assignment.members)
        self._spans, self._lying = OpenSpans(), LyingClocks()
        self._rows_read = 0
        self._sent_rows: dict[int, int] = dict.fromkeys(assignment.members, 0)
        self._credits: Mapping[int, int] = {}
        if restored is not None:
            self._restore(restored)

    # Events

    def handle(self, event: SliceEvent, now: int = CLOCK_MAX) -> list[SliceEffect]:
        """`now` is this machine's clock: those of rows are not believed far beyond it."""
        match event:
            case ReadStarted():
                return self._start(event)
            case AllReadsStarted():
                self._all_started = True
                return [
                    TellSpansLeft(saved.binding, saved.journal)
                    for saved in self._saved.values()
                    if saved.has_open_spans
                ]
            case Probed():
                return self._probed(event)
            case Fetched():
                return self._fetched(event, now)
            case Vanished() | Lost():
                return self._gone(event)
            case ReplayFetched():
                return self._replay_fetched(event, now)
            case Flushed():
                self._flushes.flushed(event.member, event.cycle, event.lsn)
                return [*self._flush(), *self._report()]
            case ProgressAsked():
                self._flushes.ask()
                return self._report()
            case BarrierClaimed(barrier=barrier):
                return [SendBarrier(barrier)]
            case _:
                assert_never(event)

    def _gone(self, event: Vanished | Lost) -> list[SliceEffect]:
        if isinstance(event, Lost):
            return [TellMissing(event.read, event.begin, event.end, event.reason)]
        read = self._read(event.read)
        return [] if read.vanished else self._vanish(read)

    def _probed(self, event: Probed) -> list[SliceEffect]:
        read = self._read(event.read)
        if read.vanished:
            return []
        self._probing -= read.probing
        self._fetching_bytes -= read.fetching_bytes
        read.probed(event.first_kept, event.write_head, event.states)
        self._reach(read)
        if read.awaited and event.first_kept > read.needed_from:
            return [TellMissing(read.number, read.needed_from, event.first_kept)]
        return self._moved(read)

    def _fetched(self, event: Fetched, now: int) -> list[SliceEffect]:
        read = self._read(event.read)
        if read.vanished:
            return []
        self._fetching_bytes -= read.fetching_bytes
        self._buffered_bytes -= read.buffered_bytes
        read.fetched(event.batches, event.write_head, self._promised, now)
        for batch in event.batches:
            self._lying.look(read.journal, batch.times, batch.producers, now)
        self._buffered_bytes += read.buffered_bytes
        if not read.buffer:
            self._reach(read)  # rows may be left out, and no round tells how far it came
        return self._moved(read)

    def _replay_fetched(self, event: ReplayFetched, now: int) -> list[SliceEffect]:
        replay = self._replay
        if self._read(event.read).vanished:
            return []
        if replay is None or replay.read.number != event.read:
            raise LocalProtocolError(f"read {event.read} is not being replayed")
        if replay.producer in replay.read.hinted and event.kept_from > replay.reached:
            return [TellMissing(event.read, replay.reached, event.kept_from)]
        replay.fetched(event.batches, event.reached, now)
        return self._go_on_replaying()

    def _read(self, number: int) -> Read:
        try:
            return self._numbers[number]
        except KeyError:
            raise LocalProtocolError(f"read {number} was not started here") from None

    def _start(self, event: ReadStarted) -> list[SliceEffect]:
        binding = self._bindings.get(event.binding)
        if binding is None:
            raise RemoteProtocolError(
                f"read {event.read} of {event.journal} is for binding {event.binding}, which is "
                "of another lane"
            )
        if event.read in self._numbers:
            raise RemoteProtocolError(f"read {event.read} was started twice")
        known_as = event.known_as or event.journal
        saved = self._saved.pop((known_as, event.binding), None)
        if saved is None:
            read = Read.begin(event.read, binding, event.journal, event.entries)
        else:
            read = saved.restored(event.read, binding)
        read.identity, read.known_as = event.identity, known_as
        read.place = self._levels.add()
        targets = self._hint_index.targets(event.journal, binding.cohort)
        read.siblings = tuple(target for target in targets if target != binding.place)
        self._reads.append(read)
        self._numbers[read.number] = read
        self._unannounced.append(read)
        self._spans.found(read)
        if read.gapped:
            self._gapped[read.place] = read
        self._probing += 1
        is_replayed = (known_as, event.binding) in self._saved_replays
        resumed = self._resume_replay() if is_replayed else []
        return [Probe(read.number, read.journal, read.offset, read.identity), *resumed]

    def _vanish(self, read: Read) -> list[SliceEffect]:
        for places in (self._fed, self._hungry, self._at_gap):
            places.pop(read.place, None)
        self._probing -= read.probing
        self._fetching_bytes -= read.fetching_bytes
        read.vanish()
        self._ending[read.place] = None
        effects: list[SliceEffect] = []
        if self._replay is not None and self._replay.read is read:
            self._replay.give_up()
            self._replay = None
            self._drop_buffered(read)
            effects = self._resume_replay()
        if (read.known_as, read.binding.place) in self._saved_replays:
            self._drop_buffered(read)
        return [*self._moved(read), *effects, *self._end_reads()]

    def _drop_buffered(self, read: Read) -> None:
        """What is buffered of a journal that is gone cannot be sent before a span was read again:
        so both wait until it is back."""
        self._buffered_bytes -= read.buffered_bytes
        read.drop_buffered()
        self._levels.update(read)

    def _moved(self, read: Read) -> list[SliceEffect]:
        """Something came for a read."""
        if self._is_at_gap(read) and not read.forgotten():
            self._cross(read)
        self._levels.update(read)
        if read.awaited and not read.is_over and not read.is_behind:
            return [TellMissing(read.number, read.buffered_offset, read.buffered_offset)]
        if read.gap is not None:
            self._at_gap[read.place] = read
        elif not read.is_over:
            (self._fed if read.buffer else self._hungry)[read.place] = read
        return self._fetch()

    def _is_at_gap(self, read: Read) -> bool:
        """All rows before a gap are drained, also those that are read again."""
        return read.gap is not None and self._is_drained(read)

    def _cross(self, read: Read) -> None:
        read.cross_gap()
        if read.binding.by_offset:
            self._markers.append(Marker.lost(read.known_as, read.binding.place, read.offset))
        self._reach(read)
        self._forget_gapped(read)
        if read.unreported:
            self._news[read.place] = read
            self._flushes.is_due = True

    def _cross_gaps(self) -> list[SliceEffect]:
        """Of the reads that have come to their gaps. Spans that ended in there are forgotten; that
        goes with the same round, so no snapshot has the one without the other."""
        effects: list[SliceEffect] = []
        for read in filter(self._is_at_gap, list(self._at_gap.values())):
            del self._at_gap[read.place]
            effects += self._forget(read, read.forgotten())
            self._cross(read)
            effects += self._moved(read)
        return effects

    def _let_go(self) -> list[SliceEffect]:
        """Of the open spans of journals that are gone: else their rows would be kept for ever."""
        effects: list[SliceEffect] = []
        for read in [self._reads[place] for place in self._ending]:
            if not self._is_drained(read):
                continue
            spans = read.let_go()
            if spans:
                # Told once more, so that there is an epoch with which their room is freed.
                self._news[read.place] = read
                self._flushes.is_due = True
            effects += self._forget(read, spans)
            self._spans.ended(read)
        return effects

    def _forget(self, read: Read, spans: Sequence[Forgotten]) -> list[SliceEffect]:
        if not spans:
            return []
        announced = self._announce()
        batch = forgetting(read, spans)
        self._credit -= batch.nbytes + frame_bytes(batch.schema)
        return [*announced, SendRollbacks(Stage(read.binding.place, 0), batch)]

    def _is_drained(self, read: Read) -> bool:
        """All that was read of it was sent, also what was read again."""
        return not read.buffer and not (self._replay is not None and self._replay.read is read)

    def _fetch(self) -> list[SliceEffect]:
        """Reads with nothing buffered are fetched in any case, a little or much; others as far as
        the budget goes, first those that hold up the horizon. What comes of journals that are read
        to their end is little: many may be written to at once."""
        heads_bytes = HEADS_SHARE * self._read_ahead_bytes
        little = max(1, min(FETCH_BYTES, int(heads_bytes / max(len(self._reads), 1))))
        left = self._read_ahead_bytes - heads_bytes - self._buffered_bytes - self._fetching_bytes
        chosen, self._hungry = list(self._hungry.values()), {}
        kept_bytes = DRAINED_SHARE * self._read_ahead_bytes
        sizes: list[int] = []
        if not chosen and (not self._fed or left - kept_bytes < little):
            return []
        size = self._fetch_bytes(little)
        for read in chosen:
            room = left if read.key else left - kept_bytes
            sizes.append(size if read.is_behind and room >= size else little)
            left -= sizes[-1]
        ahead = int((left - kept_bytes) // size)
        if ahead > 0 and self._fed:
            places = self._levels.by_last(list(self._fed))[:ahead]
            chosen += [self._fed.pop(place) for place in places]
            sizes += [size] * len(places)
        effects: list[SliceEffect] = []
        for read, size in zip(chosen, sizes, strict=True):
            read.fetching = True
            read.fetching_bytes = size
            self._fetching_bytes += size
            effects.append(
                Fetch(read.number, read.journal, read.buffered_offset, size, read.identity)
            )
        return effects

    def _fetch_bytes(self, little: int) -> int:
        """Much, if a few reads hold up all others. Where many hold each other up, a fetch of each
        has to fit: all a little ahead let more rows go than some that are far ahead."""
        if self._probing + self._levels.contending() <= GREEDY_READS:
            return FETCH_BYTES
        shared = int(CROWDED_SHARE * self._read_ahead_bytes / len(self._reads))
        return max(little, min(FETCH_BYTES, shared))

    # Rounds

    @property
    def is_deferred(self) -> bool:
        """Rows that nobody knows yet may have to go first."""
        return not self._all_started or self._probing > 0 or self._levels.is_deferred

    def is_due(self, now: int) -> bool:
        """With credit, a round would drain rows."""
        if self._replay is not None:
            return bool(self._replay.buffer)
        head = self._levels.least_head()
        is_held = self.is_deferred or self._awaits_rows
        return head is not None and head <= self._due(now) and not is_held

    def _due(self, now: int) -> int:
        """Rows up to this key are old enough. What was promised was so once, and still is if this
        machine's clock was set back since."""
        return max(now, self._promised)

    # For whoever watches

    def status(self) -> SliceStatus:
        offsets, heads = telling.offsets_and_heads(self._reads)
        return SliceStatus(
            reads=sum(not read.ended for read in self._reads),
            read_offset=int(offsets.sum()),
            rows_behind=int((heads - offsets).sum()),
            rows_read=self._rows_read,
            buffered_bytes=round(self._buffered_bytes),
            settled=(
                self._all_started
                and not self._probing
                and self._replay is None
                and not self._flushes.is_open
                and bool((offsets == heads).all())
            ),
            promised=seconds_of(self._promised) if self._promised else None,
            sent=tuple(
                Sent(member, rows, self._credit_free(member))
                for member, rows in self._sent_rows.items()
            ),
        )

    def details(self) -> Details:
        held_by = telling.holder(self._reads, self._levels)
        return Details(
            telling.furthest_behind(self._reads, NAMED_MAX),
            self._spans.oldest(NAMED_MAX),
            len(self._spans),
            None if held_by is None else held_by.journal,
        )

    def waits(self, now: int, member: int, lane: int) -> list[Seen]:
        """What holds it up at this moment, as the Slice of this member and lane."""
        found = [
            Seen(delay, self._rows_read)
            for delay in telling.delays(self._reads, self._levels, now, member, lane)
        ]
        found += map(Seen, telling.clocks_ahead(self._lying, now, member, lane))
        if self._probing:
            read = next(read for read in self._reads if read.probing)
            probed = len(self._reads) - self._probing
            return [Seen(Probing(member, lane, read.journal, self._probing), probed), *found]
        replay, lagging = self._replay, self._levels.lagging()
        if replay is not None and replay.fetching:
            read, count, offset, head = replay.read, 1, replay.reached, replay.end
        elif lagging:
            read, count = self._reads[lagging[0]], len(lagging)
            offset, head = read.offset, read.write_head
        else:
            if self.lacks_credit and self.is_due(now):
                found.append(Seen(self.credit_wait(member, lane), self._rows_read))
            return found
        place = read.binding.place
        lags = JournalLags(member, lane, read.journal, place, offset, head, count)
        return [Seen(lags, self._rows_read + offset), *found]

    def credit_wait(self, member: int, lane: int, to: int | None = None) -> Credit:
        """For the member that it has least for, or for this one."""
        least = min(self._sent_rows, key=self._credit_free) if to is None else to
        return Credit(member, lane, least, self._credit_free(least))

    def _credit_free(self, member: int) -> float:
        return min(1.0, self._credits.get(member, 0) / max(self._credit_max, 1))

    def round(self, now: int, credit_bytes: Mapping[int, int]) -> list[SliceEffect]:
        """Sends what is due, as far as every member has credit, and marks what follows."""
        missing = self._marks.keys() - credit_bytes.keys()
        if missing:
            raise LocalProtocolError(f"the credit of members {sorted(missing)} is not given")
        self._credits = credit_bytes
        self._credit = min(credit_bytes[member] for member in self._marks)
        self._credit_max = max(self._credit_max, self._credit)
        self.lacks_credit = self._credit < max(LEAST_CREDIT * self._credit_max, 1)
        self._awaits_rows = False
        effects: list[SliceEffect] = []
        if not self.lacks_credit:
            if self._at_gap:
                effects += self._cross_gaps()
            if self._ending:
                effects += self._let_go()
            if self._replay is not None:
                effects += self._replay_some(self._replay)
            elif not self.is_deferred:
                effects += self._drain_some(now)
        mark = self._levels.mark(self._due(now), self._promised, self.is_deferred)
        if mark.kind is MarkKind.DUE:
            self._promised = max(self._promised, mark.key)
        for member, last in self._marks.items():
            if mark != last:
                self._marks[member] = mark
                effects.append(SendMark(member, mark))
        effects += self._flush()
        effects += self._fetch()
        effects += self._end_reads()
        head = self._levels.least_head()
        if mark.kind is MarkKind.DELAYED and head is not None:
            effects.append(Sleep(head))
        return effects

    def _chosen(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What of the pieces makes a round; nothing if there is no credit for it. It must fit for
        certain: what of a round waits for credit has its mark behind it, and without that no Queue
        writes what came of it.

        One row goes whatever it costs, once so much is free that no frame is charged more."""
        bytes_max = min(self._credit, ROUND_CREDIT * self._credit_max)
        allowed = max(bytes_max - self._frame_costs.of(pieces), bytes_max / 2)
        rows_max = ROUND_ROWS_MAX
        if len(pieces) > ROUND_READS_MAX:
            rows_max = min(rows_max, ROUND_READS_MAX)  # then there are no more reads than that
        while True:
            chosen = [
                Piece(piece.read, piece.batch, piece.begin, piece.begin + count)
                for piece, count in zip(pieces, cut(pieces, rows_max, allowed), strict=True)
                if count
            ]
            size = sum(piece.parcel_bytes for piece in chosen) + self._frame_costs.of(chosen)
            if size <= bytes_max:
                return chosen
            if sum(piece.rows for piece in chosen) == 1:
                self.lacks_credit = self._credit < LARGE_CREDIT * self._credit_max
                return [] if self.lacks_credit else chosen
            allowed *= min(0.9, bytes_max / size)  # rows are not as large as they are on average

    def _drain_some(self, now: int) -> list[SliceEffect]:
        limit = min(self._levels.horizon(), self._due(now))
        triggers = {}
        for place, read in self._gapped.items():
            trigger = read.trigger()
            if trigger is not None:
                triggers[place] = trigger
                limit = min(limit, trigger.key)
        reads = [self._reads[place] for place in self._levels.due(limit)]
        pieces = gather(reads, limit, triggers)
        if not pieces:
            # All rows before a trigger are gone, or nothing is due.
            for read in reads:
                trigger = triggers.get(read.place)
                if trigger is not None and trigger.is_next:
                    if read.vanished:
                        self._drop_buffered(read)
                        return []
                    self._replay = SpanReplay.of(read, trigger)
                    self._forget_gapped(read)
                    return self._go_on_replaying()
            return []
        self._awaits_rows = self._is_larger_soon(pieces)
        if self._awaits_rows:
            return []
        announced = self._announce()
        chosen = self._chosen(pieces)
        if not chosen:
            return announced
        round_ = make_round(chosen)
        for piece in round_.columns.pieces:
            read = piece.read
            self._buffered_bytes -= read.buffered_bytes
            floor = read.drain(piece)
            self._rows_read += piece.rows
            self._buffered_bytes += read.buffered_bytes
            if floor is not None:
                binding = read.binding.place
                self._gap_floor[binding] = max(floor, self._gap_floor.get(binding, 0))
        self._markers += round_.markers()
        for read in round_.columns.reads:
            self._reach(read)
            self._levels.update(read)
            if not read.buffer and self._fed.pop(read.place, None) is not None:
                self._hungry[read.place] = read
        return [*announced, *self._send(round_)]

    def _is_larger_soon(self, pieces: Sequence[Piece]) -> bool:
        """With many reads, one of them is always about to run out."""
        if len(pieces) <= GREEDY_READS:
            return False
        if sum(piece.rows for piece in pieces) >= WORTH_ROWS * len(pieces):
            return False
        place = self._levels.last_behind()
        return place is not None and self._reads[place].fetching

    def _reach(self, read: Read) -> None:
        """Where commits are matched by a transaction log, the Session has to know up to where a
        journal was read, whatever is open in it."""
        if not read.binding.by_offset or read.awaited or read.probing:
            return
        read.advance({READER.int64: ProducerState(clock_of(read.offset), 0, -read.offset)})
        if READER.int64 in read.unreported:
            self._news[read.place] = read
            self._flushes.is_due = True

    def _send(self, round_: Round) -> list[SliceEffect]:
        changes = list(round_.changes())
        self._spans.drained(round_, changes)
        for read, changed in changes:
            read.advance(changed)
            if read.unreported:
                self._news[read.place] = read
            self._forget_gapped(read)
        for hint, clock in round_.hints(self._hint_index, self._named):
            if clock > self._hints.get(hint, 0):
                self._hints[hint] = self._new_hints[hint] = clock
        self._flushes.is_due |= round_.has_closes
        self._promised = max(self._promised, int(round_.columns.keys.max()))
        effects: list[SliceEffect] = []
        if any(piece.batch.is_ahead for piece in round_.columns.pieces):
            effects += self._cap(int(round_.columns.keys.max()))
        effects += [SendRollbacks(stage, batch) for stage, batch in round_.rollbacks]
        for member, stage, batch in parcels(round_, self._assignment):
            self._sent_rows[member] += batch.num_rows
            effects.append(SendParcel(member, stage, batch))
        return effects

    def _cap(self, key: int) -> list[SliceEffect]:
        """Queues know clocks and no keys. The mark at the end of the round lifts the cap."""
        mark = Mark(MarkKind.CAPPED, key)
        self._marks = dict.fromkeys(self._marks, mark)
        return [SendMark(member, mark) for member in self._marks]

    def _announce(self) -> list[SliceEffect]:
        """A Queue takes note at once: the credit for it comes back whatever waits."""
        reads, self._unannounced = self._unannounced, []
        if not reads:
            return []
        batch = announcement(reads)
        self._credit -= batch.nbytes + frame_bytes(batch.schema)
        return [SendReads(batch)]

    def _forget_gapped(self, read: Read) -> None:
        if not read.gapped:
            self._gapped.pop(read.place, None)

    # Replay

    def _replay_some(self, replay: SpanReplay) -> list[SliceEffect]:
        pieces = replay.pieces()
        if not pieces:
            return []
        announced = self._announce()
        chosen = self._chosen(pieces)
        if not chosen:
            return announced
        round_ = make_round(chosen)
        replay.drain(round_)
        return [*announced, *self._send(round_), *self._go_on_replaying()]

    def _go_on_replaying(self) -> list[SliceEffect]:
        replay = self._replay
        if replay is None:
            return []
        if replay.is_done:
            self._replay = None
            return self._resume_replay()
        if replay.wants_more:
            replay.fetching = True
            read = replay.read
            return [Replay(read.number, read.journal, replay.reached, replay.end, read.identity)]
        return []

    def _resume_replay(self) -> list[SliceEffect]:
        """The next one of the snapshot whose read is there: one at a time, and nothing is drained
        until all are done."""
        if self._replay is not None or not self._saved_replays:
            return []
        for read in self._reads:
            if read.vanished:
                continue
            saved = self._saved_replays.pop((read.known_as, read.binding.place), None)
            if saved is not None:
                key = max(saved.key, self._promised)
                self._replay = SpanReplay(read, saved.producer, saved.begin, saved.end, key)
                return self._go_on_replaying()
        return []

    # Flushes

    def _flush(self) -> list[SliceEffect]:
        if not self._flushes.may_start:
            return []
        delta = progress.report(self._news.values(), self._gap_floor)
        deltas = [delta]
        if self._new_hints:
            deltas.append(progress.hinted(self._new_hints))
        if self._saved_frontier is not None:
            deltas.append(self._saved_frontier)
        cycle = self._flushes.start(reduce_all(deltas), self._markers)
        self._news, self._new_hints, self._saved_frontier = {}, {}, None
        self._markers = []
        return [SendFlush(cycle)]

    def _report(self) -> list[SliceEffect]:
        answer = self._flushes.answer()
        return [] if answer is None else [Report(*answer), *self._end_reads()]

    def _end_reads(self) -> list[SliceEffect]:
        """Of journals that are gone. Who is told that one ended has heard all there was of it.
        Where it stands is saved as in a snapshot: the journal may come back."""
        effects: list[SliceEffect] = []
        for place in list(self._ending):
            read = self._reads[place]
            if not self._is_drained(read) or read.has_open_spans:
                continue
            if place in self._news:
                self._flushes.is_due = True
                continue
            if self._ending[place] is None:
                self._ending[place] = self._flushes.cycle
            if (self._ending[place] or 0) <= self._flushes.told_cycle:
                del self._ending[place]
                read.ended = True
                self._saved[read.known_as, read.binding.place] = SavedRead.of(read)
                self._gapped.pop(place, None)
                self._spans.ended(read)
                effects.append(TellEnded(read.number))
        return effects

    # Snapshots

    def snapshot(self) -> SliceSnapshot:
        """The state where a barrier was sent just now."""
        running = [read for read in self._reads if not read.ended]
        reads = [*map(SavedRead.of, running), *self._saved.values()]
        told_again = [] if self._saved_frontier is None else [self._saved_frontier]
        return SliceSnapshot(
            reads=tuple(reads),
            frontier=reduce_all(
                [
                    progress.entries(reads, self._gap_floor),
                    progress.hinted(self._hints),
                    *self._flushes.untold(),
                    *told_again,
                ]
            ),
            promised=self._promised,
            cycle=self._flushes.cycle,
            replays=(
                *([] if self._replay is None else [SavedReplay.of(self._replay)]),
                *self._saved_replays.values(),
            ),
        )

    def _restore(self, snapshot: SliceSnapshot) -> None:
        self._saved = {(read.journal, read.binding): read for read in snapshot.reads}
        self._saved_replays = {(one.journal, one.binding): one for one in snapshot.replays}
        self._saved_frontier = snapshot.frontier
        self._hints = progress.hints_in(snapshot.frontier)
        self._gap_floor = dict(snapshot.frontier.gap_floor)
        self._promised = snapshot.promised
        self._marks = dict.fromkeys(self._marks)
        self._flushes = Flushes(self._assignment.members, snapshot.cycle)
        self._flushes.is_due = True  # the Session waits until it has heard all of it
