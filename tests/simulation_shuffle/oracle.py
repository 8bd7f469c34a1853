"""What a consumer should get: each journal walked row by row, by the rule of sequencing alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.ids import CLOCK_FLOOR
from penstock.routing import vnodes_of
from penstock.sequence import Outcome, sequence
from tests.simulation.world import Violation
from tests.simulation_shuffle.journals import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.frontier import Frontier
    from penstock.routing import Assignment
    from penstock.shuffle.plan import Plan
    from tests.simulation_shuffle.journals import Journal, Journals, Transaction

Source: TypeAlias = tuple[str, int, int]
"""Journal, binding, producer."""
Commits: TypeAlias = dict[Source, int]


VNODES_OF_KEYS: Final[list[int]] = vnodes_of([pa.array(np.arange(KEYS), pa.int64())]).tolist()
_COMMITS_MAX: Final = 64
_COMMITS: Final[dict[int, tuple[Frontier, Commits]]] = {}
"""Of the frontiers that were looked at last, which are held so that their ids are theirs."""


@dataclass(frozen=True, slots=True)
class Document:
    journal: str
    binding: int
    producer: int
    offset: int
    clock: int
    key: int
    value: int

    @property
    def source(self) -> Source:
        return self.journal, self.binding, self.producer


def commits_of(frontier: Frontier) -> Commits:
    """Not to be changed: it is given again for the same frontier."""
    known = _COMMITS.get(id(frontier))
    if known is None:
        if len(_COMMITS) == _COMMITS_MAX:
            _COMMITS.clear()
        known = _COMMITS[id(frontier)] = (frontier, _commits_of(frontier))
    return known[1]


def _commits_of(frontier: Frontier) -> Commits:
    names = frontier.journal_names.take(frontier.journal_indices()).to_pylist()
    columns = (
        frontier.entry_bindings().tolist(),
        frontier.producers.tolist(),
        frontier.last_commits.tolist(),
    )
    return {
        (str(name), binding, producer): clock
        for name, binding, producer, clock in zip(names, *columns, strict=True)
    }


def committed(journal: Journal) -> list[tuple[int, int, int]]:
    """Offset and producer of every document that was committed once, and where that is said."""
    states: dict[int, tuple[int, int]] = {}
    spans: dict[int, list[int]] = {}
    found: list[tuple[int, int, int]] = []
    for offset, row in enumerate(journal.rows):
        producer = row.producer
        outcome, *state = sequence(row.kind, row.clock, *states.get(producer, (CLOCK_FLOOR, 0)))
        states[producer] = (state[0], state[1])
        match outcome:
            case Outcome.OUTSIDE_COMMIT:
                found.append((offset, producer, offset))
            case Outcome.CONTINUE_BEGIN:
                spans[producer] = [offset]
            case Outcome.CONTINUE_EXTEND:
                spans[producer].append(offset)
            case Outcome.ACK_COMMIT:
                found += [(span, producer, offset) for span in spans.pop(producer)]
            case _:
                pass
    return found


class Oracle:
    """Of a read whose journal has lost rows before it came to them, it knows which: a document is
    to be delivered unless itself, or what commits it, is among those. Of a journal that is deleted,
    what the frontier says to be committed was read."""

    def __init__(self, plan: Plan, journals: Journals, assignment: Assignment) -> None:
        self._plan = plan
        self._journals = journals
        self._lost: dict[tuple[str, int], set[int]] = {}
        self._not_replayed: dict[tuple[str, int], set[int]] = {}
        self._gap_floors: dict[int, int] = {}
        self._committed: dict[str, tuple[int, list[tuple[int, int, int]]]] = {}
        self.reassign(assignment)

    def reassign(self, assignment: Assignment) -> None:
        self._owners = [assignment.owner_of(vnode) for vnode in VNODES_OF_KEYS]

    def lost(self, journal: str, binding: int, offsets: Iterable[int]) -> None:
        """These rows are gone, and a read that needs them is told so."""
        self._lost.setdefault((journal, binding), set()).update(offsets)

    def lost_to_replay(self, journal: str, binding: int, offsets: Iterable[int]) -> None:
        """A span is read again without these rows. If one of them was written twice, the other one
        is the first that is found."""
        self.lost(journal, binding, offsets)
        self._not_replayed.setdefault((journal, binding), set()).update(offsets)

    def _commits_in(self, journal: Journal) -> list[tuple[int, int, int]]:
        rows, found = self._committed.get(journal.known_as, (0, []))
        if rows != len(journal.rows):
            found = committed(journal)
            self._committed[journal.known_as] = (len(journal.rows), found)
        return found

    def count(self, newest: Commits) -> int:
        """How many documents are to be delivered in the end."""
        journals = self._journals.all
        return sum(
            not journals[document.journal].is_gone
            or document.clock <= newest.get(document.source, 0)
            for document in self.all_documents()
        )

    def all_documents(self) -> Iterable[Document]:
        """Of all reads, those that were ever committed, but for those that are lost."""
        for journal in self._journals.all.values():
            rows = self._commits_in(journal)
            for binding in self._plan.bindings:
                if binding.collection != journal.collection:
                    continue
                lost = self._lost.get((journal.known_as, binding.place), ())
                for offset, producer, closed in rows:
                    at = self._found_at(journal, binding.place, offset, closed)
                    if at is None or closed in lost:
                        continue
                    row = journal.rows[at]
                    if binding.not_before <= row.clock < binding.not_after:
                        yield Document(
                            journal.known_as,
                            binding.place,
                            producer,
                            at,
                            row.clock,
                            row.key,
                            row.value,
                        )

    def _found_at(self, journal: Journal, binding: int, offset: int, closed: int) -> int | None:
        """Where a read finds a document that was first written at this offset."""
        lost = self._lost.get((journal.known_as, binding), ())
        if offset not in lost:
            return offset
        if offset not in self._not_replayed.get((journal.known_as, binding), ()):
            return None
        first = journal.rows[offset]
        for at in range(offset + 1, closed):
            row = journal.rows[at]
            if row.producer == first.producer and at not in lost and row.clock >= first.clock:
                return at if row.clock == first.clock else None
        return None

    def raise_gap_floors(self, floors: Mapping[int, int]) -> None:
        """The Session is told of these: below them, nobody waits for a commit of the binding."""
        for binding, clock in floors.items():
            self._gap_floors[binding] = max(clock, self._gap_floors.get(binding, 0))

    def check_frontier(self, before: Commits, after: Commits) -> None:
        """Nothing goes back, and transactions are in it whole or not at all."""
        for source, clock in before.items():
            if clock > max(after.get(source, 0), CLOCK_FLOOR):
                raise Violation(f"the frontier went back at {source}: from {clock}")
        for transaction in self._journals.transactions:
            for cohort in set(self._plan.cohorts):
                reads = [
                    (name, binding.place)
                    for name in transaction.homes
                    for binding in self._plan.bindings
                    if binding.cohort == cohort
                    and binding.collection == self._journals.all[name].collection
                    # What was out of reach for a while may come later than the rest.
                    and not self._journals.all[name].was_away
                    and transaction.clock >= self._gap_floors.get(binding.place, 0)
                    and not self._is_lost(transaction, name, binding.place)
                ]
                has, had = (
                    {read: transaction.clock <= commits.get((*read, transaction.producer), 0)
                     for read in reads}
                    for commits in (after, before)
                )  # fmt: skip
                # A journal that is deleted has the commit with the others, or never.
                is_late = any(had.values()) and any(has[read] > had[read] for read in reads)
                kept = {has[read] for read in reads if not self._journals.all[read[0]].is_gone}
                if len(kept) > 1 or is_late:
                    raise Violation(f"a transaction is torn: {transaction} is in {has}")

    def _is_lost(self, transaction: Transaction, name: str, binding: int) -> bool:
        """Whether the read lost the row that says that the transaction is committed."""
        rows = self._journals.all[name].rows
        return any(
            rows[at].clock == transaction.clock and rows[at].producer == transaction.producer
            for at in self._lost.get((name, binding), ())
        )

    def check_recovered(
        self, consumed: Commits, newest: Commits, reads: Mapping[tuple[str, int], int]
    ) -> None:
        """What was lost is between these two. `reads` has how far each journal was read for it."""
        lost = {
            source: clock
            for source, clock in newest.items()
            if clock > max(consumed.get(source, 0), CLOCK_FLOOR) and source[0] in self._journals.all
        }
        expected: dict[tuple[str, int], int] = {}
        for (journal, binding, producer), clock in lost.items():
            end = _end_of_commit(self._journals.all[journal], producer, clock)
            expected[journal, binding] = max(end, expected.get((journal, binding), 0))
        if reads != expected:
            raise Violation(f"what was lost ends at {expected}, and read was up to {reads}")

    def check_delivered(
        self,
        start: Commits,
        end: Commits,
        delivered: Mapping[int, list[Document]],
        *,
        is_whole_order: bool,
        was_moved: bool,
    ) -> None:
        """What was delivered of (start, end], by member."""
        expected = Counter(
            document
            for document in self.all_documents()
            if start.get(document.source, 0) < document.clock <= end.get(document.source, 0)
        )
        found = Counter(document for documents in delivered.values() for document in documents)
        if expected != found:
            raise Violation(
                f"documents are missing: {_few(expected - found)}; "
                f"are too many: {_few(found - expected)}"
            )
        for member, documents in delivered.items():
            last: dict[tuple[str, int, int, int], int] = {}
            for document in documents:
                if self._owners[document.key] != member:
                    raise Violation(f"member {member} has a document of another: {document}")
                # A span that was read again, after a disk was lost or when its journal was back,
                # comes later than it would have.
                was_away = self._journals.all[document.journal].was_away
                who = 0 if is_whole_order and not was_away else document.producer
                # What came from another member is behind what was there.
                key = document.key if was_moved else 0
                stream = (document.journal, document.binding, who, key)
                if last.get(stream, -1) >= document.offset:
                    raise Violation(f"member {member} has {document} behind {last[stream]}")
                last[stream] = document.offset


def _end_of_commit(journal: Journal, producer: int, clock: int) -> int:
    state = (CLOCK_FLOOR, 0)
    for offset, row in enumerate(journal.rows):
        if row.producer == producer:
            _, *after = sequence(row.kind, row.clock, *state)
            state = (after[0], after[1])
            if state[0] >= clock:
                return offset + 1
    raise Violation(f"{journal.name} has no commit of {producer} from {clock} on")


def _few(documents: Counter[Document]) -> list[Document]:
    return sorted(documents, key=lambda document: document.value)[:3]
