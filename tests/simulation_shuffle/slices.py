"""A Slice's actor, played: it does what the state wants, in its own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from penstock.checkpoint import Injector
from penstock.shuffle.marks import BEGINNING
from penstock.shuffle.session.state import (
    ListingAdded,
    ListingDone,
    ListingRemoved,
    Progressed,
    ReadEnded,
    RowsMissing,
    SliceOpened,
    SpansLeft,
)
from penstock.shuffle.slice.actor import WAKE_SECONDS
from penstock.shuffle.slice.events import (
    BarrierClaimed,
    Fetch,
    Fetched,
    Probe,
    Probed,
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
    TellEnded,
    TellMissing,
    TellSpansLeft,
    Vanished,
)
from tests.simulation.choices import Menu, evenly
from tests.simulation.world import Violation
from tests.simulation_shuffle.journals import clock_at
from tests.simulation_shuffle.network import Flushing, Stream, data_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.checkpoint import Barrier
    from penstock.journal.store import JournalBatch
    from penstock.shuffle.session.state import SessionEvent
    from penstock.shuffle.slice.events import SliceEffect, SliceEvent
    from penstock.shuffle.slice.snapshots import SliceSnapshot
    from penstock.shuffle.slice.state import SliceState
    from tests.simulation.choices import OptionT
    from tests.simulation.world import Process
    from tests.simulation_shuffle.network import Frame
    from tests.simulation_shuffle.setting import Setting

LISTING_SECONDS: Final = 0.15
LOOK_SECONDS: Final = 0.05
TURN_SECONDS: Final = 0.006
_DELAYS: Final = Menu((100, 0.005), (30, 0.05), (10, 0.4), (1, 2.5))
"""The longest is a journal that is not there for a while."""
_ROWS: Final = evenly(20, 1, 3, 7)
_BATCHES: Final = evenly(1, 2, 3)


class PlayedSlice:
    """`tell` gets what the Session is to know, `captured` the state at each barrier, and `lost` the
    rows that a read is told to be missing: journal, binding, offsets. `lost_to_replay` gets those
    that are missing where a span is read again."""

    def __init__(
        self,
        process: Process,
        setting: Setting,
        member: int,
        lane: int,
        state: SliceState,
        *,
        step: Callable[[str], None],
        tell: Callable[[SessionEvent], None],
        captured: Callable[[int, int, Barrier, SliceSnapshot], None],
        lost: Callable[[str, int, Iterable[int]], None],
        lost_to_replay: Callable[[str, int, Iterable[int]], None],
    ) -> None:
        self.name = f"s{member}.{lane}"
        self.member = member
        self.lane = lane
        self.state = state
        self.injector = Injector()
        self.streams: dict[int, Stream] = {}
        self._process = process
        self._setting = setting
        self._step = step
        self._tell = tell
        self._captured = captured
        self._lost = lost
        self._lost_to_replay = lost_to_replay
        self._is_awake = False
        self._waiting: dict[int, Fetch] = {}
        self._known: dict[int, dict[str, str]] = {}
        self._bindings: dict[int, int] = {}
        """Of the reads."""

    def start(self) -> None:
        for stream in self.streams.values():
            stream.send(BEGINNING)
        self._tell(SliceOpened(self.member, self.lane))
        members = self._setting.members
        self._known = {
            binding.place: {}
            for binding in self._setting.plan.of_lane(self.lane)
            if members[binding.place % len(members)] == self.member
        }
        self._after_a_while("listing", lambda: self._list(is_first=True))
        self._process.after(LOOK_SECONDS, self._look, "looks")

    def post(self, event: SliceEvent) -> None:
        if isinstance(event, ReadStarted):
            self._bindings[event.read] = event.binding
        self._obey(self.state.handle(event, clock_at(self._process.world.now)))
        self.wake()

    def inject(self, barrier: Barrier) -> None:
        if self.injector.trigger(barrier):
            self.wake()

    def wake(self) -> None:
        """The loop turns soon: after all that happens at this moment."""
        if not self._is_awake:
            self._is_awake = True
            self._process.after(TURN_SECONDS, self._turn, "turns")

    def _turn(self) -> None:
        self._is_awake = False
        if self.injector.pending is not None:
            barrier = self.injector.claim()
            if barrier is not None:
                self._step("barrier")
                self._obey(self.state.handle(BarrierClaimed(barrier)))
                self._captured(self.member, self.lane, barrier, self.state.snapshot())
        for stream in self.streams.values():
            stream.send_unsent()
        if any(stream.unsent for stream in self.streams.values()):
            self._process.world.counts["rounds put off"] += 1
            return
        credit = {member: stream.credit_bytes for member, stream in self.streams.items()}
        now = clock_at(self._process.world.now)
        effects = self.state.round(now, credit)
        self._obey(effects)
        self._check_sent(effects)
        if any(isinstance(effect, SendParcel | SendRollbacks) for effect in effects):
            self.wake()
        elif self.state.is_due(now):  # there was no credit, or nothing new in what was drained
            self._process.after(WAKE_SECONDS, self.wake, "wakes")

    def _check_sent(self, effects: list[SliceEffect]) -> None:
        """All of a round goes at once, but for one row that is more than there is credit for."""
        rows = sum(effect.batch.num_rows for effect in effects if isinstance(effect, SendParcel))
        if rows > 1 and any(stream.unsent for stream in self.streams.values()):
            raise Violation(f"{self.name} made a round of {rows} rows, and has no credit for it")

    def _obey(self, effects: list[SliceEffect]) -> None:
        for effect in effects:
            self._step(type(effect).__name__)
            match effect:
                case Probe() | Fetch() | Replay():
                    self._read(effect)
                case SendReads() | SendRollbacks():
                    # A frame of its own for each: it is charged where it arrives.
                    for stream in self.streams.values():
                        stream.send(data_of(effect))
                case SendParcel():
                    self.streams[effect.member].send(data_of(effect))
                case SendMark():
                    self.streams[effect.member].send(effect.mark)
                case SendFlush():
                    self._send_all(Flushing(effect.cycle))
                case SendBarrier():
                    self._send_all(effect.barrier)
                case Report():
                    self._tell(Progressed(self.member, self.lane, effect.delta, effect.markers))
                case TellMissing() | TellEnded() | TellSpansLeft():
                    self._tell_of_read(effect)
                case Sleep():
                    seconds = (effect.until - clock_at(self._process.world.now)) / 160e6
                    self._process.after(max(0.001, seconds + 1e-6), self.wake, "wakes")
                case _:
                    assert_never(effect)

    def _tell_of_read(self, effect: TellMissing | TellEnded | TellSpansLeft) -> None:
        key = (self.member, self.lane)
        match effect:
            case TellEnded(read=read):
                self._tell(ReadEnded(*key, read))
            case TellMissing(read=read, begin=begin, end=end):
                self._tell(RowsMissing(*key, read, begin, end))
            case TellSpansLeft(binding=binding, journal=journal):
                self._process.world.counts["spans left"] += 1
                self._tell(SpansLeft(*key, binding, journal))
            case _:
                assert_never(effect)

    def _send_all(self, frame: Frame) -> None:
        for stream in self.streams.values():
            stream.send(frame)

    # Journals

    def _choose(self, what: str, menu: Menu[OptionT]) -> OptionT:
        return self._process.world.choices.choose(f"{self.name} {what}", menu)

    def _after_a_while(self, what: str, act: Callable[[], None]) -> None:
        self._process.after(self._choose(f"{what} takes", _DELAYS), act, what)

    def _read(self, wish: Probe | Fetch | Replay) -> None:
        match wish:
            case Probe():
                self._after_a_while("probe", lambda: self._probe(wish))
            case Fetch():
                self._after_a_while("fetch", lambda: self._fetch(wish))
            case Replay():
                self._process.world.counts["replays"] += 1
                self._after_a_while("replay", lambda: self._replay(wish))

    def _list(self, *, is_first: bool) -> None:
        for place, known in list(self._known.items()):
            collection = self._setting.plan.bindings[place].collection
            found = self._setting.journals.of_collection(collection)
            self._known[place] = found
            for journal in sorted(known.keys() - found.keys()):
                self._tell(ListingRemoved(self.member, self.lane, place, journal))
            for journal, identity in sorted(found.items() - known.items()):
                self._tell(ListingAdded(self.member, self.lane, place, journal, identity))
            if is_first:
                self._tell(ListingDone(self.member, self.lane, place))
        if self._known:
            self._process.after(LISTING_SECONDS, lambda: self._list(is_first=False), "lists")

    def _probe(self, wish: Probe) -> None:
        journal = self._setting.journals.find(wish.journal, wish.identity)
        counts = self._process.world.counts
        if journal is None:
            counts["reads ended"] += 1
            self.post(Vanished(wish.read))
            return
        states = {}
        if wish.offset < journal.first_kept:
            counts["gaps"] += 1
            states = journal.states(journal.first_kept)
            self._lost(
                journal.known_as, self._bindings[wish.read], range(wish.offset, journal.first_kept)
            )
        head = max(journal.head, journal.first_kept)
        self.post(Probed(wish.read, journal.first_kept, head, states))

    def _fetch(self, wish: Fetch) -> None:
        journal = self._setting.journals.find(wish.journal, wish.identity)
        if journal is None or journal.first_kept > wish.offset:
            self._probe(Probe(wish.read, wish.journal, wish.offset, wish.identity))
        elif journal.head <= wish.offset:
            self._waiting[wish.read] = wish
        else:
            batches = self._batches(wish.journal, wish.offset, journal.head)
            self.post(Fetched(wish.read, batches, journal.head))

    def _replay(self, wish: Replay) -> None:
        journal = self._setting.journals.find(wish.journal, wish.identity)
        if journal is None:
            self.post(Vanished(wish.read))
            return
        kept_from = min(journal.first_kept, wish.end)
        replay = self.state._replay
        if replay is None or replay.read.number != wish.read:
            self.post(ReplayFetched(wish.read, (), wish.end))  # it vanished in between
            return
        missing = range(wish.begin, kept_from)
        own = [at for at in missing if journal.rows[at].producer == replay.producer]
        if own:
            self._process.world.counts["replays that lack rows"] += 1
            self._lost_to_replay(journal.known_as, self._bindings[wish.read], own)
        batches = self._batches(wish.journal, max(wish.begin, kept_from), wish.end)
        reached = wish.end
        if batches:
            reached = batches[-1].next_offset
        self.post(ReplayFetched(wish.read, batches, reached, kept_from))

    def _batches(self, name: str, begin: int, end: int) -> tuple[JournalBatch, ...]:
        found = []
        for _ in range(self._choose("batches", _BATCHES)):
            if begin < end:
                until = min(end, begin + self._choose("rows", _ROWS))
                found.append(self._setting.journals.batch(name, begin, until))
                begin = until
        return tuple(found)

    def _look(self) -> None:
        for read, wish in list(self._waiting.items()):
            journal = self._setting.journals.find(wish.journal, wish.identity)
            if journal is None or max(journal.head, journal.first_kept) > wish.offset:
                del self._waiting[read]
                self._fetch(wish)
        self._process.after(LOOK_SECONDS, self._look, "looks")
