"""Matching markers with the transaction log, held against a Kafka that writes markers in any order.

The world writes rows, decisions and markers step by step, in an order that chance chooses. Slices
report any of their reads up to any place; the log is read and looked at in between, also in the
middle of somebody's commit. The oracle knows which marker belongs to which transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random, SystemRandom

import pytest

from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier, reduce
from penstock.ids import CLOCK_FLOOR, Producer
from penstock.journal.offset_identity import READER, clock_of, transactional
from penstock.journal.transaction_log import Decided, Idle, LogEntry, Look, Marker, Missed
from penstock.shuffle.session.checkpoints import Checkpoints
from penstock.shuffle.session.hint_index import HintIndex
from penstock.shuffle.session.instances import Instances
from penstock.shuffle.session.log_matching import (
    FindMarkers,
    LogMatching,
    LogRead,
    MarkersFound,
    MatchedProgress,
    ReadLog,
)
from penstock.shuffle.session.matching import Matching
from penstock.shuffle.session.remembered import Remembered, decoded
from penstock.shuffle.session.state import Progressed
from tests.unit.shuffle.session.plans import binding, plan_of

States = dict[int, tuple[int, int]]
"""By producer, the last commit and the offset, as a frontier has them."""
PLAIN_PRODUCER = Producer.from_hex("000000000000").int64


@dataclass(slots=True)
class Row:
    producer: int
    transaction: int
    """0: no row of a transaction."""
    is_marker: bool = False
    is_commit: bool = False
    epoch: int = 0
    is_lost: bool = False
    """Compaction took it away."""


@dataclass(slots=True)
class Writer:
    producer: int
    transaction: int = 0
    touched: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    is_commit: bool = True
    epoch: int = 0
    bumps: bool = False
    """Version 2: another epoch for every transaction."""


class Kafka:
    """Partitions, the log of transactions, and writers that go on in small steps."""

    def __init__(self, random: Random, journals: list[str], writers: int) -> None:
        self.random = random
        self.rows: dict[str, list[Row]] = {journal: [] for journal in journals}
        self.log: list[Decided | Idle] = []
        self.decisions: dict[int, bool] = {}
        self.transactions = 0
        self.writers = [Writer(transactional(100 + place)) for place in range(writers)]
        for writer in self.writers:
            writer.bumps = random.random() < 0.3
        self.is_ending = False
        self.keeps_log = random.random() < 0.6
        """Nothing of the log is compacted: so matching goes on from what was remembered."""
        self.repeats_markers = False

    def step(self) -> None:
        random = self.random
        if random.random() < 0.1 and not self.is_ending:
            journal = random.choice(list(self.rows))
            self.rows[journal].append(Row(PLAIN_PRODUCER, 0))
            return
        writer = random.choice(self.writers)
        if writer.unmarked:
            journal = writer.unmarked.pop(random.randrange(len(writer.unmarked)))
            self.rows[journal].append(
                Row(writer.producer, writer.transaction, True, writer.is_commit, writer.epoch)
            )
            if not writer.unmarked:
                self.log.append(Idle(writer.producer, *self.next_place(writer.producer)))
                writer.transaction, writer.touched = 0, []
            return
        if not writer.transaction:
            if self.is_ending:
                return
            self.transactions += 1
            writer.transaction = self.transactions
        if not self.is_ending and (not writer.touched or random.random() < 0.5):
            journal = random.choice(list(self.rows))
            if journal not in writer.touched:
                writer.touched.append(journal)
            self.rows[journal].append(Row(writer.producer, writer.transaction))
            return
        writer.is_commit = random.random() < 0.8
        writer.epoch += writer.bumps
        self.decisions[writer.transaction] = writer.is_commit
        place, partition = self.next_place(writer.producer)
        touched = tuple(writer.touched)
        self.log.append(
            Decided(writer.producer, place, writer.epoch, writer.is_commit, touched, partition)
        )
        writer.unmarked = list(writer.touched)

    def next_place(self, producer: int) -> tuple[int, int]:
        """Where the log has its next entry: the place in one of its two partitions, and which."""
        partition = producer // transactional(1) % 2
        return sum(entry.partition == partition for entry in self.log), partition

    def compact(self) -> None:
        """Takes rows of transactions that are all over away, and their markers with them."""
        rows = self.rows[self.random.choice(list(self.rows))][:-1]
        over = {row.transaction for row in rows if row.is_marker}
        gone = {one for one in sorted(over) if self.random.random() < 0.6}
        for row in rows:
            row.is_lost |= row.transaction in gone

    def finish(self) -> None:
        self.is_ending = True
        while any(writer.transaction for writer in self.writers):
            self.step()


class Slices:
    """All reads, each at a place of its own; what they tell is what real Slices tell."""

    def __init__(self, kafka: Kafka, reads: list[tuple[str, int]]) -> None:
        self.kafka = kafka
        self.places = dict.fromkeys(reads, 0)
        self.told: dict[tuple[str, int], States] = {key: {} for key in reads}
        self.spans: dict[tuple[str, int], set[int]] = {key: set() for key in reads}

    def begin(self, read: tuple[str, int]) -> None:
        self.places[read] = 0
        self.told[read] = {}
        self.spans[read] = set()

    def report(
        self, moves: dict[tuple[str, int], int], *, everything: bool = False
    ) -> tuple[Frontier, list[Marker]]:
        journals, markers = [], []
        for key in sorted(moves):
            begin, end = self.places[key], moves[key]
            self.places[key] = end
            markers += self.markers(key, begin, end)
            states = self.states(key, begin, end) | {READER.int64: (clock_of(end), -end)}
            told = {} if everything else self.told[key]
            entries = [
                ProducerFrontier(Producer.from_int64(producer), commit, offset=offset)
                for producer, (commit, offset) in states.items()
                if told.get(producer) != (commit, offset)
            ]
            self.told[key] = states
            if entries:
                ordered = tuple(sorted(entries, key=lambda entry: entry.producer))
                journals.append(JournalFrontier(*key, ordered))
        return Frontier.of(journals), markers

    def markers(self, key: tuple[str, int], begin: int, end: int) -> list[Marker]:
        found: list[Marker] = []
        for place, row in enumerate(self.kafka.rows[key[0]][:end]):
            if place < begin or row.is_lost:
                continue
            if place > 0 and self.kafka.rows[key[0]][place - 1].is_lost:
                found.append(Marker.lost(*key, place))
            if row.is_marker:
                found.append(Marker(*key, row.producer, place, row.epoch, row.is_commit))
        return found

    def states(self, key: tuple[str, int], begin: int, end: int) -> States:
        states = dict(self.told[key])
        open_spans = self.spans[key]
        for offset, row in enumerate(self.kafka.rows[key[0]][:end]):
            if offset < begin or row.is_lost:
                continue
            commit, _ = states.get(row.producer, (CLOCK_FLOOR, 0))
            if row.is_marker:
                commit = clock_of(offset) if row.is_commit else commit
                if row.is_commit or row.producer in open_spans:
                    states[row.producer] = (commit, -(offset + 1))
                open_spans.discard(row.producer)
            elif row.transaction:
                if row.producer not in open_spans:
                    states[row.producer] = (commit, offset)
                open_spans.add(row.producer)
            else:
                states[row.producer] = (clock_of(offset), -(offset + 1))
        return states

    def snapshot(self) -> Slices:
        saved = type(self)(self.kafka, [])
        saved.places, saved.told = dict(self.places), dict(self.told)
        saved.spans = {key: set(spans) for key, spans in self.spans.items()}
        return saved


class Session:
    """What `SessionState` does with progress, the log and looks."""

    def __init__(
        self,
        slices: Slices,
        plan_cohorts: tuple[int, ...],
        resume: Frontier,
        remembered: Remembered | None,
        *,
        restored: bool,
    ) -> None:
        self.kafka, self.slices = slices.kafka, slices
        bindings = [
            binding(place, "orders", cohort=cohort) for place, cohort in enumerate(plan_cohorts)
        ]
        plan = plan_of(*bindings)
        self.remembered = remembered
        rules = Matching(HintIndex(plan), plan.cohorts, resume, remembered)
        self.matching = LogMatching(rules, remembered if restored else None)
        self.checkpoints = Checkpoints(plan.cohorts, rules.resumed(resume), 0.0)
        self.instances = Instances(resume, {})
        for journal, place in slices.places:
            self.instances.begin((journal, place), journal)
        self.frontier = resume
        self.log_read = 0
        self.looks = 0
        self.is_begun = False
        self.sought: FindMarkers | None = None
        self.is_look_due = False

    def read_log(self) -> list[LogEntry]:
        entries: list[LogEntry] = [*self.kafka.log[self.log_read :]]
        chance = self.kafka.random.random()
        begins: dict[int, int] | None = None
        if not self.is_begun and self.remembered is not None:
            begins = self.remembered.begins()
            entries = [one for one in self.kafka.log if one.number >= begins.get(one.partition, 0)]
        if begins is None and not self.is_begun:
            if chance < 0.5:
                entries = _compacted(entries, self.kafka.random.randint(0, len(entries)))
        elif chance < 0.05 and not self.kafka.keeps_log:
            entries = [Missed(), *_compacted(entries, len(entries))]
        self.is_begun = True
        self.log_read = len(self.kafka.log)
        return entries

    def progress(self, delta: Frontier, markers: list[Marker]) -> None:
        self._go_on(self.matching.on_progressed(Progressed(0, 0, delta, tuple(markers)), 0.0))

    def hear_log(self, writes: Random | None = None) -> None:
        """Reads the log, or looks, or markers once more, and goes on with what waited."""
        if self.sought is not None:
            sought, self.sought = self.sought.sought, None
            found = [
                marker
                for key, each in sought.items()
                for marker in self.slices.markers(key, each.begin, each.end)
            ]
            self._go_on(self.matching.on_markers(MarkersFound(tuple(found))))
        if not self.is_look_due:
            self._go_on(self.matching.on_log(LogRead(tuple(self.read_log())), {}))
            return
        self.looks += 1
        before = tuple(self.read_log())
        self._others_write(writes)
        ends = {journal: len(rows) for journal, rows in self.kafka.rows.items()}
        self._others_write(writes)
        look = Look(before, {}, tuple(self.read_log()), ())
        self._go_on(self.matching.on_log(LogRead((), look), ends))

    def _go_on(self, found: MatchedProgress) -> None:
        match found.wanted:
            case FindMarkers():
                self.sought = found.wanted
            case ReadLog(looks=looks):
                self.is_look_due = looks
            case None:
                self.is_look_due = False
        for _, matched in found.matched:
            reported = self.checkpoints.reported
            self.checkpoints.extend(self.instances.place(matched.below, reported), 0.0)
            self.checkpoints.on_progressed(self.instances.place(matched.delta, reported), 0.0)
        if found.through is not None:
            through = self.instances.place(found.through, self.checkpoints.reported)
            self.checkpoints.on_progressed(through, 0.0)

    def _others_write(self, writes: Random | None) -> None:
        if writes is not None:
            for _ in range(writes.choice([0, 0, 0, 1, 5])):
                self.kafka.step()

    def take(self) -> None:
        taken = self.checkpoints.take()
        if taken is not None:
            self.frontier = reduce(self.frontier, self.matching.rules.released(taken))
        self.remembered = self.matching.rules.remembered()

    def anew(self, cohorts: tuple[int, ...], *, forgets: bool) -> Session:
        """The next one, after a failure: Slices go on where their snapshots were."""
        found = self.remembered
        found = None if found is None or forgets else decoded(found.encoded())
        return Session(self.slices, cohorts, self.frontier, found, restored=True)


def _compacted(entries: list[LogEntry], cleaned: int) -> list[LogEntry]:
    """Of each producer the last entry of the cleaned part, and all that stands behind that."""
    last = {getattr(entry, "producer", 0): place for place, entry in enumerate(entries[:cleaned])}
    return [entries[place] for place in sorted(last.values())] + entries[cleaned:]


def from_the_begin(reads: list[tuple[str, int]]) -> Remembered:
    return Remembered(reads=dict.fromkeys(reads, 0))


def check_whole(kafka: Kafka, frontier: Frontier, cohorts: tuple[int, ...]) -> set[int]:
    """No transaction is in a cohort by a part. Gives those that are in all."""
    markers: dict[int, dict[str, int]] = {}
    touched: dict[int, set[str]] = {}
    for journal, rows in kafka.rows.items():
        for offset, row in enumerate(rows):
            if row.is_lost:
                continue
            if row.is_marker:
                markers.setdefault(row.transaction, {})[journal] = offset
            elif row.transaction:
                touched.setdefault(row.transaction, set()).add(journal)
    producers = {row.transaction: row.producer for rows in kafka.rows.values() for row in rows}
    everywhere = set()
    for transaction, journals in touched.items():
        producer = Producer.from_int64(producers[transaction])
        seen_in_all = True
        for cohort in set(cohorts):
            seen = set()
            for journal in journals:
                for place, own in enumerate(cohorts):
                    entry = frontier.entry(journal, place, producer)
                    commit = CLOCK_FLOOR if entry is None else entry.last_commit
                    marker = markers.get(transaction, {}).get(journal)
                    if own == cohort:
                        seen.add(marker is not None and commit >= clock_of(marker))
            if kafka.decisions.get(transaction):
                assert len(seen) == 1, f"transaction {transaction} is torn in cohort {cohort}"
            seen_in_all &= seen == {True}
        if seen_in_all and kafka.decisions.get(transaction):
            everywhere.add(transaction)
    return everywhere


ROUNDS_MAX = 20
"""Each may begin the matching of one more producer anew."""
COHORTS = [(0,), (0, 0), (0, 1)]


def play(seed: int) -> int:  # noqa: PLR0912 - a story has many turns
    """One story; gives how many transactions were delivered."""
    random = Random(seed)
    cohorts = random.choice(COHORTS)
    journals = [f"orders/region={name}/000" for name in "abcd"[: random.randint(1, 4)]]
    kafka = Kafka(random, journals, random.randint(1, 4))
    reads = [(journal, place) for journal in journals for place in range(len(cohorts))]
    slices = Slices(kafka, reads)
    for _ in range(random.choice([0, 0, 30])):
        kafka.step()
    begin = from_the_begin(reads) if random.random() < 0.5 else None
    session = Session(slices, cohorts, Frontier.of(), begin, restored=False)
    saved = slices.snapshot()
    compacts = random.random() < 0.4
    """Then without restarts: decision 032 says what is known to be missing there."""
    goes_on = begin is not None and kafka.keeps_log and not compacts and not kafka.repeats_markers
    """Nothing is lost, written twice or forgotten: then nobody has to look."""
    for _ in range(random.randint(20, 150)):
        match random.choice("wwwwrrltlts"):
            case "w":
                for _ in range(random.randint(1, 8)):
                    kafka.step()
            case "r":
                moved = random.sample(reads, random.randint(1, len(reads)))
                moves = {
                    key: random.randint(slices.places[key], len(kafka.rows[key[0]]))
                    for key in moved
                }
                session.progress(*slices.report(moves))
            case "l":
                session.hear_log(random)
            case "t":
                session.take()
                saved = slices.snapshot()
                check_whole(kafka, session.frontier, cohorts)
            case "s" if compacts and random.random() < 0.6:
                kafka.compact()
            case "s" if random.random() < 0.1:
                # A topic of the pattern, which may have been there for long, is found.
                goes_on = False
                name = f"orders/region=late{len(journals)}/000"
                journals.append(name)
                kafka.rows[name] = []
                for _ in range(random.choice([0, 20])):
                    kafka.step()
                for place in range(len(cohorts)):
                    reads.append((name, place))
                    slices.begin((name, place))
                    session.instances.begin((name, place), name)
            case "s" if random.random() < 0.4 and not compacts:
                # All begins anew. Slices go on where their snapshots were, and tell all they know.
                if random.random() < 0.5 and saved.places.keys() == slices.places.keys():
                    session.slices = slices = saved
                forgets = not goes_on and random.random() < 0.2
                session = session.anew(cohorts, forgets=forgets)
                saved = slices.snapshot()
                told, _ = slices.report(dict(slices.places), everything=True)
                session.progress(told, [])
            case _:
                pass
    kafka.finish()
    session.progress(*slices.report({key: len(kafka.rows[key[0]]) for key in reads}))
    for _ in range(ROUNDS_MAX):
        session.hear_log()
        session.take()
    found = check_whole(kafka, session.frontier, cohorts)
    kept = (row for rows in kafka.rows.values() for row in rows if not row.is_lost)
    there = {row.transaction for row in kept if not row.is_marker}
    committed = {one for one, is_commit in kafka.decisions.items() if is_commit and one in there}
    assert found == committed, "something committed never came"
    assert not (goes_on and session.looks), "a session did not go on where the one before it was"
    return len(found)


def random_seed() -> int:
    return SystemRandom().randrange(10_000, 2**40)


def check_seeds(seeds: range) -> None:
    delivered = 0
    for seed in seeds:
        try:
            delivered += play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert delivered > len(seeds)


def test_transactions_are_whole_whatever_the_order_of_markers() -> None:
    check_seeds(range(200))


@pytest.mark.slow
def test_transactions_are_whole_in_many_more_orders() -> None:
    check_seeds(range(200, 700))
    first = random_seed()
    check_seeds(range(first, first + 100))
