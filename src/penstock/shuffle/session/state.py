"""The Session as a state machine: event in, effects out.

Slices list journals, and the Session says who reads them and from where. When every binding was
listed once, it tells all Slices that no more first reads will come. From each Slice it asks for
progress, one request at a time, and gives it to the checkpoints; what is taken from those is added
to the frontier, up to which everything is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import Frontier, ProducerFrontier, clear_discharged_hints, reduce
from penstock.journal.errors import DataLossError
from penstock.journal.names import name_of
from penstock.sequence import UNSEEN, ProducerState
from penstock.shuffle.session.checkpoints import Checkpoints
from penstock.shuffle.session.hint_index import HintIndex
from penstock.shuffle.session.instances import Instances
from penstock.shuffle.session.ledger import gone_key
from penstock.shuffle.session.log_matching import FindMarkers, LogMatching, ReadLog
from penstock.shuffle.session.lost import RowsLostError, rows_lost
from penstock.shuffle.session.matching import Matching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.transaction_log import Marker
    from penstock.shuffle.plan import Plan
    from penstock.shuffle.session.ledger import ReadKey
    from penstock.shuffle.session.log_matching import LogRead, MarkersFound, MatchedProgress
    from penstock.shuffle.session.pipeline import Awaited, Waiting
    from penstock.shuffle.session.remembered import Remembered
    from penstock.shuffle.session.topology import Topology

READS_MAX: Final = 2**32
"""A read's number stands in every row, as 32 bits."""
GONE_SECONDS: Final = 1.0
"""A journal that is not there for as long is deleted: nobody waits for its commits. If it is back
later, they come later than the rest of their transactions."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SliceOpened:
    """Event: a Slice is there, and hears what the Session says from now on."""

    member: int
    lane: int


@dataclass(frozen=True, slots=True)
class ListingAdded:
    """Event: a Slice found a journal of a binding that it lists, or another one in its place."""

    member: int
    lane: int
    binding: int
    journal: str
    identity: str = ""


@dataclass(frozen=True, slots=True)
class ListingRemoved:
    """Event: a journal that a Slice told of is not there any more. If it is again, that is told."""

    member: int
    lane: int
    binding: int
    journal: str


@dataclass(frozen=True, slots=True)
class ListingDone:
    """Event: a Slice has told all journals that there were when it first listed a binding."""

    member: int
    lane: int
    binding: int


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """Event: a Slice has given a read up, because its journal is gone, or another one has its name.
    All that it had of it, it has told before."""

    member: int
    lane: int
    read: int


@dataclass(frozen=True, slots=True)
class SpansLeft:
    """Event: a Slice that was restored has open spans of a journal, as frontiers call it, that no
    first listing found."""

    member: int
    lane: int
    binding: int
    journal: str


@dataclass(frozen=True, slots=True)
class RowsMissing:
    """Event: a Slice cannot get rows [begin, end) of a read that were lost; or, if that is nothing,
    the journal ends at `begin`, before the last of them."""

    member: int
    lane: int
    read: int
    begin: int
    end: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progressed:
    """Event: the answer to AskProgress."""

    member: int
    lane: int
    delta: Frontier
    markers: tuple[Marker, ...] = ()
    """Transaction markers among the rows that the delta tells of."""


SessionEvent: TypeAlias = (
    SliceOpened
    | ListingAdded
    | ListingRemoved
    | ListingDone
    | ReadEnded
    | SpansLeft
    | RowsMissing
    | Progressed
)
"""What Slices say."""


@dataclass(frozen=True, slots=True)
class StartRead:
    """Effect: tell this Slice to read a journal from where the entries say; if it has read it
    before, it goes on where it was."""

    member: int
    lane: int
    read: int
    binding: int
    journal: str
    entries: tuple[ProducerFrontier, ...]
    identity: str = ""
    known_as: str = ""
    """What frontiers and queues call the journal, if that is not its name."""


@dataclass(frozen=True, slots=True)
class AllReadsStarted:
    """Effect: tell this Slice that all first reads were started. It goes behind those."""

    member: int
    lane: int


@dataclass(frozen=True, slots=True)
class AskProgress:
    """Effect: ask this Slice to tell its progress as soon as there is some. One request is open at
    any time: the next comes with the answer."""

    member: int
    lane: int


@dataclass(frozen=True, slots=True)
class CheckpointReady:
    """Effect: `take` would give something, and would not have before."""


SessionEffect: TypeAlias = (
    StartRead | AllReadsStarted | AskProgress | CheckpointReady | ReadLog | FindMarkers
)

SliceKey: TypeAlias = tuple[int, int]
"""Member and lane."""


@dataclass(frozen=True, slots=True)
class Sought:
    """Journals that somebody has to look at: by name, and which commits are awaited of them."""

    awaited: frozenset[Awaited]
    ended: frozenset[ReadKey]
    """Whose reads ended, and that may be there again."""
    stuck: frozenset[str]
    """Of these it is asked where producers stand at their ends: they are read, and what is awaited
    of them has not come for a while."""

    @property
    def journals(self) -> frozenset[ReadKey]:
        return self.ended | {(name_of(one.journal), one.binding) for one in self.awaited}


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found of a journal."""

    identity: str | None
    """None: there is none of that name."""
    states: Mapping[int, ProducerState] | None = None
    """Where producers stand at its end, if that was asked for."""


