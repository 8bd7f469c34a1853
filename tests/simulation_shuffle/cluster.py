"""The Session with all members, from a start to the crash that ends it, and the next start.

Whatever fails, everything fails: what was committed is all there is to begin with. If a disk is
lost, the queues are begun anew, as docs/shuffle.md has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.journal.names import name_of
from penstock.shuffle.queue.budget import Budget
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.machine import QueueMachine
from penstock.shuffle.queue.snapshot import decode_state, encode_state
from penstock.shuffle.resume import Epoch, Resume, SessionRecord
from penstock.shuffle.session.hint_index import HintIndex
from penstock.shuffle.session.log_matching import FindMarkers, MarkersFound, ReadLog
from penstock.shuffle.session.log_reading import opened_log
from penstock.shuffle.session.state import (
    AllReadsStarted,
    AskProgress,
    CheckpointReady,
    Looked,
    Progressed,
    SessionState,
    StartRead,
)
from penstock.shuffle.session.topology import Topology
from penstock.shuffle.slice import events as slice_events
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.shuffle.slice.state import SliceState
from tests.simulation.choices import Menu, evenly, seldom
from tests.simulation.world import Process
from tests.simulation_shuffle.consumer import Consumer
from tests.simulation_shuffle.disk import Disk
from tests.simulation_shuffle.handover import hand_over, inherited
from tests.simulation_shuffle.leader import Committed, Leader
from tests.simulation_shuffle.log_reading import PlayedLogReader
from tests.simulation_shuffle.losses import Losses
from tests.simulation_shuffle.network import Line, Stream
from tests.simulation_shuffle.queues import PlayedQueue
from tests.simulation_shuffle.slices import PlayedSlice

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.store import ReadableStore
    from penstock.shuffle.queue.events import QueueState
    from penstock.shuffle.session.log_matching import LogRead
    from penstock.shuffle.session.lost import RowsLostError
    from penstock.shuffle.session.state import SessionEffect, SessionEvent, Sought
    from tests.simulation.world import World
    from tests.simulation_shuffle.setting import Setting

CRASHES_MAX: Final = 3
LOOK_SECONDS: Final = 0.1
"""Between two looks for journals that are waited for, or whose reads ended."""
_LOOKS: Final = Menu((3, 0.0), (1, 0.2))
"""How long one takes, while the world goes on."""
_CRASHES: Final = Menu((8, None), *((1, 0.26 * number) for number in range(1, 9)))
_FUSES: Final = evenly(1, 2, 3, 5, 8, 13, 21, 34)
_CHANGED: Final = seldom(150)
_SIZES: Final = evenly(1, 2, 3, 4)
_EARLY: Final = seldom(250)
_LONG_FUSES: Final = evenly(10, 20, 40, 80, 120, 160)
_LOST: Final = Menu((5, "none"), (2, "one"), (1, "all"))
_RESTARTS: Final = evenly(0.1, 0.5)


class Crash(Exception):  # noqa: N818 - it is planned
    """Everything stops here."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of; a test may put something broken in."""

    slice_state: type[SliceState] = SliceState
    queue_machine: type[QueueMachine] = QueueMachine
    session_state: type[SessionState] = SessionState
    hint_index: type[HintIndex] = HintIndex
    patches: dict[str, object] = field(default_factory=dict)
    numbers_reads_again: bool = False
    forgets_generations: bool = False


