"""The Session as a state machine: event in, effects out.

Slices list journals, and the Session says who reads them and from where. When every binding was
listed once, it tells all Slices that no more first reads will come. From each Slice it asks for
progress, one request at a time, and gives it to the checkpoints; what is taken from those is added
to the frontier, up to which everything is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import Frontier, ProducerFrontier, clear_discharged_hints, reduce
from penstock.shuffle.session.checkpoints import Checkpoints
from penstock.shuffle.session.hint_index import HintIndex
from penstock.shuffle.session.lost import RowsLostError, rows_lost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.shuffle.plan import Plan
    from penstock.shuffle.session.ledger import ReadKey
    from penstock.shuffle.session.pipeline import Awaited, Waiting
    from penstock.shuffle.session.topology import Topology

READS_MAX: Final = 2**32
"""A read's number stands in every row, as 32 bits."""


@dataclass(frozen=True, slots=True)
class SliceOpened:
    """Event: a Slice is there, and hears what the Session says from now on."""

    member: int
    lane: int


@dataclass(frozen=True, slots=True)
class ListingAdded:
    """Event: a Slice found a journal of a binding that it lists."""

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
    """Event: a Slice has given a read up, because its journal is gone. All that it had of it, it
    has told before."""

    member: int
    lane: int
    read: int


@dataclass(frozen=True, slots=True)
class RowsMissing:
    """Event: a Slice cannot get rows [begin, end) of a read that were lost; or, if that is nothing,
    the journal ends at `begin`, before the last of them."""

    member: int
    lane: int
    read: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """Event: the answer to AskProgress."""

    member: int
    lane: int
    delta: Frontier


SessionEvent: TypeAlias = (
    SliceOpened | ListingAdded | ListingDone | ReadEnded | RowsMissing | Progressed
)


@dataclass(frozen=True, slots=True)
class StartRead:
    """Effect: tell this Slice to read a journal from where the entries say."""

    member: int
    lane: int
    read: int
    binding: int
    journal: str
    entries: tuple[ProducerFrontier, ...]


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


SessionEffect: TypeAlias = StartRead | AllReadsStarted | AskProgress | CheckpointReady

SliceKey: TypeAlias = tuple[int, int]
"""Member and lane."""


