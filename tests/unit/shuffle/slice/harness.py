"""An actor for a Slice that does everything in any order, and looks at every step.

Journals grow, answers come late, credit is short, barriers are taken and the Slice is restored from
them. After every round what the Queues hold of each read is what the walk over its documents up to
the same place gives.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import Barrier
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier, reduce
from penstock.ids import CLOCK_MAX
from penstock.shuffle.marks import BEGINNING, Mark, MarkKind
from penstock.shuffle.parcels import READS_SCHEMA, ROLLBACK_SCHEMA
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    BarrierClaimed,
    Fetch,
    Fetched,
    Flushed,
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
)
from penstock.shuffle.slice.progress import hints_in
from penstock.shuffle.slice.reads import GAP_SLACK
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.shuffle.slice.state import LEAST_CREDIT, SliceState
from tests.unit.shuffle.slice.model import Row, Walk, batches_of, owner_of

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from penstock.routing import Assignment
    from penstock.shuffle.plan import BindingPlan

WINDOW_BYTES = 2400
FRAME_BYTES = 64
"""What a frame costs here beside its values; tests patch it in."""


class Index:
    """All journals are read by all bindings, those named with an x by none."""

    def __init__(self, bindings: Sequence[BindingPlan]) -> None:
        self._bindings = bindings

    def targets(self, journal: str, cohort: int) -> tuple[int, ...]:
        if journal.startswith("x"):
            return ()
        return tuple(binding.place for binding in self._bindings if binding.cohort == cohort)


@dataclass
class FakeQueue:
    names: dict[int, tuple[int, str]] = field(default_factory=dict)
    stored: dict[tuple[int, str], Counter[tuple[int, int, int]]] = field(default_factory=dict)
    """By binding and journal: producer, clock, value."""
    mark: Mark = BEGINNING
    reached: dict[int, int] = field(default_factory=dict)
    """By binding, as a real Queue would count the keys of what came."""


@dataclass
class Session:
    frontier: Frontier = field(default_factory=Frontier.of)
    frozen: dict[int, dict[tuple[str, int], tuple[int, int]]] = field(default_factory=dict)
    """How far each read was drained when the flush of a cycle was sent, and its journal's head."""
    told: int = 0
    """The cycle of the last flush that was told."""


@dataclass(eq=False)
class ReadView:
    number: int
    journal: str
    binding: BindingPlan
    entries: tuple[ProducerFrontier, ...]
    keys: dict[int, int] = field(default_factory=dict)
    """By offset, of what was fetched."""
    head: int = 0
    """As the Slice was told."""