class Cluster:
    def __init__(
        self, world: World, setting: Setting, parts: Parts, folder: Path | None = None
    ) -> None:
        self.world = world
        self.setting = setting
        self.oracle = setting.oracle(setting.plan, setting.journals, setting.assignment)
        self._folder = folder
        self.disks = {member: self._disk(member) for member in setting.members}
        self.all_disks = dict(self.disks)
        """Also of members that left, until there is an epoch without them."""
        self.is_handing_over = False
        self.was_moved = False
        self.committed: list[Committed] = []
        self.epochs_begun = 0
        self.disks_were_lost = False
        self.consumer = Consumer(self)
        self.parts = parts
        self.losses = Losses(self)
        self._fuse: int | None = None
        self._lives = 0
        self.start()

    # Crashes

    def plan_crashes(self, length: float) -> None:
        """In a run that is longer they are later."""
        choose = self.world.choices.choose
        for number in range(CRASHES_MAX):
            at = choose(f"crash {number}", _CRASHES)
            if at is not None:
                self.world.post(at * length, self._light)

    def _light(self) -> None:
        self._fuse = self.world.choices.choose("fuses", _FUSES)

    def step(self, kind: str) -> None:
        """Before each effect: here everything may end."""
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse <= 0:
                self._fuse = None
                self.world.counts[f"crash: {kind}"] += 1
                raise Crash(kind)

    def crash(self, where: str) -> None:
        choose = self.world.choices.choose
        self.process.kill()
        self.world.counts["crashes"] += 1
        self.world.tell("world", f"everything crashes ({where})")
        for disk in self.disks.values():
            disk.crash()
        lost = choose("lost", _LOST)
        if lost != "none":
            self.world.counts["disks lost"] += 1
            members = self.setting.members
            chosen = members if lost == "all" else [choose("lost disk", evenly(*members))]
            self.world.tell("world", f"lost are the disks of {list(chosen)}")
            for member in chosen:
                self.disks[member].lose()
        self.losses.everything_is_down()
        self.world.post(choose("restarts", _RESTARTS), self._start_again)

    def _start_again(self) -> None:
        if self.world.choices.choose("members change", _CHANGED):
            self._change_members(self.world.choices.choose("new members", _SIZES))
        if self.world.choices.choose("early crash", _EARLY):
            self._fuse = self.world.choices.choose("long fuses", _LONG_FUSES)
        self.start()

    def _change_members(self, count: int) -> None:
        """From here on there are so many."""
        members = range(1, count + 1)
        self.world.counts["members changed"] += tuple(members) != self.setting.members
        self.world.tell("world", f"from now on there are {count} members")
        filled = self.committed[-1].assignment if self.committed else self.setting.assignment
        assignment = filled.reassign(members)
        self.setting = replace(self.setting, assignment=assignment)
        self.oracle.reassign(assignment)
        self.disks = {
            member: self.all_disks.setdefault(member, self._disk(member)) for member in members
        }

    def drop_disks_of_others(self) -> None:
        for member in self.all_disks.keys() - self.disks.keys():
            self.all_disks.pop(member).lose()

    def _disk(self, member: int) -> Disk:
        return Disk(self.world, member, self._folder and self._folder / f"member-{member}")

    def calm(self) -> None:
        self._fuse = None
        self.world.choices.quiet = True
        self.world.tell("world", "nothing befalls anybody any more")

    # Lives

    def begin_anew(self, error: RowsLostError) -> None:
        """What a person does who is told that a recovery is not possible."""
        self.losses.check_lost(error)
        self.world.counts["recoveries that are not possible"] += 1
        self.world.tell("world", f"everything begins anew: {error}")
        self.process.kill()
        for disk in self.disks.values():
            disk.close()
            disk.lose()
        self.committed.clear()
        self.consumer = Consumer(self)
        self.start()

    def start(self) -> None:
        newest = self.committed[-1] if self.committed else None
        owners = self.setting.assignment.owners
        self.is_handing_over = newest is not None and newest.assignment.owners != owners
        self.was_moved |= self.is_handing_over
        try:
            self._open(newest, queues_lost=False)
        except QueueLostError as error:
            self.is_handing_over = False
            self.world.tell("world", f"queues are built anew: {error}")
            for disk in self.disks.values():
                disk.close()
            self.disks_were_lost = True
            self._open(newest, queues_lost=True)

    def restart(self) -> None:
        """In order, after a recovery session."""
        self.process.kill()
        for disk in self.disks.values():
            disk.close()
        self.start()

    def _open(self, newest: Committed | None, *, queues_lost: bool) -> None:
        restored = None if queues_lost else newest
        states: dict[int, QueueState] = {}
        if restored is not None and self.is_handing_over:
            states = hand_over(self, restored)
        for member, disk in self.disks.items():
            if states:
                break
            if restored is None:
                disk.open(0, None)
            else:
                knows = not self.parts.forgets_generations
                generation = restored.generations[member] if knows else None
                disk.open(restored.queues[member].lsn, generation)
        self._lives += 1
        self.process = Process(self.world, 0, self._lives, 1.0, 0.0)
        record = SessionRecord() if newest is None else newest.record
        number = 0 if newest is None else newest.number
        resume = Resume(
            None if restored is None else restored.number, record, Epoch(number, record.frontier)
        )
        setting = self.setting
        self.world.tell(
            "world",
            f"life {self._lives} goes on from epoch {resume.epoch}"
            + (", recovering" if resume.recovering else ""),
        )
        self.world.counts["recoveries"] += resume.recovering
        # A session that only reads again what was lost has no use for the log.
        log, remembered = None, None
        if not resume.recovering:
            log, remembered = opened_log(resume, cast("ReadableStore", setting.journals))
        if restored is not None:
            self.world.counts["restarts"] += 1
            self.world.counts["restarts that go on in the log"] += remembered is not None
        self.session = self.parts.session_state(
            setting.plan,
            Topology(setting.plan, setting.journals.collections, setting.assignment),
            resume.frontier,
            self.world.now,
            first_read=record.next_read,
            adopted=record.adopted,
            restored=restored is not None,
            has_log=log is not None,
            remembered=remembered,
        )
        self._log_reader = (
            None if log is None else PlayedLogReader(self.process, setting, log, self._hear_log)
        )
        self.leader = Leader(self, resume)
        self._lines = {
            member: Line(self.process, f"session to {member}") for member in setting.members
        }
        self._build(restored, states, recovering=resume.recovering)
        self.process.after(LOOK_SECONDS, self._look_for_gone, "looks")
        self.consumer.start()
        self.leader.start()

    def _build(
        self, restored: Committed | None, handed: dict[int, QueueState], *, recovering: bool
    ) -> None:
        setting, members = self.setting, self.setting.members
        lanes = range(len(setting.plan.lanes))
        hint_index = self.parts.hint_index(setting.plan)
        states: dict[int, QueueState | None] = {
            member: handed.get(member)
            or (None if restored is None else _saved_queue(restored.queues[member]))
            for member in members
        }
        topology = Topology(setting.plan, setting.journals.collections, setting.assignment)
        self.slices = {
            (member, lane): self._slice(
                member,
                lane,
                hint_index,
                None
                if restored is None
                else inherited(restored, member, lane, topology)
                if handed
                else restored.slices[member, lane],
            )
            for lane in lanes
            for member in members
        }
        self.queues = {
            member: self._queue(member, states[member], restored, recovering=recovering)
            for member in members
        }
        self._answers: dict[tuple[int, int], Line] = {}
        self._slices_by_place = list(self.slices)
        for each in self.slices.values():
            for member in members:
                self._join(each, self.queues[member])
        for member, queue in self.queues.items():
            queue.start(None if handed else states[member])
        for each in self.slices.values():
            each.start()

    def _slice(
        self, member: int, lane: int, hint_index: HintIndex, saved: SliceSnapshot | None
    ) -> PlayedSlice:
        state = self.parts.slice_state(
            self.setting.plan.of_lane(lane),
            self.setting.assignment,
            hint_index,
            read_ahead_bytes=self.setting.read_ahead_bytes,
            restored=None if saved is None else SliceSnapshot.decode(saved.encode()),
        )
        line = Line(self.process, f"s{member}.{lane} to session")
        return PlayedSlice(
            self.process,
            self.setting,
            member,
            lane,
            state,
            step=self.step,
            tell=lambda event: line.send(lambda: self._hear(event)),
            captured=self.leader.slice_captured,
            lost=self.oracle.lost,
            lost_to_replay=self.oracle.lost_to_replay,
        )

    def _queue(
        self,
        member: int,
        state: QueueState | None,
        restored: Committed | None,
        *,
        recovering: bool,
    ) -> PlayedQueue:
        setting = self.setting
        machine = self.parts.queue_machine(
            [lane for lane in range(len(setting.plan.lanes)) for _ in setting.members],
            {binding.place: binding.delay for binding in setting.plan.bindings},
            Budget(setting.budget_bytes, recovering=recovering),
            aligned_seconds_max=setting.aligned_seconds_max,
            restored=state,
            epoch=-1 if restored is None else restored.number,
        )
        return PlayedQueue(
            self.process,
            member,
            machine,
            self.disks[member],
            step=self.step,
            captured=self.leader.queue_captured,
            answer=lambda stream, cycle, lsn: self._answer(member, stream, cycle, lsn),
            room_needed=self.leader.want_epoch,
        )

    def _join(self, each: PlayedSlice, queue: PlayedQueue) -> None:
        place = len(queue.streams)  # slices come by lane and member, as the machine counts them
        name = f"{each.name}-{queue.name}"
        stream = Stream(
            self.process,
            name,
            self.setting,
            lambda frame: queue.arrive(place, frame),
            each.wake,
        )
        queue.streams.append(stream)
        each.streams[queue.member] = stream
        self._answers[queue.member, place] = Line(self.process, f"{name} answers")

    # What is said

    def _hear(self, event: SessionEvent) -> None:
        if isinstance(event, Progressed):
            self.oracle.raise_gap_floors(event.delta.gap_floor)
        self._obey(self.session.on_event(event, self.world.now))

    def _hear_log(self, read: LogRead | MarkersFound) -> None:
        if isinstance(read, MarkersFound):
            self._obey(self.session.on_markers(read, self.world.now))
        else:
            self._obey(self.session.on_log(read, self.world.now))

    def _obey(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            self.step(type(effect).__name__)
            match effect:
                case StartRead():
                    started = slice_events.ReadStarted(
                        effect.read,
                        effect.binding,
                        effect.journal,
                        effect.entries,
                        effect.identity,
                        effect.known_as,
                    )
                    self._say(effect.member, effect.lane, started)
                case AllReadsStarted():
                    self._say(effect.member, effect.lane, slice_events.AllReadsStarted())
                case AskProgress():
                    self._say(effect.member, effect.lane, slice_events.ProgressAsked())
                case ReadLog():
                    assert self._log_reader is not None
                    self._log_reader.want(looks=effect.looks)
                case FindMarkers():
                    assert self._log_reader is not None
                    self._log_reader.find(effect)
                case CheckpointReady():
                    pass

    def _look_for_gone(self) -> None:
        sought = self.session.sought(self.world.now)
        found = {name: self._looked(name, sought) for name, _ in sought.journals}
        awaited = {name_of(one.journal) for one in sought.awaited}
        gone = [name for name in awaited if found[name].identity is None]
        self.world.counts["hints at what is gone"] += len(gone)

        def tell() -> None:
            self._obey(self.session.looked_for(sought, found, self.world.now))
            self.process.after(LOOK_SECONDS, self._look_for_gone, "looks")

        delay = self.world.choices.choose("looks", _LOOKS) if sought.journals else 0.0
        self.process.after(delay, tell, "looked")

    def _looked(self, name: str, sought: Sought) -> Looked:
        journal = self.setting.journals.by_name.get(name)
        if journal is None or journal.is_gone:
            return Looked(None)
        if name not in sought.stuck:
            return Looked(journal.identity)
        return Looked(journal.identity, journal.states(max(journal.head, journal.first_kept)))

    def _say(self, member: int, lane: int, event: slice_events.SliceEvent) -> None:
        each = self.slices[member, lane]
        self._lines[member].send(lambda: each.post(event))

    def _answer(self, member: int, place: int, cycle: int, lsn: int) -> None:
        each = self.slices[self._slices_by_place[place]]
        event = slice_events.Flushed(member, cycle, lsn)
        self._answers[member, place].send(lambda: each.post(event))

    def consumed(self, epoch: Epoch) -> None:
        """By the consumer, of an epoch that the Session knows."""
        self.leader.consumed(epoch)
        committed = next(one for one in self.committed if one.number == epoch.number)
        for member, queue in self.queues.items():
            if committed.generations.get(member) != self.disks[member].generation:
                continue  # its queue is lost: where it ended means nothing in this one
            lsn = committed.queues[member].lsn
            self._lines[member].send(
                lambda queue=queue, lsn=lsn: queue.consumed(epoch.frontier, lsn)  # type: ignore[misc]
            )


def _saved_queue(state: QueueState) -> QueueState:
    """As it comes back from a snapshot."""
    decoded = decode_state(pa.py_buffer(b"".join(map(bytes, encode_state(state)))))
    if decoded.lsn != state.lsn:
        raise LocalProtocolError("a queue's snapshot has another LSN")
    return decoded