class SessionState:
    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        resume: Frontier,
        now: float,
        *,
        first_read: int = 0,
    ) -> None:
        """`first_read` is above all numbers of reads that were ever given: rows in the queues have
        them."""
        self.frontier: Frontier = resume
        """Up to where everything is complete: the start, and all that was taken since."""
        self._plan = plan
        self._topology = topology
        self._hint_index = HintIndex(plan)
        self._checkpoints = Checkpoints(plan.cohorts, resume, now)
        self._resume = resume
        self._started: set[ReadKey] = set()
        """What was taken out of the resume frontier."""
        self._running: dict[ReadKey, int] = {}
        self._ended: set[ReadKey] = set()
        """Whose journals were gone. They may be there again before the next listing."""
        self._first_read = first_read
        self._reads: list[tuple[SliceKey, ReadKey]] = []
        """By number, less the first one, who reads what."""
        self._unlisted = {binding.place for binding in plan.bindings}
        self._slices = {
            (member, lane) for lane in range(len(plan.lanes)) for member in topology.members
        }
        self._opened: set[SliceKey] = set()
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
    def unread(self) -> tuple[ReadKey, ...]:
        """Journals that nobody reads, and that are waited for or were read before: not found yet,
        or gone."""
        if self.recovery or self._unlisted:
            return ()
        keys = {(one.journal, one.binding) for each in self.waiting for one in each.awaited}
        return tuple(sorted((keys | self._ended) - self._running.keys()))

    def looked_for(
        self, unread: Iterable[ReadKey], there: Collection[str], now: float
    ) -> list[SessionEffect]:
        """Of what was `unread`, these journals are there. All were there when they were hinted at:
        an acknowledgement is written when all documents of its transaction are. So those that are
        not were deleted, and nobody waits for them any more."""
        was_ready = self._checkpoints.has_ready
        effects: list[SessionEffect] = []
        for read_key in unread:
            if read_key in self._running:
                continue
            if read_key[0] not in there:
                self._ended.discard(read_key)  # if it comes back, a listing tells
                self._checkpoints.is_gone(read_key, now)
            elif read_key in self._ended:
                effects += self._start_read(*read_key)
        if self._checkpoints.has_ready and not was_ready:
            effects.append(CheckpointReady())
        return effects

    @property
    def unlisted(self) -> tuple[int, ...]:
        """The bindings whose first listing is not done."""
        return tuple(sorted(self._unlisted))

    def take(self) -> Frontier | None:
        """The next checkpoint: what is complete, and was not taken before. From here on it is in
        the frontier too."""
        taken = self._checkpoints.take()
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
                return self._start_read(event.journal, event.binding)
            case ListingDone():
                return self._listed(event)
            case ReadEnded():
                self._end_read(event)
                return []
            case RowsMissing():
                what = f"rows {event.begin} to {event.end - 1} were dropped"
                if event.begin == event.end:
                    what = f"it ends at offset {event.begin}; it is not the journal that it was"
                raise self._rows_lost(self._read_key(event), what)
            case Progressed():
                return self._progress(event, now)
            case _ as never:
                assert_never(never)

    def _open(self, key: SliceKey) -> list[SessionEffect]:
        self._opened.add(key)
        return [*self._unsent.pop(key), AskProgress(*key)]

    def _start_read(self, journal: str, binding: int) -> list[SessionEffect]:
        read_key = (journal, binding)
        if read_key in self._running:
            return []
        self._ended.discard(read_key)
        self._checkpoints.is_back(read_key)
        known = None if read_key in self._started else self._resume.journal(*read_key)
        entries = () if known is None else known.producers
        if self.recovery and not any(entry.is_unresolved for entry in entries):
            return []
        if self.next_read == READS_MAX:
            raise LocalProtocolError(
                f"{READS_MAX} reads were numbered, as many as there are: begin with empty queues"
            )
        self._started.add(read_key)
        lane = self._plan.bindings[binding].lane
        slice_key = (self._topology.reader(binding, journal), lane)
        self._running[read_key] = read = self.next_read
        self._reads.append((slice_key, read_key))
        return self._tell(slice_key, StartRead(*slice_key, read, binding, journal, entries))

    def _listed(self, event: ListingDone) -> list[SessionEffect]:
        self._check_lister(event)
        if event.binding not in self._unlisted:
            raise RemoteProtocolError(
                f"{_name(event)} has done the first listing of binding {event.binding} twice"
            )
        self._unlisted.remove(event.binding)
        if self._unlisted:
            return []
        if self.recovery:
            for journal in self._resume.journals():
                read_key = (journal.journal, journal.binding)
                hinted = any(entry.is_unresolved for entry in journal.producers)
                if hinted and read_key not in self._started:
                    raise self._rows_lost(read_key, "the journal is not there any more")
        return [
            effect
            for key in sorted(self._slices)
            for effect in self._tell(key, AllReadsStarted(*key))
        ]

    def _end_read(self, event: ReadEnded) -> None:
        read_key = self._read_key(event)
        awaited = {(one.journal, one.binding) for each in self.waiting for one in each.awaited}
        if self.recovery and read_key in awaited:
            raise self._rows_lost(read_key, "the journal is not there any more")
        del self._running[read_key]
        self._ended.add(read_key)

    def _read_key(self, event: ReadEnded | RowsMissing) -> ReadKey:
        if self._first_read <= event.read < self.next_read:
            reader, read_key = self._reads[event.read - self._first_read]
            if reader == (event.member, event.lane) and self._running.get(read_key) == event.read:
                return read_key
        raise RemoteProtocolError(f"{_name(event)} ended read {event.read}, which it does not have")

    def _rows_lost(self, read_key: ReadKey, what: str) -> RowsLostError:
        known = self._resume.journal(*read_key)
        return rows_lost(
            self._plan.feed, read_key[0], what, () if known is None else known.producers
        )

    def _progress(self, event: Progressed, now: float) -> list[SessionEffect]:
        delta = event.delta
        clocks = (delta.backfill_begin, delta.backfill_complete, delta.gap_floor)
        for binding in {*delta.bindings.tolist(), *(one for each in clocks for one in each)}:
            if self._lane_of(binding) != event.lane:
                raise RemoteProtocolError(
                    f"{_name(event)} told progress of binding {binding}, which is not of its lane"
                )
        was_ready = self._checkpoints.has_ready
        self._checkpoints.on_progressed(delta, now)
        effects: list[SessionEffect] = [AskProgress(event.member, event.lane)]
        if self._checkpoints.has_ready and not was_ready:
            effects.append(CheckpointReady())
        return effects

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

    def _check_lister(self, event: ListingAdded | ListingDone) -> None:
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
