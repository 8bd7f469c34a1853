"""A world to hold checkpoints against: journals that producers wrote, Slices that read them at
their own pace, and an oracle that looks at the journals alone and knows nothing of pipelines.

A Slice here may report any of its reads up to any place. That is more than real ones do, whose
reads move on together by clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import CLOCK_FLOOR, Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

PRODUCERS = [Producer.from_hex(f"{first}00000000aa") for first in ("01", "7f", "81")]
LSN_COUNT = 2


@dataclass(frozen=True, slots=True)
class Row:
    """At its place in the journal, from `offset` to the next row's."""

    producer: Producer
    kind: str
    """continue, ack, outside or rollback."""
    clock: int
    journals: tuple[str, ...] = ()
    """Of an ACK: all that the transaction reached."""


@dataclass(slots=True)
class World:
    cohorts: tuple[int, ...]
    """Of every binding."""
    readers: dict[tuple[str, int], int]
    """The Slice of every read, by (journal, binding)."""
    journals: dict[str, list[Row]] = field(default_factory=dict)

    def reads_of(self, journal: str, cohort: int) -> list[tuple[str, int]]:
        return [
            read for read in self.readers if read[0] == journal and self.cohorts[read[1]] == cohort
        ]

    def transactions(self) -> set[tuple[Producer, int, tuple[str, ...]]]:
        return {
            (row.producer, row.clock, row.journals)
            for rows in self.journals.values()
            for row in rows
            if row.kind == "ack"
        }

    def state_at(self, journal: str, place: int, producer: Producer) -> tuple[int, int] | None:
        """Last commit and offset of a producer when so many rows are read."""
        last_commit, offset, seen, spans = CLOCK_FLOOR, 0, False, False
        for at, row in enumerate(self.journals[journal][:place]):
            if row.producer != producer:
                continue
            seen = True
            if row.kind == "continue":
                offset = offset if spans else at
                spans = True
            else:
                offset, spans = -(at + 1), False
                last_commit = max(last_commit, row.clock)
        return (last_commit, offset) if seen else None


class Session:
    """All reads of a world from a frontier on, and the deltas that Slices would report."""

    def __init__(self, world: World, resume: Frontier, *, recovery: bool = False) -> None:
        self.world = world
        self.resumed = facts_of(resume)
        self.places: dict[tuple[str, int], int] = {}
        self.stops: dict[tuple[str, int], int] = {}
        """Where a read parks: behind the last commit it is to find, in a recovery session."""
        self.counted = 0
        self.lsn = 0
        for journal, binding in world.readers:
            entries = self.resumed.get((journal, binding), {}).values()
            self.places[journal, binding] = max((abs(e.offset) for e in entries), default=0)
            stop = len(world.journals[journal])
            if recovery:
                stop = max(
                    (self._place_of(journal, e) for e in entries if e.is_unresolved),
                    default=self.places[journal, binding],
                )
            self.stops[journal, binding] = stop

    def _place_of(self, journal: str, entry: ProducerFrontier) -> int:
        return next(
            at + 1
            for at, row in enumerate(self.world.journals[journal])
            if row.producer == entry.producer
            and row.kind in ("ack", "outside")
            and row.clock >= entry.hinted_commit
        )

    @property
    def done(self) -> bool:
        return self.places == self.stops

    def report(self, slice_number: int, counts: Sequence[int]) -> Frontier:
        """What a Slice tells after so many more rows of each of its reads."""
        own = sorted(read for read, reader in self.world.readers.items() if reader == slice_number)
        steps = {read: counts[at % len(counts)] for at, read in enumerate(own)} if counts else {}
        return self.report_reads(steps)

    def report_reads(self, steps: dict[tuple[str, int], int]) -> Frontier:
        entries: dict[tuple[str, int], dict[Producer, ProducerFrontier]] = {}
        counted: dict[tuple[str, int], int] = {}
        for (journal, binding), count in steps.items():
            start = self.places[journal, binding]
            stop = min(start + count, self.stops[journal, binding])
            self.places[journal, binding] = max(start, stop)
            rows = self.world.journals[journal][start:stop]
            for producer in {row.producer for row in rows}:
                state = self.world.state_at(journal, stop, producer)
                assert state is not None
                last_commit = max(state[0], commit_of(self.resumed, (journal, binding), producer))
                add(
                    entries,
                    (journal, binding),
                    ProducerFrontier(producer, last_commit, 0, state[1]),
                )
                counted[journal, binding] = stop - start
            for row in rows:
                known = commit_of(self.resumed, (journal, binding), row.producer)
                if row.kind != "ack" or row.clock <= known:
                    continue  # a duplicate says nothing
                for other in row.journals:
                    for read in self.world.reads_of(other, self.world.cohorts[binding]):
                        if read != (journal, binding):
                            add(entries, read, ProducerFrontier(row.producer, 0, row.clock))
        self.counted += sum(counted.values())
        self.lsn += 1
        return Frontier.of(
            [
                JournalFrontier(
                    *read, tuple(entries[read][one] for one in sorted(entries[read])),
                    counted.get(read, 0), -counted.get(read, 0),
                )
                for read in sorted(entries)
            ],
            flushed_lsn=[self.lsn, 0],
        )  # fmt: skip