@dataclass(frozen=True, slots=True)
class _Read:
    """One that was started, by name and by what frontiers call the journal."""

    slice_key: SliceKey
    key: ReadKey
    known: ReadKey


class SessionState:
    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        resume: Frontier,
        now: float,
        *,
        first_read: int = 0,
        adopted: Mapping[str, str] | None = _NOTHING,
        restored: bool = False,
        has_log: bool = False,
        remembered: Remembered | None = None,
    ) -> None:
        """With `has_log`, a transaction log says which commits belong together; what was
        `remembered` with the resume frontier says where in it.

        `first_read` is above all numbers of reads that were ever given: rows in the queues have
        them. `adopted` as in `SessionRecord`. If Slices are `restored`, each tells what it knows
        before anything else."""
        self.frontier: Frontier = resume
        """Up to where everything is complete: the start, and all that was taken since."""
        self._plan = plan
        self._topology = topology
        self._hint_index = HintIndex(plan)
        recovery = resume.unresolved_hints > 0
        self._matching = None
        if has_log and not recovery:
            matching = Matching(self._hint_index, plan.cohorts, resume, remembered)
            self._matching = LogMatching(matching, remembered if restored else None)
        begin = resume
        if self._matching is not None:
            # A recovery leaves hints that are answered. Beside numbers they would not look so.
            begin = clear_discharged_hints(self._matching.rules.resumed(resume))
        self._checkpoints = Checkpoints(plan.cohorts, begin, now)
        self._resume = resume
        self._instances = Instances(resume, adopted)
        self._started: set[ReadKey] = set()
        """What was taken out of the resume frontier, by what that calls it."""
        self._listed: dict[ReadKey, str] = {}
        """The identities of the journals that are there, as they were told."""
        self._running: dict[ReadKey, int] = {}
        self._closing: dict[int, ReadKey] = {}
        """Reads, by number, of journals in whose place others are read: they find their journals
        gone, and close the spans that are open in them. By what frontiers call the journals."""
        self._ended: set[ReadKey] = set()
        """Whose reads ended, and of which no listing has told that they are gone. So none will tell
        if they are there again: they are looked for."""
        self._absent: dict[str, float] = {}
        """Journals that were not there at the last look, and since when."""
        self._first_read = first_read
        self._reads: list[_Read] = []
        """By number, less the first one."""
        self._unlisted = {binding.place for binding in plan.bindings}
        self._slices = {
            (member, lane) for lane in range(len(plan.lanes)) for member in topology.members
        }
        self._opened: set[SliceKey] = set()
        self._unheard = set(self._slices) if restored else set()
        """Slices that have not told what they know from before."""
        self._unsent: dict[SliceKey, list[SessionEffect]] = {key: [] for key in self._slices}
        """What a Slice is told as soon as it opens."""

    @property
    def recovery(self) -> bool:
        """Whether this session only fetches what was lost. One checkpoint comes of it."""
        return self._checkpoints.recovery

    @property
    def next_read(self) -> int:
        """The number of the next read."""
        return self._first_read + len(self._reads)

    @property
    def has_ready(self) -> bool:
        """Whether `take` would give something."""
        return self._checkpoints.has_ready

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Which cohorts are held up, by what, and since when."""
        return self._checkpoints.waiting

    def hinted_by(self, cohort: int, awaited: Awaited) -> str | None:
        """The journal whose acknowledgement hints at a commit that is awaited."""
        return self._checkpoints.hinted_by(cohort, awaited)

    def lister(self, binding: int) -> SliceKey:
        """The Slice that lists the journals of a binding."""
        return self._topology.lister(binding), self._plan.bindings[binding].lane

    @property
    def adopted(self) -> dict[str, str]:
        """As in `SessionRecord`."""
        return self._instances.adopted

    def sought(self, now: float) -> Sought:
        """Nothing before it is known what there is, and what Slices know."""
        if self.recovery or self._unlisted or self._unheard:
            return Sought(frozenset(), frozenset(), frozenset())
        waiting = self.waiting
        # What is awaited by a transaction log is in its journal for certain, and its number is no
        # clock that a producer could be found to have passed.
        stuck = (
            set()
            if self._matching is not None
            else {
                name_of(one.journal)
                for each in waiting
                if now - each.since >= GONE_SECONDS
                for one in each.awaited
                if (name_of(one.journal), one.binding) in self._running
            }
        )
        awaited = frozenset(
            one
            for each in waiting
            for one in each.awaited
            if (name := name_of(one.journal)) in stuck or (name, one.binding) not in self._running
        )
        return Sought(awaited, frozenset(self._ended), frozenset(stuck))

    def looked_for(
        self, sought: Sought, found: Mapping[str, Looked], now: float
    ) -> list[SessionEffect]:
        """Of what was sought, this was found, by name.

        All journals were there, with all documents of a transaction, when its acknowledgements were
        written and hinted at them. So a journal that is not there was deleted or moved away since;
        and in one where the producer has no span that is open, there is nothing of the transaction:
        it was made anew. Nobody waits for either any more.
        """
        was_ready = self._checkpoints.has_ready
        self._absent = {
            name: self._absent.get(name, now)
            for name, looked in found.items()
            if looked.identity is None
        }
        self._checkpoints.give_up(
            [one for one in sought.awaited if self._is_lost(one, found, now)], now
        )
        effects: list[SessionEffect] = []
        for key in sorted(sought.ended & self._ended):
            identity = found[key[0]].identity
            if identity is not None:
                effects += self._start_read(key, identity, now)
        if self._checkpoints.has_ready and not was_ready:
            effects.append(CheckpointReady())
        return effects

    def _is_lost(self, one: Awaited, found: Mapping[str, Looked], now: float) -> bool:
        name = name_of(one.journal)
        is_read = (name, one.binding) in self._running
        looked = found[name]
        if looked.identity is None:
            return not is_read and now - self._absent[name] >= GONE_SECONDS
        is_same = one.journal == self._instances.known_as(name, looked.identity)
        if not is_read or not is_same or looked.states is None:
            return False
        state = looked.states.get(one.producer.int64, UNSEEN)
        return state.last_commit < one.hinted_commit and not state.max_continue

    @property
    def unlisted(self) -> tuple[int, ...]:
        """The bindings whose first listing is not done."""
        return tuple(sorted(self._unlisted))

    def take(self) -> Frontier | None:
        """The next checkpoint: what is complete, and was not taken before. From here on it is in
        the frontier too."""
        taken = self._checkpoints.take()
        if taken is not None and self._matching is not None:
            taken = self._matching.rules.released(taken)
        if taken is not None:
            # Hints that are left were found to be moot: nobody will answer them.
            self.frontier = clear_discharged_hints(reduce(self.frontier, taken))
        return taken

    def on_event(self, event: SessionEvent, now: float) -> list[SessionEffect]:
        member, lane = self._checked_slice(event)
        match event:
            case SliceOpened():
                return self._open((member, lane))
            case ListingAdded():
                self._check_lister(event)
                if not self._hint_index.reads(event.journal, event.binding):
                    raise RemoteProtocolError(
                        f"{_name(event)} found journal {event.journal!r} for binding "
                        f"{event.binding}, which does not read it"
                    )
                key = (event.journal, event.binding)
                self._listed[key] = event.identity
                return self._start_read(key, event.identity, now)
            case ListingRemoved():
                self._check_lister(event)
                self._listed.pop((event.journal, event.binding), None)
                self._ended.discard((event.journal, event.binding))
                return []
            case ListingDone():
                return self._done_listing(event)
            case ReadEnded():
                self._end_read(event)
                return []
            case SpansLeft():
                return self._close_spans(event, now)
            case RowsMissing():
                raise self._missing(event)
            case Progressed():
                return self._progress(event, now)
            case _ as never:
                assert_never(never)

    def _open(self, key: SliceKey) -> list[SessionEffect]:
        self._opened.add(key)
        return [*self._unsent.pop(key), AskProgress(*key)]

    def _start_read(self, key: ReadKey, identity: str, now: float) -> list[SessionEffect]:
        if key in self._running:
            return []  # if it is another journal, its Slice finds out, and ends the read
        journal, binding = key
        known = (self._instances.known_as(journal, identity), binding)
        if known in self._closing.values():
            self._ended.add(key)  # it is looked for until the other read has ended
            return []
        resumed = None if known in self._started else self._resume.journal(*known)
        entries = () if resumed is None else resumed.producers
        if self.recovery and not any(entry.is_unresolved for entry in entries):
            return []
        self._ended.discard(key)
        self._started.add(known)
        before = self._instances.begin(key, known[0])
        if before != known[0]:
            self._checkpoints.move_hints((before, binding), known, now)
        self._running[key] = self.next_read
        return self._tell_read(key, known, identity, entries)

    def _tell_read(
        self,
        key: ReadKey,
        known: ReadKey,
        identity: str,
        entries: tuple[ProducerFrontier, ...] = (),
    ) -> list[SessionEffect]:
        """Numbers a read, and tells the Slice that it is."""
        if self.next_read == READS_MAX:
            raise LocalProtocolError(
                f"{READS_MAX} reads were numbered, as many as there are: begin with empty queues"
            )
        journal, binding = key
        lane = self._plan.bindings[binding].lane
        slice_key = (self._topology.reader(binding, journal), lane)
        called = "" if known[0] == journal else known[0]
        started = StartRead(*slice_key, self.next_read, binding, journal, entries, identity, called)
        self._reads.append(_Read(slice_key, key, known))
        return self._tell(slice_key, started)

    def _close_spans(self, event: SpansLeft, now: float) -> list[SessionEffect]:
        """Starts a read that finds its journal gone, and closes the spans that it has open. If the
        journal is back by now, that is a read like any other."""
        if self._lane_of(event.binding) != event.lane:
            raise RemoteProtocolError(
                f"{_name(event)} has spans of binding {event.binding}, which is not of its lane"
            )
        known = (event.journal, event.binding)
        key = (name_of(event.journal), event.binding)
        if event.member != self._topology.reader(event.binding, key[0]):
            raise RemoteProtocolError(
                f"{_name(event)} has spans of journal {key[0]!r}, which is not its to read"
            )
        running = self._running.get(key)
        identity = self._instances.identity_of(event.journal)
        if running is None:
            return self._start_read(key, identity, now)
        if self._reads[running - self._first_read].known == known:
            return []  # a listing has found it meanwhile
        self._closing[self.next_read] = known
        return self._tell_read(key, known, identity)

    def _done_listing(self, event: ListingDone) -> list[SessionEffect]:
        self._check_lister(event)
        if event.binding not in self._unlisted:
            raise RemoteProtocolError(
                f"{_name(event)} has done the first listing of binding {event.binding} twice"
            )
        self._unlisted.remove(event.binding)
        if self._unlisted:
            return []
        self._instances.settle()
        if self.recovery:
            for journal in self._resume.journals():
                known = (journal.journal, journal.binding)
                hinted = any(entry.is_unresolved for entry in journal.producers)
                if hinted and known not in self._started:
                    raise self._rows_lost(known, self._why_gone(known))
        else:
            self._check_all_there()
        return [
            effect
            for key in sorted(self._slices)
            for effect in self._tell(key, AllReadsStarted(*key))
        ]

    def _check_all_there(self) -> None:
        """Journals that went away while nobody read, if that is a reason to fail."""
        for journal in self._resume.journals():
            known = (journal.journal, journal.binding)
            if known in self._started or known == gone_key(known):
                continue
            if self._plan.bindings[journal.binding].fails_on_loss:
                reader, reason = f"feed {self._plan.feed!r}", self._why_gone(known)
                raise DataLossError(reader, name_of(known[0]), f"{reason}, and its rows with it")

    def _why_gone(self, known: ReadKey) -> str:
        if (name_of(known[0]), known[1]) in self._listed:
            return "the journal was deleted, and another one was made under its name"
        return "the journal is not there any more"

    def _end_read(self, event: ReadEnded) -> None:
        read = self._read(event)
        if self._closing.pop(event.read, None) is not None:
            return
        awaited = {(one.journal, one.binding) for each in self.waiting for one in each.awaited}
        if self.recovery and read.known in awaited:
            raise self._rows_lost(read.known, "the journal is not there any more")
        del self._running[read.key]
        if read.key in self._listed:
            self._ended.add(read.key)

    def _read(self, event: ReadEnded | RowsMissing) -> _Read:
        if self._first_read <= event.read < self.next_read:
            read = self._reads[event.read - self._first_read]
            is_running = self._running.get(read.key) == event.read or event.read in self._closing
            if read.slice_key == (event.member, event.lane) and is_running:
                return read
        raise RemoteProtocolError(f"{_name(event)} ended read {event.read}, which it does not have")

    def _missing(self, event: RowsMissing) -> DataLossError | RowsLostError:
        known = self._read(event).known
        if event.reason and not self.recovery:
            return DataLossError(f"feed {self._plan.feed!r}", name_of(known[0]), event.reason)
        what = f"rows {event.begin} to {event.end - 1} were dropped"
        if event.begin == event.end:
            what = f"it ends at offset {event.begin}; it is not the journal that it was"
        return self._rows_lost(known, event.reason or what)

    def _rows_lost(self, known: ReadKey, what: str) -> RowsLostError:
        resumed = self._resume.journal(*known)
        entries = () if resumed is None else resumed.producers
        return rows_lost(self._plan.feed, name_of(known[0]), what, entries)

    def _progress(self, event: Progressed, now: float) -> list[SessionEffect]:
        delta = event.delta
        clocks = (delta.backfill_begin, delta.backfill_complete, delta.gap_floor)
        for binding in {*delta.bindings.tolist(), *(one for each in clocks for one in each)}:
            if self._lane_of(binding) != event.lane:
                raise RemoteProtocolError(
                    f"{_name(event)} told progress of binding {binding}, which is not of its lane"
                )
        self._unheard.discard((event.member, event.lane))
        if self._matching is not None:
            return self._match(self._matching.on_progressed(event, now), now)
        if not self.recovery:
            delta = self._instances.place(delta, self._checkpoints.reported)
        return self._check_in(event, delta, now)

    def _check_in(self, event: Progressed, delta: Frontier, now: float) -> list[SessionEffect]:
        return [AskProgress(event.member, event.lane), *self._on_progressed(delta, now)]

    def _on_progressed(self, delta: Frontier, now: float) -> list[SessionEffect]:
        was_ready = self._checkpoints.has_ready
        self._checkpoints.on_progressed(delta, now)
        is_ready = self._checkpoints.has_ready and not was_ready
        return [CheckpointReady()] if is_ready else []

    # Where a transaction log says what belongs together

    def on_log(self, event: LogRead, now: float) -> list[SessionEffect]:
        """The log was read. What waited for it may go on."""
        ends = {}
        if event.look is not None:
            known_as = self._instances.known_as
            ends = {known_as(*journal): end for journal, end in event.look.ends.items()}
        return self._match(self._log_matching().on_log(event, ends), now)

    def on_markers(self, event: MarkersFound, now: float) -> list[SessionEffect]:
        """What FindMarkers asked for. What waited for it may go on."""
        return self._match(self._log_matching().on_markers(event), now)

    def _log_matching(self) -> LogMatching:
        if self._matching is None:
            raise LocalProtocolError("this session has no transaction log")
        return self._matching

    @property
    def unmatched_since(self) -> float | None:
        """Since when progress waits for the transaction log, if some does."""
        return None if self._matching is None else self._matching.waiting_since

    def remembered(self) -> Remembered | None:
        """Where the matching of transactions stands with all that is in the frontier."""
        return None if self._matching is None else self._matching.rules.remembered()

    def _match(self, found: MatchedProgress, now: float) -> list[SessionEffect]:
        effects: list[SessionEffect] = []
        for event, matched in found.matched:
            reported = self._checkpoints.reported
            self._checkpoints.extend(self._instances.place(matched.below, reported), now)
            effects += self._check_in(event, self._instances.place(matched.delta, reported), now)
        if found.through is not None:
            through = self._instances.place(found.through, self._checkpoints.reported)
            effects += self._on_progressed(through, now)
        return effects if found.wanted is None else [*effects, found.wanted]

    def _tell(self, key: SliceKey, effect: SessionEffect) -> list[SessionEffect]:
        if key in self._opened:
            return [effect]
        self._unsent[key].append(effect)
        return []

    def _checked_slice(self, event: SessionEvent) -> SliceKey:
        key = (event.member, event.lane)
        if key not in self._slices:
            members = ", ".join(map(str, self._topology.members))
            raise RemoteProtocolError(
                f"{_name(event)} is no part of this session: its members are {members}, and it has "
                f"{len(self._plan.lanes)} lanes"
            )
        if isinstance(event, SliceOpened) and key in self._opened:
            raise RemoteProtocolError(f"{_name(event)} opened twice")
        if not isinstance(event, SliceOpened) and key not in self._opened:
            # So it cannot tell progress that nobody asked for: it is asked when it opens, and again
            # whenever it has answered.
            raise RemoteProtocolError(f"{_name(event)} has not opened, and sent {event}")
        return key

    def _check_lister(self, event: ListingAdded | ListingRemoved | ListingDone) -> None:
        if self._lane_of(event.binding) != event.lane or event.member != self._topology.lister(
            event.binding
        ):
            raise RemoteProtocolError(
                f"{_name(event)} listed binding {event.binding}, which is not its to list"
            )

    def _lane_of(self, binding: int) -> int:
        if not 0 <= binding < len(self._plan.bindings):
            raise RemoteProtocolError(
                f"binding {binding} is unknown: feed {self._plan.feed!r} has "
                f"{len(self._plan.bindings)}, from 0"
            )
        return self._plan.bindings[binding].lane


def _name(event: SessionEvent) -> str:
    return f"the Slice of member {event.member} in lane {event.lane}"
