"""The promise of a frontier: from its cut floor on, everything comes that did not come before.

A journal is read in batches by readers that crash and resume from the frontier reduced so far. An
oracle that looks at the whole journal at once, and knows neither states nor frontiers, says what
must have been delivered in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    reduce,
    resolve_checkpoint,
)
from penstock.ids import CLOCK_FLOOR, Kind, Producer
from penstock.sequence import (
    UNSEEN,
    Outcome,
    ProducerState,
    SequenceFaultError,
    sequence,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# Afterwards the producer has no open span: it committed, or rolled back.
CLOSES = {
    Outcome.OUTSIDE_COMMIT,
    Outcome.ACK_COMMIT,
    Outcome.ACK_EMPTY,
    Outcome.ACK_CLEAN_ROLLBACK,
    Outcome.ACK_DEEP_ROLLBACK,
}
NAME, BINDING = "orders/1", 4
PRODUCERS = [Producer.from_hex(f"{first}00000000aa") for first in ("01", "7f", "81")]


@dataclass(frozen=True, slots=True)
class Document:
    producer: Producer
    kind: Kind
    clock: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Truth:
    """What a journal holds, by the oracle."""

    delivered: list[int]
    """The begins of all committed documents."""
    commits: list[Document]
    spans: list[tuple[Producer, int, int | None]]
    """Producer, begin, and the begin of what closed it, if anything did."""


def truth_of(journal: Sequence[Document]) -> Truth:
    """Per producer: rows between ACKs are one segment, kept if its ACK is above all commits."""
    delivered: list[int] = []
    commits: list[Document] = []
    spans: list[tuple[Producer, int, int | None]] = []
    for producer in PRODUCERS:
        committed, reach, segment = 0, 0, list[int]()
        for document in journal:
            if document.producer != producer:
                continue
            fresh = document.clock > committed
            if document.kind is Kind.CONTINUE and document.clock > max(committed, reach):
                segment.append(document.begin)
                reach = document.clock
            if document.kind is Kind.CONTINUE:
                continue
            if fresh:
                commits.append(document)
                committed = document.clock
                delivered += segment if document.kind is Kind.ACK else [document.begin]
            if document.kind is Kind.ACK:
                spans += [(producer, begin, document.begin) for begin in segment[:1]]
                reach, segment = 0, []
        spans += [(producer, begin, None) for begin in segment[:1]]
    return Truth(sorted(delivered), commits, spans)


@dataclass(slots=True)
class Reader:
    """Reads one journal from where the frontier says, and delivers what is committed."""

    journal: Sequence[Document]
    start: int
    states: dict[int, ProducerState]
    gapped: dict[Producer, int]
    delivered: list[int] = field(default_factory=list)
    pending: dict[Producer, list[int]] = field(default_factory=dict)
    changed: set[Producer] = field(default_factory=set)
    replays: int = 0

    @classmethod
    def resume(cls, journal: Sequence[Document], frontier: Frontier) -> Reader:
        known = frontier.journal(NAME, BINDING)
        point = resolve_checkpoint(known.producers if known else ())
        start = sum(document.begin < point.offset for document in journal)
        return cls(journal, start, dict(point.states), dict(point.gapped))

    def read(self, count: int) -> Frontier:
        """Reads so many documents, and reports the producers that changed."""
        stop = min(self.start + count, len(self.journal))
        for document in self.journal[self.start : stop]:
            self.take(document)
        self.start = stop
        entries = []
        for producer in sorted(self.changed):
            state = self.states[producer.int64]
            last_commit = max(state.last_commit, CLOCK_FLOOR)
            entries.append(ProducerFrontier(producer, last_commit, 0, state.offset))
        self.changed.clear()
        return Frontier.of([JournalFrontier(NAME, BINDING, tuple(entries))])

    def take(self, document: Document) -> None:
        producer = document.producer
        state = self.states.get(producer.int64, UNSEEN)
        if producer in self.gapped:
            assert state.max_continue == state.last_commit != 0
            outcome, _, _ = sequence(document.kind, document.clock, *sequenced(state))
            if outcome in (Outcome.CONTINUE_EXTEND, Outcome.ACK_COMMIT):
                self.replay(producer, self.gapped.pop(producer), document.begin)
            elif outcome in CLOSES:
                del self.gapped[producer]
        self.apply(document)

    def replay(self, producer: Producer, begin: int, end: int) -> None:
        self.replays += 1
        state = self.states[producer.int64]
        self.states[producer.int64] = ProducerState(state.last_commit, 0, state.offset)
        for document in self.journal:
            if document.producer == producer and begin <= document.begin < end:
                assert self.apply(document) not in CLOSES

    def apply(self, document: Document) -> Outcome:
        producer = document.producer
        state = self.states.get(producer.int64, UNSEEN)
        outcome, last_commit, max_continue = sequence(
            document.kind, document.clock, *sequenced(state)
        )
        offset = state.offset
        if outcome is Outcome.CONTINUE_BEGIN:
            offset = document.begin
        if outcome in CLOSES:
            offset = -document.end
        after = ProducerState(last_commit, max_continue, offset)
        if after != state:
            self.states[producer.int64] = after
            self.changed.add(producer)
        if outcome in (Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND):
            self.pending.setdefault(producer, []).append(document.begin)
        elif outcome is Outcome.OUTSIDE_COMMIT:
            self.delivered.append(document.begin)
        elif outcome in CLOSES:
            span = self.pending.pop(producer, [])
            self.delivered += span if outcome is Outcome.ACK_COMMIT else []
        return outcome


def sequenced(state: ProducerState) -> tuple[int, int]:
    return state.last_commit, state.max_continue


WRITES = (
    *("outside", "continue", "continue", "continue", "continue"),
    *("ack", "ack", "rollback", "deep rollback", "repeat"),
)


@st.composite
def journals(draw: st.DrawFn) -> list[Document]:
    """What producers may write: whatever sequencing takes without a fault."""
    offset = draw(st.sampled_from([0, 0, 5]))
    states = dict.fromkeys(PRODUCERS, (CLOCK_FLOOR, 0))
    written: dict[Producer, list[Document]] = {producer: [] for producer in PRODUCERS}
    journal: list[Document] = []
    writers = st.tuples(st.sampled_from(PRODUCERS), st.sampled_from(WRITES), st.integers(0, 3))
    for tick, (producer, write, choice) in enumerate(
        draw(st.lists(writers, min_size=5, max_size=30))
    ):
        kind, clock = Kind.OUTSIDE, 100 + tick
        if write == "continue":
            kind = Kind.CONTINUE
        elif write != "outside":
            kind = Kind.ACK
        if write == "rollback" and states[producer][0] > CLOCK_FLOOR:
            clock = states[producer][0]
        elif write in ("rollback", "deep rollback"):
            clock = 0
        elif write == "repeat":
            if not written[producer]:
                continue
            again = written[producer][-1 - choice % len(written[producer])]
            kind, clock = again.kind, again.clock
        try:
            _, *after = sequence(kind, clock, *states[producer])
        except SequenceFaultError:
            continue
        states[producer] = (after[0], after[1])
        document = Document(producer, kind, clock, offset, offset + 1 + choice)
        offset = document.end
        journal.append(document)
        written[producer].append(document)
    return journal


batches = st.lists(st.integers(1, 8), min_size=1, max_size=4)
hints = st.dictionaries(st.sampled_from(PRODUCERS), st.integers(1, 140))


def hint_frontier(hinted: dict[Producer, int]) -> Frontier:
    entries = [ProducerFrontier(producer, 0, hinted[producer]) for producer in sorted(hinted)]
    return Frontier.of([JournalFrontier(NAME, BINDING, tuple(entries))])


def check_frontier(frontier: Frontier, truth: Truth) -> None:
    floor = int(frontier.cut_floors().max(initial=0))
    for commit in truth.commits:
        if commit.begin < floor:
            entry = frontier.entry(NAME, BINDING, commit.producer)
            assert entry is not None
            assert entry.last_commit >= commit.clock
    for producer, begin, closed in truth.spans:
        if begin < floor and (closed is None or closed >= floor):
            entry = frontier.entry(NAME, BINDING, producer)
            assert entry is not None
            assert entry.offset == begin


def run(
    journal: list[Document], lives: list[tuple[list[int], dict[Producer, int]]]
) -> tuple[list[int], int]:
    """Reads in so many lives, then to the end. Returns what was delivered, and how often a span
    was read again."""
    truth = truth_of(journal)
    frontier, delivered, replays = Frontier.of(), list[int](), 0
    for counts, hinted in [*lives, ([len(journal)], {})]:
        reader = Reader.resume(journal, frontier)
        frontier = reduce(frontier, hint_frontier(hinted))
        for count in counts:
            frontier = reduce(frontier, reader.read(count))
            check_frontier(frontier, truth)
        delivered += reader.delivered
        replays += reader.replays
    return sorted(delivered), replays


@pytest.mark.slow
@settings(max_examples=400)
@given(journals(), st.lists(st.tuples(batches, hints), min_size=1, max_size=4))
def test_every_committed_document_is_delivered_once_across_crashes(
    journal: list[Document], lives: list[tuple[list[int], dict[Producer, int]]]
) -> None:
    delivered, replays = run(journal, lives)
    event(f"spans read again: {min(replays, 3)}")
    assert delivered == truth_of(journal).delivered


def written(text: str) -> list[Document]:
    """A journal from words such as `A+5`: producer, kind (. outside, + continue, ! ack), clock."""
    kinds = {".": Kind.OUTSIDE, "+": Kind.CONTINUE, "!": Kind.ACK}
    return [
        Document(PRODUCERS["ABC".index(word[0])], kinds[word[1]], int(word[2:]), at, at + 1)
        for at, word in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("text", "delivered", "replays"),
    [
        ("A+5 B.6 A!7", [0, 1], 1),  # open across the cut since offset 0: read again by its ACK
        ("A.3 A+5 B.6 A+7 A!8", [0, 1, 2, 3], 1),  # by its next CONTINUE
        ("A.3 A+5 B.6 A!3", [0, 2], 0),  # rolled back: nothing to read again
        ("A.3 A+5 B.6 A!0", [0, 2], 0),
        ("A.3 A+5 B.6 A+2 A!9", [0, 1, 2], 1),  # a duplicate before that changes nothing
        ("A.3 B+4 A+5 B!6 A+5 A!9", [0, 1, 2], 1),  # a duplicate of the span asks for it too
        ("A+5 A+6 A!7 A+5 A.8", None, None),  # after a commit, a repeated CONTINUE opens nothing
    ],
)
def test_one_crash_at_every_place(
    text: str, delivered: list[int] | None, replays: int | None
) -> None:
    journal = written(text)
    most = 0
    for place in range(len(journal) + 1):
        found, replayed = run(journal, [([1] * place, {})])
        assert found == truth_of(journal).delivered
        most = max(most, replayed)
    if delivered is not None:
        assert truth_of(journal).delivered == delivered
        assert most == replays


def test_the_journals_tried_are_worth_trying() -> None:
    """The strategy makes every outcome there is, and spans that were open across a cut."""
    seen: set[Outcome] = set()
    replays = 0

    @settings(max_examples=200, database=None, derandomize=True)
    @given(journals())
    def collect(journal: list[Document]) -> None:
        nonlocal replays
        states: dict[Producer, tuple[int, int]] = {}
        for document in journal:
            state = states.get(document.producer, (CLOCK_FLOOR, 0))
            outcome, *after = sequence(document.kind, document.clock, *state)
            states[document.producer] = (after[0], after[1])
            seen.add(outcome)
        replays += run(journal, [([len(journal) // 2], {})])[1]

    collect()
    assert seen == set(Outcome)
    assert replays > 20