def add(
    entries: dict[tuple[str, int], dict[Producer, ProducerFrontier]],
    read: tuple[str, int],
    entry: ProducerFrontier,
) -> None:
    old = entries.setdefault(read, {}).get(entry.producer, ProducerFrontier(entry.producer, 0))
    entries[read][entry.producer] = ProducerFrontier(
        entry.producer,
        max(old.last_commit, entry.last_commit),
        max(old.hinted_commit, entry.hinted_commit),
        entry.offset if entry.last_commit else old.offset,
    )


Facts = dict[tuple[str, int], dict[Producer, ProducerFrontier]]


def facts_of(frontier: Frontier) -> Facts:
    return {
        (journal.journal, journal.binding): {entry.producer: entry for entry in journal.producers}
        for journal in frontier.journals()
    }


def commit_of(facts: Facts, read: tuple[str, int], producer: Producer) -> int:
    entry = facts.get(read, {}).get(producer)
    return entry.last_commit if entry else 0


def check_whole(world: World, facts: Facts) -> None:
    """No transaction is in a frontier with one journal of a cohort, and not with another."""
    for producer, clock, journals in world.transactions():
        for cohort in set(world.cohorts):
            reads = [read for journal in journals for read in world.reads_of(journal, cohort)]
            known = {read: commit_of(facts, read, producer) >= clock for read in reads}
            assert len(set(known.values())) <= 1, f"{producer} {clock} is in parts: {known}"


def check_reported(session: Session, facts: Facts) -> None:
    """Nothing is claimed that was not there at the start, and that no Slice has reported."""
    for read, place in session.places.items():
        for row in session.world.journals[read[0]][place:]:
            if row.kind in ("ack", "outside"):
                known = commit_of(session.resumed, read, row.producer)
                assert row.clock > commit_of(facts, read, row.producer) or row.clock <= known


def check_resumable(world: World, facts: Facts) -> None:
    """Reading on from the cut floors misses no commit, and no span that is open across them."""
    for read in world.readers:
        entries = facts.get(read, {})
        floor = max((abs(entry.offset) for entry in entries.values()), default=0)
        rows = world.journals[read[0]]
        for row in rows[:floor]:
            if row.kind in ("ack", "outside"):
                assert row.clock <= commit_of(facts, read, row.producer), (read, row)
        for producer in PRODUCERS:
            state = world.state_at(read[0], floor, producer)
            if state is None or state[1] < 0:
                continue
            later = [row for row in rows[floor:] if row.producer == producer]
            entry = entries[producer]
            if any(
                row.kind in ("ack", "outside") and row.clock <= entry.last_commit for row in later
            ):
                continue  # all of the span is known, or was rolled back before what is known
            assert entry.offset == state[1], (read, entry)
            assert entry.offset > 0 or entry.last_commit == CLOCK_FLOOR, (read, entry)


