"""What a shuffle delivered, held against the batch reader: the same documents, once each, and each
at the member that owns its key.

The batch reader shares nothing with the shuffle but the journals and the rules of sequencing: it
reads journal by journal, and knows of no member, queue or epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock.journal.documents import read_documents
from penstock.journal.names import known_as, name_of
from penstock.shuffle.keys import vnodes_of_rows
from penstock.shuffle.parcels import OFFSET, READ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.frontier import Frontier, JournalFrontier
    from penstock.journal.cut import JournalCut
    from penstock.journal.store import ReadableStore
    from penstock.routing import Assignment
    from penstock.shuffle.plan import BindingPlan, Plan
    from penstock.shuffle.queue.reader import QueueBatch

OFFSETS_SHOWN: Final = 3
"""Of each difference."""

Offsets: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Members: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
ReadKey: TypeAlias = tuple[int, str]
"""Binding and journal."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Documents of one journal that are not as they should be."""

    kind: str
    """missing, repeated, unexpected or misplaced."""
    binding: int
    journal: str
    documents: int
    offsets: tuple[int, ...]
    """Of the first ones."""

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.offsets)) + ", ..." * (self.documents > len(self.offsets))
        return f"{self.documents} {self.kind} in {self.journal}, at offsets {shown}"


@dataclass(frozen=True, slots=True)
class Verified:
    """How a comparison went."""

    documents: int
    """That the batch reader has."""
    unchecked: int
    """Delivered, but no longer in the journals."""
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        return not self.differences


class Delivered:
    """Where every document came, by binding, journal and offset. 8 bytes for each."""

    def __init__(self) -> None:
        self._found: dict[ReadKey, list[tuple[Offsets, int]]] = {}

    def add(self, member: int, found: QueueBatch) -> None:
        reads = found.batch.column(READ).to_numpy(zero_copy_only=False)
        offsets = found.batch.column(OFFSET).to_numpy(zero_copy_only=False)
        order = np.argsort(reads, kind="stable")
        numbers, begins = np.unique(reads[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            self._found.setdefault(found.names[number], []).append((offsets[rows], member))

    def journals(self) -> set[ReadKey]:
        return set(self._found)

    def of(self, key: ReadKey) -> tuple[Offsets, Members]:
        """Offsets, ascending, and beside each the member that has the document."""
        parts = self._found.get(key, [])
        offsets = np.concatenate([np.empty(0, np.int64), *(offsets for offsets, _ in parts)])
        members = np.concatenate(
            [
                np.empty(0, np.uint64),
                *(np.full(len(offsets), member, np.uint64) for offsets, member in parts),
            ]
        )
        order = np.argsort(offsets, kind="stable")
        return offsets[order], members[order]


def verify(
    store: ReadableStore,
    plan: Plan,
    assignment: Assignment,
    delivered: Delivered,
    *,
    start: Frontier,
    end: Frontier,
) -> Verified:
    """Compares what came between two frontiers with what the journals have between them."""
    documents = unchecked = 0
    differences: list[Difference] = []
    unseen = delivered.journals()
    for binding in plan.bindings:
        for known, cut in _cuts(store, binding, end):
            key = (binding.place, known)
            unseen.discard(key)
            before = start.journal(known, binding.place)
            offsets, owners = _expected(store, binding, assignment, cut, before)
            got, members = delivered.of(key)
            kept = got >= cut.begin
            unchecked += int(np.count_nonzero(~kept))
            documents += len(offsets)
            differences += _differences(key, offsets, owners, got[kept], members[kept])
    there = {
        (binding.place, known)
        for binding in plan.bindings
        for one in store.journals(binding.collection, binding.selector)
        for known in (one.name, known_as(one.name, one.identity))
    }
    for key in sorted(unseen):
        offsets, _ = delivered.of(key)
        if key in there:
            differences += _named("unexpected", key, offsets)
        else:  # deleted, or another one has its name now
            unchecked += len(offsets)
    return Verified(documents, unchecked, tuple(differences))


def _cuts(
    store: ReadableStore, binding: BindingPlan, end: Frontier
) -> Iterator[tuple[str, JournalCut]]:
    """Of the journals that the frontier has; it knows nothing of the others. Each with what it
    calls them."""
    listed = {
        journal.name: known
        for journal in store.journals(binding.collection, binding.selector)
        for known in (journal.name, known_as(journal.name, journal.identity))
        if end.journal(known, binding.place) is not None
    }
    cuts = store.cut(list(listed), end, binding.place)
    yield from ((listed[cut.journal], cut) for cut in cuts)


def _expected(
    store: ReadableStore,
    binding: BindingPlan,
    assignment: Assignment,
    cut: JournalCut,
    before: JournalFrontier | None,
) -> tuple[Offsets, Members]:
    """What the batch reader has behind the start, and who owns it."""
    entries = () if before is None else before.producers
    all_offsets, all_owners = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for found in read_documents(store, cut, binding.key):
        wanted = (found.times >= binding.not_before) & (found.times < binding.not_after)
        for entry in entries:
            of_producer = found.producers == entry.producer.int64
            wanted &= ~(of_producer & (found.commit_clocks <= entry.last_commit))
        journals = [(cut.journal, len(found.offsets))]
        vnodes = vnodes_of_rows(binding, found.documents, found.offsets, journals)
        all_offsets.append(found.offsets[wanted])
        all_owners.append(assignment.owners_array[vnodes][wanted])
    return np.concatenate(all_offsets), np.concatenate(all_owners)


def _differences(
    key: ReadKey, offsets: Offsets, owners: Members, got: Offsets, members: Members
) -> Iterator[Difference]:
    """`offsets` and `got` ascend."""
    yield from _named("missing", key, offsets[~np.isin(offsets, got)])
    yield from _named("repeated", key, got[1:][got[1:] == got[:-1]])
    known = np.isin(got, offsets)
    yield from _named("unexpected", key, got[~known])
    places = np.searchsorted(offsets, got[known])
    strayed = owners[places] != members[known]
    yield from _named("misplaced", key, got[known][strayed])


def _named(kind: str, key: ReadKey, offsets: Offsets) -> Iterator[Difference]:
    if len(offsets):
        binding, journal = key
        shown = tuple(offsets[:OFFSETS_SHOWN].tolist())
        yield Difference(kind, binding, name_of(journal), len(offsets), shown)