class Harness:
    def __init__(
        self,
        rng: random.Random,
        bindings: Sequence[BindingPlan],
        journals: dict[str, list[Row]],
        assignment: Assignment,
        *,
        entries: dict[tuple[str, int], tuple[ProducerFrontier, ...]] | None = None,
        first_kept: dict[str, int] | None = None,
        read_ahead_bytes: int = 2000,
    ) -> None:
        self.rng = rng
        self.bindings = {binding.place: binding for binding in bindings}
        self.journals = journals
        self.assignment = assignment
        self.first_kept = first_kept or {}
        self.read_ahead_bytes = read_ahead_bytes
        self.entries = entries or {}
        self.index = Index(bindings)
        self.heads = {
            name: rng.randint(self.first_kept.get(name, 0), len(rows))
            for name, rows in journals.items()
        }
        self.now = 0
        self.queues = {member: FakeQueue() for member in assignment.members}
        self.session = Session()
        self.saved: tuple[bytes, dict[int, FakeQueue], Session] | None = None
        self.rounds_with_rows = 0
        self._barriers = 0
        self._start(None)

    def _start(self, restored: SliceSnapshot | None) -> None:
        self.state = SliceState(
            self.bindings.values(),
            self.assignment,
            self.index,
            read_ahead_bytes=self.read_ahead_bytes,
            restored=restored,
        )
        pairs = [(name, place) for name in self.journals for place in self.bindings]
        self.rng.shuffle(pairs)
        self.to_start = pairs
        self.reads: dict[int, ReadView] = {}
        self.pending: list[Any] = []
        self.all_started = False
        self.asked = False
        self.promised = 0 if restored is None else restored.promised
        self.replayed_to = self.promised if restored is not None else 0
        """Rows that were read again may have greater keys than those that follow."""
        self.is_restored = restored is not None
        self.asleep_until: int | None = None
        self._credit_max = 0
        self.last_keys: dict[tuple[int, str], int] = {}
        """In this round, by member and stage."""

    # Steps

    def step(self) -> None:
        action = self.rng.choice(
            ("start", "start", "perform", "perform", "perform", "perform", "grow", "round",
             "round", "round", "time", "ask", "barrier", "crash")
        )  # fmt: skip
        match action:
            case "start":
                self.start_one()
            case "perform":
                self.perform_one()
            case "grow":
                self.grow()
            case "round":
                self.round(self.rng.choice((0, 1, 300, 600, 1800, WINDOW_BYTES)))
            case "time":
                self.now += self.rng.choice((1, 5, 20))
            case "ask":
                self.ask()
            case "barrier":
                self.barrier()
            case "crash" if self.rng.random() < 0.3:
                self.crash()

    def finish(self) -> None:
        """Until nothing is left to do."""
        for name, rows in self.journals.items():
            self.heads[name] = len(rows)
        self.now = CLOCK_MAX
        for _ in range(5000):
            self.ask()
            while self.to_start or not self.all_started:
                self.start_one()
            progressed = self.perform_one()
            progressed |= self.round(self.rng.choice((1, 300, 600, WINDOW_BYTES)))
            is_left = any(map(self._is_possible, self.pending)) or self.state.is_due(self.now)
            if not progressed and not is_left:
                return
        raise AssertionError("it does not come to an end")

    def start_one(self) -> None:
        if self.to_start:
            name, place = self.to_start.pop()
            number = len(self.reads) + 1
            entries = self.entries.get((name, place), ())
            self.reads[number] = ReadView(number, name, self.bindings[place], entries)
            self.handle(ReadStarted(number, place, name, entries))
        elif not self.all_started:
            self.all_started = True
            self.handle(AllReadsStarted())

    def grow(self) -> None:
        name = self.rng.choice(list(self.journals))
        more = self.heads[name] + self.rng.randint(0, 12)
        self.heads[name] = min(more, len(self.journals[name]))

    def ask(self) -> None:
        if not self.asked:
            self.asked = True
            self.handle(ProgressAsked())

    def barrier(self) -> None:
        self._barriers += 1
        effects = self.state.handle(BarrierClaimed(Barrier(self._barriers, self._barriers)))
        assert effects == [SendBarrier(Barrier(self._barriers, self._barriers))]
        snapshot = self.state.snapshot()
        data = snapshot.encode()
        assert SliceSnapshot.decode(data) == snapshot
        if not self.to_start:
            drained = {key: at[0] for key, at in self.drained().items()}
            assert hints_in(snapshot.frontier) == self._hints(drained)
            assert snapshot.frontier.gap_floor == self._gap_floor(drained)
        self.saved = (data, copy.deepcopy(self.queues), copy.deepcopy(self.session))

    def crash(self) -> None:
        if self.saved is None:
            return
        data, queues, session = self.saved
        self.queues, self.session = copy.deepcopy(queues), copy.deepcopy(session)
        self._start(SliceSnapshot.decode(data))
        for queue in self.queues.values():
            queue.names = {}  # reads have other numbers in this life

    # Doing what the Slice wants

    def handle(self, event: Any) -> None:
        self.obey(self.state.handle(event))

    def perform_one(self) -> bool:
        possible = [order for order in self.pending if self._is_possible(order)]
        if not possible:
            return False
        order = self.rng.choice(possible)
        self.pending.remove(order)
        match order:
            case Probe(read=number, journal=name):
                self._probe(number, name)
            case Fetch(read=number, journal=name, offset=offset):
                view, head = self.reads[number], self.heads[name]
                end = min(head, offset + self.rng.randint(0, 15))
                if self.first_kept.get(name, 0) > offset:
                    self._probe(number, name)
                    return True
                batches = batches_of(self.rng, name, self.journals[name], offset, end)
                view.head = max(head, offset)
                self._note_keys(view, offset, end)
                self.handle(Fetched(number, batches, head))
            case Replay(read=number, journal=name, begin=begin, end=end):
                reached = self.rng.randint(begin + 1, end)
                begin = max(begin, self.first_kept.get(name, 0))
                batches = batches_of(self.rng, name, self.journals[name], begin, reached)
                self.handle(ReplayFetched(number, batches, reached))
            case Flushed():
                self.handle(order)
        return True

    def _is_possible(self, order: Any) -> bool:
        if isinstance(order, Fetch):
            return self.heads[order.journal] > order.offset
        return True

    def _probe(self, number: int, name: str) -> None:
        self.reads[number].head = self.heads[name]
        self.handle(Probed(number, self.first_kept.get(name, 0), self.heads[name]))

    def _note_keys(self, view: ReadView, begin: int, end: int) -> None:
        """The key of each row: its clock and delay, but it never falls, nor below a promise."""
        reached = max([*view.keys.values(), self.promised])
        for at in range(begin, end):
            clock = self.journals[view.journal][at].clock
            reached = max(reached, min(clock + view.binding.delay, CLOCK_MAX))
            view.keys[at] = reached

    def obey(self, effects: list[SliceEffect]) -> None:
        for effect in effects:
            match effect:
                case Probe() | Fetch() | Replay():
                    self.pending.append(effect)
                case SendReads(batch=batch):
                    assert batch.schema == READS_SCHEMA
                    for row in batch.to_pylist():
                        view = self.reads[row["read"]]
                        assert (row["binding"], row["journal"]) == (
                            view.binding.place,
                            view.journal,
                        )
                        for queue in self.queues.values():
                            assert row["read"] not in queue.names
                            queue.names[row["read"]] = (row["binding"], row["journal"])
                case SendParcel():
                    self._store(effect)
                case SendRollbacks():
                    self._roll_back(effect)
                case SendFlush(cycle=cycle):
                    self.session.frozen[cycle] = self.drained()
                    self.pending += [
                        Flushed(member, cycle, cycle * 100 + member) for member in self.queues
                    ]
                case Report(delta=delta):
                    self._told(delta)
                case SendMark(member=member, mark=mark):
                    self._marked(member, mark)
                case Sleep(until=until):
                    assert until > self.now
                    self.asleep_until = until
                case _:
                    raise AssertionError(effect)

    def drained(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (view.journal, view.binding.place): (self.state._numbers[number].offset, view.head)
            for number, view in self.reads.items()
        }

    # Rounds

    def round(self, credit_bytes: int) -> bool:
        before = {number: self.state._numbers[number].offset for number in self.reads}
        replaying = self.state._replay is not None
        self._credit_max = max(self._credit_max, credit_bytes)
        may_drain = self.may_drain() and credit_bytes >= LEAST_CREDIT * self._credit_max
        credit = {member: credit_bytes + self.rng.choice((0, 500)) for member in self.queues}
        credit[self.rng.choice(list(credit))] = credit_bytes
        self.asleep_until = None
        self.last_keys = {}
        effects = self.state.round(self.now, credit)
        after = {number: self.state._numbers[number].offset for number in self.reads}
        moved = [
            key
            for number, view in self.reads.items()
            for at, key in view.keys.items()
            if before[number] <= at < after[number]
        ]
        if moved:
            assert may_drain
            assert not replaying
            assert max(moved) <= self.now
            self.promised = max(self.promised, *moved)
            self.rounds_with_rows += 1
        left = [
            key
            for number, view in self.reads.items()
            for at, key in view.keys.items()
            if after[number] <= at
        ]
        if moved and left:
            assert max(moved) <= min(left)
        if replaying:
            assert self.state._promised >= self.promised
            self.promised = self.replayed_to = self.state._promised
        self._fits(effects, credit)
        # A read that is behind may have anything after its last key: nobody may overtake that.
        for number, view in self.reads.items():
            if moved and view.head > max([*view.keys, before[number] - 1]) + 1:
                assert max(moved) <= view.keys[max(view.keys)]
        self.obey(effects)
        self._check_marks()
        self.check()
        return bool(moved or any(isinstance(effect, SendParcel) for effect in effects))

    def _fits(self, effects: list[SliceEffect], credit: dict[int, int]) -> None:
        """A round goes whole or not at all, unless it is one row."""
        parcels = [effect for effect in effects if isinstance(effect, SendParcel)]
        common = [e.batch for e in effects if isinstance(e, SendReads | SendRollbacks)]
        rows = sum(effect.batch.num_rows for effect in parcels)
        for member, credit_bytes in credit.items():
            own = [*common, *(each.batch for each in parcels if each.member == member)]
            cost = sum(batch.nbytes + FRAME_BYTES for batch in own)
            assert rows <= 1 or cost <= credit_bytes

    def may_drain(self) -> bool:
        if not self.all_started or any(isinstance(order, Probe) for order in self.pending):
            return False
        for number, view in self.reads.items():
            fetched = max([*view.keys, self.state._numbers[number].offset - 1]) + 1
            if fetched < view.head and fetched == self.state._numbers[number].offset:
                return False
        return True

    def _marked(self, member: int, mark: Mark) -> None:
        queue = self.queues[member]
        assert mark != queue.mark or self.is_restored
        queue.mark = mark
        if mark.kind is not MarkKind.IDLE:
            assert mark.key >= max(queue.reached.values(), default=0)
        if mark.kind is MarkKind.DUE:
            assert mark.key >= self.promised
            self.promised = mark.key

    def _check_marks(self) -> None:
        """Of what the Slice has fetched, nothing is below a mark."""
        marks = {queue.mark for queue in self.queues.values()}
        assert len(marks) == 1 or self.is_restored
        mark = self.queues[self.assignment.members[0]].mark
        waiting = [
            key
            for number, view in self.reads.items()
            for at, key in view.keys.items()
            if at >= self.state._numbers[number].offset
        ]
        if self.may_drain():
            if not waiting:
                assert mark.kind is MarkKind.IDLE
            elif min(waiting) <= self.now:
                assert mark == Mark(MarkKind.DUE, max(min(waiting), self.replayed_to))
            else:
                assert mark == Mark(MarkKind.DELAYED, max(min(waiting), self.replayed_to))
                assert self.asleep_until == min(waiting)
        else:
            assert mark == Mark(MarkKind.DUE, self.promised)
            assert self.asleep_until is None
        if mark.kind is MarkKind.DUE:
            assert all(max(key, self.replayed_to) >= mark.key for key in waiting)

    def _store(self, effect: SendParcel) -> None:
        queue = self.queues[effect.member]
        binding = self.bindings[effect.stage.binding]
        names = effect.batch.schema.names
        assert names[:5] == ["_read", "_offset", "_producer", "_clock", "_vnode"]
        assert effect.stage.version == len(names) - 5
        effect.batch.validate(full=True)
        last = self.last_keys.get((effect.member, str(effect.stage)), 0)
        for row in effect.batch.to_pylist():
            place, name = queue.names[row["_read"]]
            assert place == binding.place
            origin = self.journals[name][row["_offset"]]
            assert (origin.producer, origin.clock) == (row["_producer"], row["_clock"])
            assert (origin.key, str(origin.value)) == (row["k"], row["text"])
            assert self.assignment.owner_of(row["_vnode"]) == effect.member
            assert owner_of(self.assignment, row["k"]) == effect.member
            stored = queue.stored.setdefault((place, name), Counter())
            stored[row["_producer"], row["_clock"], origin.value] += 1
            key = self.reads[row["_read"]].keys.get(row["_offset"])
            if key is not None:
                assert key >= last
                last = self.last_keys[effect.member, str(effect.stage)] = key
            late = min(row["_clock"] + binding.delay, CLOCK_MAX)
            queue.reached[place] = max(queue.reached.get(place, 0), late)

    def _roll_back(self, effect: SendRollbacks) -> None:
        assert effect.stage.is_rollbacks
        assert effect.batch.schema == ROLLBACK_SCHEMA
        for row in effect.batch.to_pylist():
            assert row["after"] < row["through"]
            for queue in self.queues.values():
                place, name = queue.names[row["_read"]]
                assert place == effect.stage.binding
                stored = queue.stored.get((place, name), Counter())
                for document in list(stored):
                    who, clock, _ = document
                    if who == row["_producer"] and row["after"] < clock <= row["through"]:
                        del stored[document]

    # What should be

    def walk(self, view: ReadView, end: int) -> Walk:
        rows, kept = self.journals[view.journal], self.first_kept.get(view.journal, 0)
        return Walk.begin(rows, view.binding, view.entries, kept).walk_to(end)

    def check(self) -> None:
        """What the Queues hold of each read is what the walk up to the same place gives."""
        replayed = None if self.state._replay is None else self.state._replay.read.number
        for number, view in self.reads.items():
            read = self.state._numbers[number]
            walk = self.walk(view, read.offset)
            least = self._by_member(walk)
            for who, state in read.states.items():
                if walk.is_gapped(who) and state.max_continue != state.last_commit:
                    walk.replay(who)  # its trigger is next
            most = self._by_member(walk)
            for member, queue in self.queues.items():
                stored = queue.stored.get((view.binding.place, view.journal), Counter())
                assert stored <= most[member]
                assert stored >= (least if number == replayed else most)[member]
            if number != replayed:
                states = {
                    who: (state.last_commit, state.max_continue, state.offset)
                    for who, state in read.states.items()
                }
                assert states == walk.states

    def _by_member(self, walk: Walk) -> dict[int, Counter[tuple[int, int, int]]]:
        keys = {(row.producer, row.clock, row.value): row.key for row in walk.rows}
        found: dict[int, Counter[tuple[int, int, int]]] = {
            member: Counter() for member in self.queues
        }
        for document, count in walk.stored.items():
            found[owner_of(self.assignment, keys[document])][document] += count
        return found

    def _told(self, delta: Frontier) -> None:
        self.asked = False
        completed = int(delta.flushed_lsn[0]) // 100
        members = self.assignment.members
        assert delta.flushed_lsn.tolist() == [completed * 100 + member for member in members]
        self.session.frontier = reduce(self.session.frontier, delta)
        self.session.told = completed
        self.check_frontier()

    def check_frontier(self) -> None:
        """What was told of entries and hints, up to the flush, and nothing else."""
        drained = {key: at[0] for key, at in self.session.frozen[self.session.told].items()}
        told: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        for journal in self.session.frontier.journals():
            for entry in journal.producers:
                told[journal.journal, journal.binding, entry.producer.int64] = (
                    entry.last_commit,
                    entry.offset,
                    entry.hinted_commit,
                )
        for view in self.reads.values():
            if (view.journal, view.binding.place) in drained:
                self._check_entries(view, drained[view.journal, view.binding.place], told)
        for row in self.session.frontier.journals():
            if (row.journal, row.binding) in drained:
                self._check_bytes(row)
        if len(drained) == len(self.journals) * len(self.bindings):
            hints = {key: entry[2] for key, entry in told.items() if entry[2]}
            assert hints == self._hints(drained)
            assert self.session.frontier.gap_floor == self._gap_floor(drained)

    def _check_entries(
        self, view: ReadView, offset: int, told: dict[tuple[str, int, int], tuple[int, int, int]]
    ) -> None:
        begun = self.walk(view, 0).entries()
        replay = self.state._replay
        is_replayed = replay is not None and replay.read.number == view.number
        for who, (last_commit, at) in self.walk(view, offset).entries().items():
            found = told.get((view.journal, view.binding.place, who), (0, 0, 0))
            if found[0]:
                assert found[:2] == (last_commit, at)
            else:
                assert begun.get(who) == (last_commit, at) or is_replayed

    def _hints(self, drained: dict[tuple[str, int], int]) -> dict[tuple[str, int, int], int]:
        hints: dict[tuple[str, int, int], int] = {}
        for view in self.reads.values():
            place, name = view.binding.place, view.journal
            walk = self.walk(view, drained[name, place])
            own = {(name, who): clock for who, clock in walk.committed.items()}
            for named in (walk.hints, own):
                for (journal, who), clock in named.items():
                    for target in self.index.targets(journal, view.binding.cohort):
                        if (journal, target) != (name, place):
                            key = (journal, target, who)
                            hints[key] = max(clock, hints.get(key, 0))
        return hints

    def _check_bytes(self, journal: JournalFrontier) -> None:
        """They are those of one of the flushes so far."""
        name, place = journal.journal, journal.binding
        view = next(
            view
            for view in self.reads.values()
            if (view.journal, view.binding.place) == (name, place)
        )
        begin = self.walk(view, 0).offset
        possible = {(0, 0)}
        for cycle, drained in self.session.frozen.items():
            if cycle <= self.session.told and (name, place) in drained:
                offset, head = drained[name, place]
                possible.add((offset - begin, head - offset))
        assert (journal.bytes_read_delta, journal.bytes_behind_delta) in possible

    def _gap_floor(self, drained: dict[tuple[str, int], int]) -> dict[int, int]:
        floors: dict[int, int] = {}
        for view in self.reads.values():
            place, name = view.binding.place, view.journal
            wanted = max((abs(entry.offset) for entry in view.entries), default=0)
            begin = self.first_kept.get(name, 0)
            if wanted < begin < drained.get((name, place), 0):
                floor = min(self.journals[name][begin].clock + GAP_SLACK, CLOCK_MAX)
                floors[place] = max(floor, floors.get(place, 0))
        return floors