def check_complete(world: World, facts: Facts) -> None:
    """All commits there are, and nothing else."""
    for journal, binding in world.readers:
        for producer in PRODUCERS:
            state = world.state_at(journal, len(world.journals[journal]), producer)
            commit = commit_of(facts, (journal, binding), producer)
            assert max(commit, CLOCK_FLOOR) == (state[0] if state else CLOCK_FLOOR)


WRITES = ("begin", "begin", "begin", "more", "commit", "commit", "commit", "outside", "rollback")


def written(
    names: Sequence[str], steps: Iterable[tuple[int, str, set[str]]]
) -> dict[str, list[Row]]:
    """The journals after producers took these steps. What a producer may not do is left out."""
    journals: dict[str, list[Row]] = {name: [] for name in names}
    spans: dict[Producer, set[str]] = {}
    commits: dict[tuple[str, Producer], int] = {}
    clock = 100
    for number, write, chosen in steps:
        producer = PRODUCERS[number]
        clock += 10
        if write in ("begin", "more") and (write == "begin" or producer in spans):
            spans.setdefault(producer, set()).update(chosen)
            for name in sorted(chosen):
                journals[name].append(Row(producer, "continue", clock))
        elif write == "outside" and producer not in spans:
            name = min(chosen)
            journals[name].append(Row(producer, "outside", clock))
            commits[name, producer] = clock
        elif write in ("commit", "rollback") and producer in spans:
            reached = tuple(sorted(spans.pop(producer)))
            for name in reached:
                if write == "commit":
                    journals[name].append(Row(producer, "ack", clock, reached))
                    commits[name, producer] = clock
                else:
                    back = commits.get((name, producer), 0)
                    journals[name].append(Row(producer, "rollback", back))
    return journals


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = [f"c/p={number}/000" for number in range(draw(st.integers(1, 4)))]
    cohorts = tuple(draw(st.sampled_from([(0,), (0, 0), (0, 1), (0, 1, 0), (0, 0, 1)])))
    readers: dict[tuple[str, int], int] = {}
    for binding in range(len(cohorts)):
        chosen = draw(st.sets(st.sampled_from(names), min_size=1)) if binding else set(names)
        for name in sorted(chosen):
            readers[name, binding] = draw(st.integers(0, 2))
    step = st.tuples(
        st.integers(0, len(PRODUCERS) - 1),
        st.sampled_from(WRITES),
        st.sets(st.sampled_from(names), min_size=1, max_size=3),
    )
    return World(cohorts, readers, written(names, draw(st.lists(step, min_size=4, max_size=40))))


schedules = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 4), min_size=1, max_size=4)), max_size=40
)
"""Which Slice reports next, and how many more rows of each of its reads."""


def busy_world(random: Random) -> World:
    """Many transactions over several journals, of producers that do little else."""
    names = [f"c/p={number}/000" for number in range(random.randint(3, 5))]
    cohorts = random.choice([(0,), (0,), (0, 1), (0, 0)])
    readers = {
        (name, binding): random.randrange(3) for name in names for binding in range(len(cohorts))
    }
    steps = []
    for _ in range(random.randint(20, 50)):
        write = random.choice(("begin", "begin", "commit", "commit", "commit", "more", "outside"))
        if random.random() < 0.05:
            write = "rollback"
        chosen = set(random.sample(names, random.randint(1, 3)))
        steps.append((random.randrange(2), write, chosen))
    return World(cohorts, readers, written(names, steps))


def busy_schedule(random: Random) -> list[tuple[int, list[int]]]:
    """Slices that report often, a few rows at a time, and not all reads alike."""
    return [
        (random.randrange(3), [random.choice((0, 1, 1, 2, 3, 6)) for _ in range(4)])
        for _ in range(random.randint(10, 30))
    ]
